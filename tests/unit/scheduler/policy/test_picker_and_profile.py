"""How parts are put together, what is kept of each, and how ties are broken."""

from collections import Counter
from math import inf

import numpy as np
import pytest

from pdd.core.identity import NodeName
from pdd.scheduler.policy.filters import ALWAYS, FILTERS
from pdd.scheduler.policy.picker import pick
from pdd.scheduler.policy.profile import Profile
from pdd.scheduler.policy.scorers import SCORERS
from pdd.scheduler.settings import PolicySettings
from tests.unit.scheduler.policy.parts import make_candidates, make_question

NAMES = [NodeName(f"decode-{index}") for index in range(4)]


def test_the_best_score_wins_whatever_the_key() -> None:
    assert {pick(NAMES, np.array([0.1, 0.3, 0.2, 0.29]), key=bytes([i])) for i in range(9)} == {1}


def test_equals_are_spread_evenly_and_one_key_goes_one_way() -> None:
    keys = [f"key-{index}".encode() for index in range(4000)]
    chosen = Counter(NAMES[pick(NAMES, np.ones(4), key=key)] for key in keys)
    assert set(chosen) == set(NAMES)
    assert all(900 < count < 1100 for count in chosen.values()), chosen
    backwards = NAMES[::-1]
    for key in keys[:50]:
        assert (
            NAMES[pick(NAMES, np.ones(4), key=key)]
            == backwards[pick(backwards, np.ones(4), key=key)]
        )


def test_a_node_that_leaves_moves_only_its_own_keys() -> None:
    for index in range(500):
        key = f"key-{index}".encode()
        before = NAMES[pick(NAMES, np.ones(4), key=key)]
        after = NAMES[pick(NAMES[:3], np.ones(3), key=key)]
        assert before in (after, NAMES[3])


def profile(**changes: object) -> Profile:
    values: dict[str, object] = {
        "filters": ("inbound", "spill"),
        "scorers": {"free_kv": 1.0, "running": 0.5, "link": 0.0},
        "settings": PolicySettings(),
    }
    return Profile(**{**values, **changes})  # type: ignore[arg-type]


def test_scores_are_weighed_added_and_kept() -> None:
    candidates = make_candidates(
        {"UNPROMISED": 73, "SEQUENCES": 8},  # 0.7 + 0.5 x 0.5
        {"UNPROMISED": 73, "SEQUENCES": 12},  # 0.7 + 0.5 x 0.25
    )
    choice = profile().choose(candidates, make_question(), key=b"k")
    assert choice.chosen_at == 0
    assert choice.chosen == candidates.at(0)
    assert choice.totals.tolist() == pytest.approx([0.95, 0.825])
    assert choice.profile.scorer_names == ("free_kv", "running"), "weight 0 is left out"
    assert choice.scores[:, 0].tolist() == [0.7, 0.5]


def test_it_is_told_who_dropped_whom_and_who_dropped_the_last() -> None:
    candidates = make_candidates({"INBOUND_S": 9.0}, {"BLOCKS": 200})
    choice = profile().choose(candidates, make_question(), key=b"k")
    assert choice.chosen is None
    assert choice.emptied_by == "inbound"
    assert choice.dropped == {0: "inbound", 1: "fits"}
    assert choice.why_dropped(1) == "200 blocks wanted, 100 unpromised"


def test_who_is_dropped_is_not_scored_and_gives_no_measure_to_others() -> None:
    candidates = make_candidates(
        {"BLOCKS": 200, "COMPLETION_S": 0.1}, {"COMPLETION_S": 2.0}, {"COMPLETION_S": 4.0}
    )
    choice = profile(scorers={"completion": 1.0}).choose(candidates, make_question(), key=b"k")
    assert choice.chosen_at == 1
    assert choice.left_count == 2
    assert choice.dropped == {0: "fits"}
    assert choice.totals.tolist() == [-inf, 1.0, 0.5]


def test_a_score_out_of_range_is_a_bug_that_names_its_scorer() -> None:
    with pytest.raises(AssertionError, match="running gave no score"):
        profile().choose(make_candidates({"SEQUENCES": -8}), make_question(), key=b"k")


def test_each_part_has_a_number_of_its_own() -> None:
    filters = [part.number for part in {**ALWAYS, **FILTERS}.values()]
    assert sorted(filters) == list(range(len(filters)))
    assert sorted(SCORERS.values()) == list(range(len(SCORERS)))


def test_filters_that_are_always_in_force_need_not_be_named() -> None:
    candidates = make_candidates({"BLOCKS": 200})
    choice = profile(filters=()).choose(candidates, make_question(), key=b"k")
    assert choice.chosen is None
    assert choice.emptied_by == "fits"


@pytest.mark.parametrize("changes", [{"filters": ("fist",)}, {"scorers": {"fre_kv": 1.0}}])
def test_an_unknown_part_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(KeyError):
        profile(**changes)


def test_no_candidate_is_no_choice() -> None:
    assert profile().choose(make_candidates(), make_question(), key=b"k").chosen is None
