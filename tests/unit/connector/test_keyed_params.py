"""The noise key on its way to the engine."""

import pytest

from pdd.connector.keyed_params import (
    OUTPUT_INDEX_MAX,
    SEED_MAX,
    SEED_MIN,
    NoiseKey,
    noise_key_extra_args,
    read_noise_key,
)


@pytest.mark.parametrize("seed", [0, 7, SEED_MIN, SEED_MAX])
def test_a_key_is_read_back_as_it_was_written(seed: int) -> None:
    extra_args = noise_key_extra_args(seed=seed, first_output_index=3)
    assert read_noise_key(extra_args) == NoiseKey(seed=seed, first_output_index=3)


@pytest.mark.parametrize("extra_args", [None, {}, {"kv_transfer_params": {"seed": 1}}])
def test_a_request_that_is_not_ours_has_no_key(extra_args: dict[str, object] | None) -> None:
    assert read_noise_key(extra_args) is None


def test_entries_of_other_parts_are_left_alone() -> None:
    extra_args = noise_key_extra_args(seed=1, first_output_index=0)
    mixed = {"pdd": {**extra_args["pdd"], "ticket": "abc"}, "other": 1}
    assert read_noise_key(mixed) == NoiseKey(seed=1, first_output_index=0)


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        (5, "must be a mapping"),
        ({}, "'seed'"),
        ({"seed": 1}, "'first_output_index'"),
        ({"seed": "1", "first_output_index": 0}, "must be int"),
        ({"seed": True, "first_output_index": 0}, "must be int"),
        ({"seed": 1.0, "first_output_index": 0}, "must be int"),
        ({"seed": SEED_MAX + 1, "first_output_index": 0}, str(SEED_MAX)),
        ({"seed": SEED_MIN - 1, "first_output_index": 0}, str(SEED_MIN)),
        ({"seed": 1, "first_output_index": -1}, "first_output_index"),
        ({"seed": 1, "first_output_index": OUTPUT_INDEX_MAX + 1}, str(OUTPUT_INDEX_MAX)),
    ],
)
def test_a_malformed_key_is_refused_and_the_message_names_it(entry: object, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        read_noise_key({"pdd": entry})
