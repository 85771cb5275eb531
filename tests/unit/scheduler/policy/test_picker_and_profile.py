"""How parts are put together, what is kept of each, and how ties are broken."""

from collections import Counter

import pytest

from pdd.core.identity import NodeName
from pdd.scheduler.policy.picker import pick
from pdd.scheduler.policy.profile import Profile
from pdd.scheduler.settings import PolicySettings
from tests.unit.scheduler.policy.parts import make_candidate, make_question

NAMES = [NodeName(f"decode-{index}") for index in range(4)]


def test_the_best_score_wins_whatever_the_key() -> None:
    assert {pick(NAMES, [0.1, 0.3, 0.2, 0.29], key=bytes([i])) for i in range(9)} == {1}


def test_equals_are_spread_evenly_and_one_key_goes_one_way() -> None:
    keys = [f"key-{index}".encode() for index in range(4000)]
    chosen = Counter(NAMES[pick(NAMES, [1.0] * 4, key=key)] for key in keys)
    assert set(chosen) == set(NAMES)
    assert all(900 < count < 1100 for count in chosen.values()), chosen
    backwards = NAMES[::-1]
    for key in keys[:50]:
        assert (
            NAMES[pick(NAMES, [1.0] * 4, key=key)] == backwards[pick(backwards, [1.0] * 4, key=key)]
        )


def test_a_node_that_leaves_moves_only_its_own_keys() -> None:
    for index in range(500):
        key = f"key-{index}".encode()
        before = NAMES[pick(NAMES, [1.0] * 4, key=key)]
        after = NAMES[pick(NAMES[:3], [1.0] * 3, key=key)]
        assert before in (after, NAMES[3])


def profile(**changes: object) -> Profile:
    values: dict[str, object] = {
        "filters": ("inbound", "spill"),
        "scorers": {"free_kv": 1.0, "running": 0.5, "link": 0.0},
        "settings": PolicySettings(),
    }
    return Profile(**{**values, **changes})  # type: ignore[arg-type]


def test_scores_are_weighed_added_and_kept() -> None:
    candidates = [
        make_candidate(unpromised_blocks=73, sequence_count=8),  # 0.7 + 0.5 x 0.5
        make_candidate("decode-1", unpromised_blocks=73, sequence_count=12),  # 0.7 + 0.5 x 0.25
    ]
    choice = profile().choose(candidates, make_question(), key=b"k")
    assert choice.chosen is candidates[0]
    assert choice.totals == {
        "decode-0": pytest.approx(0.95),
        "decode-1": pytest.approx(0.825),
    }
    assert choice.scores["decode-0"] == {"free_kv": 0.7, "running": 0.5}, "weight 0 is left out"


def test_it_is_told_who_dropped_whom_and_who_dropped_the_last() -> None:
    candidates = [make_candidate(inbound_s=9.0), make_candidate("decode-1", blocks=200)]
    choice = profile().choose(candidates, make_question(), key=b"k")
    assert choice.chosen is None
    assert choice.emptied_by == "inbound"
    assert {node: name for node, (name, _) in choice.dropped.items()} == {
        "decode-0": "inbound",
        "decode-1": "fits",
    }


def test_filters_that_are_always_in_force_need_not_be_named() -> None:
    choice = profile(filters=()).choose([make_candidate(blocks=200)], make_question(), key=b"k")
    assert choice.chosen is None
    assert choice.emptied_by == "fits"


@pytest.mark.parametrize("changes", [{"filters": ("fist",)}, {"scorers": {"fre_kv": 1.0}}])
def test_an_unknown_part_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(KeyError):
        profile(**changes)


def test_no_candidate_is_no_choice() -> None:
    assert profile().choose([], make_question(), key=b"k").chosen is None
