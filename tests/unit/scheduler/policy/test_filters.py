"""One table per filter: what it drops, and what it says."""

from typing import Any

import numpy as np
import pytest

from pdd.core.identity import Forking, NodeName, RequestId
from pdd.scheduler.nodes import Node
from pdd.scheduler.policy import filters, parts
from pdd.scheduler.policy.candidate import Question
from pdd.scheduler.policy.profile import limits_of
from pdd.scheduler.settings import PolicySettings
from tests.builders import make_request
from tests.unit.scheduler.policy.parts import make_candidates, make_node, make_question

SETTINGS = PolicySettings()


def dropped(
    name: str, *each: dict[str, Any], question: Question | None = None
) -> dict[NodeName, str]:
    """Whom a filter drops, and what it says of each."""
    part = {**filters.ALWAYS, **filters.FILTERS}[name]
    question = question or make_question()
    candidates = make_candidates(*each, question=question)
    table, asked = candidates.table, candidates.asked
    parts.survey(table, 0, np.full(len(each), -1.0), asked)
    return {
        candidates.names[at]: part.why(candidates.at(at), question, SETTINGS)
        for at in range(len(candidates))
        if parts.drops(part.number, table, at, asked, limits_of(SETTINGS))
    }


def test_rested_drops_the_engine_that_has_just_failed_this_request() -> None:
    assert dropped("rested", {"RESTS": 1}, {}) == {
        "decode-0": "its engine has just failed this request"
    }


@pytest.mark.parametrize(
    ("fields", "choice_count", "why"),
    [
        ({"BLOCKS": 100}, 1, None),
        ({"BLOCKS": 101}, 1, "101 blocks wanted, 100 unpromised"),
        ({"SEQUENCES": 15}, 1, None),
        ({"SEQUENCES": 16}, 1, "it runs 16 sequences, its most"),
        ({"SEQUENCES": 14}, 2, None),
        ({"SEQUENCES": 15}, 2, "2 sequences wanted, it runs 15 of 16"),
    ],
)
def test_fits_counts_blocks_and_sequences(
    fields: dict[str, Any], choice_count: int, why: str | None
) -> None:
    question = make_question(choice_count=choice_count)
    assert dropped("fits", fields, {}, question=question) == (
        {} if why is None else {"decode-0": why}
    )


@pytest.mark.parametrize(
    ("max_tokens", "why"), [(1568, None), (1569, "1601 tokens wanted, it holds 1600")]
)
def test_holds_longest_wants_the_whole_sequence_to_fit(max_tokens: int, why: str | None) -> None:
    question = make_question(request=make_request(max_tokens=max_tokens))
    assert dropped("holds_longest", {}, question=question).get(NodeName("decode-0")) == why


@pytest.mark.parametrize(
    ("node", "claim", "why"),
    [
        ({"forking": Forking.SHARED}, 100, None),
        ({"forking": Forking.APART}, 100, None),
        ({"forking": Forking.NONE}, 100, "it runs one choice per request"),
        (
            {"forking": Forking.APART},
            101,
            "2 choices want 2 sequences and 6 blocks, it holds 16 and 100",
        ),
        (
            {"forking": Forking.SHARED, "max_num_seqs": 1},
            100,
            "2 choices want 2 sequences and 4 blocks, it holds 1 and 100",
        ),
    ],
)
def test_holds_longest_wants_room_for_all_choices(
    node: dict[str, Any], claim: int, why: str | None
) -> None:
    fields = {"node": make_node(**node), "CLAIM": claim}
    told = dropped("holds_longest", fields, question=make_question(choice_count=2))
    assert told == ({} if why is None else {"decode-0": why})


@pytest.mark.parametrize(("may_take", "is_dropped"), [(0, True), (2, True), (3, False)])
def test_unheld_leaves_kept_room_alone(may_take: int, is_dropped: bool) -> None:
    told = dropped("unheld", {"MAY_TAKE": may_take}, {})
    why = "its room is kept for a request that waits longer"
    assert told == ({"decode-0": why} if is_dropped else {})


def busy(*, blocks: int, claim: int, is_long: bool = False) -> Node:
    node = make_node()
    node.lease(RequestId("x"), blocks=blocks, claim=claim, queued_tokens=0, is_long=is_long)
    return node


@pytest.mark.parametrize(
    ("blocks", "claim", "own", "own_claim", "is_dropped"),
    [
        (87, 100, 3, 3, False),  # 10 of 100 are left: just what is kept
        (88, 100, 3, 3, True),  # 9 are left
        (97, 97, 3, 3, False),  # nobody can grow: nothing is kept
        (94, 97, 3, 3, False),  # 3 are left, and 3 is all that it can grow by
        (95, 98, 3, 3, True),  # 2 are left
        (90, 90, 3, 9, False),  # its own growth counts: 7 left, 6 kept
        (92, 92, 3, 9, True),  # 5 left
    ],
)
def test_headroom_keeps_a_tenth_for_growth_or_less_if_less_can_grow(
    blocks: int, claim: int, own: int, own_claim: int, is_dropped: bool
) -> None:
    node = busy(blocks=blocks, claim=claim)
    fields = {"node": node, "BLOCKS": own, "CLAIM": own_claim}
    assert bool(dropped("headroom", fields)) == is_dropped


def test_headroom_says_what_would_be_left_and_what_is_kept() -> None:
    assert dropped("headroom", {"node": busy(blocks=92, claim=92), "CLAIM": 9}) == {
        "decode-0": "it would have 5 blocks left, 6 are kept"
    }


def test_headroom_lets_the_first_one_have_a_whole_node() -> None:
    assert dropped("headroom", {"BLOCKS": 95, "CLAIM": 100}) == {}


@pytest.mark.parametrize(
    ("held", "own", "is_long", "is_dropped"),
    [
        (60, 15, False, False),  # 75 of 100 together
        (60, 16, False, True),
        (60, 12, False, False),  # an eighth is no large one
        (60, 40, False, True),
        (70, 6, True, True),  # long, though small now
        (70, 5, True, False),
    ],
)
def test_large_share_bounds_what_large_and_long_ones_hold_together(
    held: int, own: int, is_long: bool, is_dropped: bool
) -> None:
    node = busy(blocks=held, claim=held, is_long=True)
    question = make_question(is_long=is_long)
    told = dropped("large_share", {"node": node, "BLOCKS": own}, question=question)
    why = f"large ones would hold {held + own} blocks, over 75"
    assert told == ({"decode-0": why} if is_dropped else {})


def test_large_share_bounds_their_number_too() -> None:
    node = make_node(max_num_seqs=4)
    for index in range(3):
        node.lease(RequestId(f"x{index}"), blocks=1, queued_tokens=0, is_long=True)
    assert dropped("large_share", {"node": node}, question=make_question(is_long=True)) == {
        "decode-0": "it runs 3 long sequences, their most"
    }
    assert not dropped("large_share", {"node": node})


def test_a_large_one_may_have_a_node_without_others_for_itself() -> None:
    assert dropped("large_share", {"BLOCKS": 100}, question=make_question(is_long=True)) == {}


@pytest.mark.parametrize(
    ("seconds", "why"),
    [
        (0.0, None),
        (2.0, None),
        (2.1, "its link is 2.1 s behind what is computed for it"),
    ],
)
def test_inbound_bounds_what_is_on_its_way(seconds: float, why: str | None) -> None:
    told = dropped("inbound", {"INBOUND_S": seconds})
    assert told.get(NodeName("decode-0")) == why


@pytest.mark.parametrize(
    ("load", "other_load", "why"),
    [
        (0.85, 0.0, None),
        (0.86, 0.0, "preferred, but its load is 86%, over 85%"),
        (0.86, 0.85, "preferred, but its load is 86%, over 85%"),
        (0.95, 0.9, None),
    ],
)
def test_spill_drops_the_preferred_node_above_its_load_if_another_is_below(
    load: float, other_load: float, why: str | None
) -> None:
    told = dropped("spill", {"LOAD": load, "PREFERRED": 1}, {"LOAD": other_load})
    assert told == ({} if why is None else {"decode-0": why})


def test_spill_concerns_only_the_key_that_prefers_the_node() -> None:
    assert dropped("spill", {"LOAD": 0.99}, {}) == {}
