"""The path, by rows of predictions."""

from typing import Any

import pytest

from pdd.core.requests import Path
from pdd.scheduler.policy.decider import PathInputs, decide
from pdd.scheduler.settings import PathMode, PathSettings


def inputs(**changes: Any) -> PathInputs:
    """2,000 tokens, none here: 0.4 s to compute on either node, 20 ms on a link of 10 ms."""
    values: dict[str, Any] = {
        "prompt_tokens": 2000,
        "cached_tokens": 0,
        "stall_s": 0.4,
        "local_s": 0.4,
        "remote_s": 0.4,
        "transfer_s": 0.02,
        "handover_s": 0.01,
        "output_s": 8.0,
    }
    return PathInputs(**{**values, **changes})


@pytest.mark.parametrize(
    ("changes", "path", "words"),
    [
        ({}, Path.DISAGGREGATED, "may be held up"),
        # most of it is here, and the rest is short
        ({"cached_tokens": 1700, "stall_s": 0.06}, Path.LOCAL, "1700 of 2000 tokens are here"),
        # ... which is worth no probe
        (
            {"cached_tokens": 1700, "stall_s": 0.06, "is_probe": True},
            Path.LOCAL,
            "1700 of 2000 tokens are here",
        ),
        # most of it is here, the rest is longer, and nobody runs there
        (
            {"cached_tokens": 1000, "stall_s": 0.4, "held_up_count": 0},
            Path.LOCAL,
            "1000 of 2000 tokens are here",
        ),
        (
            {"cached_tokens": 1000, "stall_s": 0.6, "held_up_count": 0},
            Path.DISAGGREGATED,
            "may be held up",
        ),
        # most of it is here, and the rest is long all the same
        ({"cached_tokens": 1000, "stall_s": 0.2}, Path.DISAGGREGATED, "may be held up"),
        # a short prompt: computing is quicker than handing over
        (
            {"prompt_tokens": 40, "stall_s": 0.008, "transfer_s": 4e-4},
            Path.LOCAL,
            "a hand-over 10 ms",
        ),
        (
            {"prompt_tokens": 60, "stall_s": 0.012, "transfer_s": 6e-4},
            Path.DISAGGREGATED,
            "a hand-over 10 ms",
        ),
        # its output would be over before the hand-over
        (
            {"prompt_tokens": 60, "stall_s": 0.012, "transfer_s": 6e-4, "output_s": 0.009},
            Path.LOCAL,
            "its output",
        ),
        # a slow link: moving takes longer than computing
        ({"transfer_s": 0.5}, Path.LOCAL, "moving their blocks 500 ms"),
        # a slow link, but the decode node has so much to do that it would be later still
        ({"transfer_s": 0.5, "local_s": 2.0}, Path.DISAGGREGATED, "may be held up"),
        # too little is known
        ({"transfer_s": 0.5, "is_probe": True}, Path.DISAGGREGATED, "to measure"),
        (
            {"cached_tokens": 1999, "stall_s": 2e-4, "transfer_s": 1e-5, "is_probe": True},
            Path.LOCAL,
            "are here",
        ),
    ],
)
def test_the_path_follows_from_what_was_measured(
    changes: dict[str, Any], path: Path, words: str
) -> None:
    chosen, reason = decide(inputs(**changes), PathSettings())
    assert chosen is path
    assert words in reason


@pytest.mark.parametrize(("tokens", "path"), [(64, Path.LOCAL), (65, Path.DISAGGREGATED)])
def test_an_override_in_tokens_goes_before_measurements(tokens: int, path: Path) -> None:
    settings = PathSettings(local_prompt_tokens_max=64)
    given = inputs(prompt_tokens=1000 + tokens, cached_tokens=1000, is_probe=True)
    assert decide(given, settings)[0] is path


@pytest.mark.parametrize("mode", [PathMode.DISAGGREGATED, PathMode.LOCAL])
def test_a_fixed_mode_asks_no_measurement(mode: PathMode) -> None:
    path, reason = decide(inputs(cached_tokens=999, stall_s=0.0), PathSettings(mode=mode))
    assert path == mode.value
    assert mode in reason


def test_a_short_follow_up_turn_stays_with_its_blocks_in_every_mode() -> None:
    for mode in PathMode:
        path, _ = decide(inputs(cached_tokens=1900, stall_s=0.02), PathSettings(mode=mode))
        assert path is Path.LOCAL
