"""One table per filter: what it drops, and what it says."""

from typing import Any

import numpy as np
import pytest

from pdd.core.identity import NodeName, RequestId
from pdd.scheduler.nodes import Node
from pdd.scheduler.policy import filters
from pdd.scheduler.policy.candidate import Candidates, Question
from pdd.scheduler.settings import PolicySettings
from tests.builders import make_identity, make_request
from tests.unit.scheduler.policy.parts import make_candidates, make_node, make_question

SETTINGS = PolicySettings()


def dropped(
    name: str, candidates: Candidates, question: Question | None = None
) -> dict[NodeName, str]:
    """Whom a filter drops, and what it says of each."""
    part = {**filters.ALWAYS, **filters.FILTERS}[name]
    question = question or make_question()
    mask = part.drops(candidates, question, SETTINGS)
    return {
        candidates.names[at]: part.why(candidates.at(at), question, SETTINGS)
        for at in range(len(candidates))
        if mask is not None and mask[at]
    }


def test_rested_drops_the_engine_that_has_just_failed_this_request() -> None:
    question = make_question(avoid=[make_identity("decode-0")])
    candidates = make_candidates({}, {})
    assert dropped("rested", candidates, question) == {
        "decode-0": "its engine has just failed this request"
    }
    assert dropped("rested", candidates) == {}


@pytest.mark.parametrize(
    ("fields", "choice_count", "why"),
    [
        ({"blocks": 100}, 1, None),
        ({"blocks": 101}, 1, "101 blocks wanted, 100 unpromised"),
        ({"sequences": 15}, 1, None),
        ({"sequences": 16}, 1, "it runs 16 sequences, its most"),
        ({"sequences": 14}, 2, None),
        ({"sequences": 15}, 2, "2 sequences wanted, it runs 15 of 16"),
    ],
)
def test_fits_counts_blocks_and_sequences(
    fields: dict[str, Any], choice_count: int, why: str | None
) -> None:
    question = make_question(choice_count=choice_count)
    assert dropped("fits", make_candidates(fields, {}), question) == (
        {} if why is None else {"decode-0": why}
    )


@pytest.mark.parametrize(
    ("max_tokens", "why"), [(1568, None), (1569, "1601 tokens wanted, it holds 1600")]
)
def test_holds_longest_wants_the_whole_sequence_to_fit(max_tokens: int, why: str | None) -> None:
    question = make_question(request=make_request(max_tokens=max_tokens))
    candidates = make_candidates({}, token_count_max=32 + max_tokens)
    assert dropped("holds_longest", candidates, question).get(NodeName("decode-0")) == why


def test_holds_longest_wants_room_for_all_choices() -> None:
    question = make_question(choice_count=2)
    candidates = make_candidates({}, {})
    candidates.holds_choices = np.array([False, True])
    assert dropped("holds_longest", candidates, question) == {
        "decode-0": "it runs one choice per request"
    }


@pytest.mark.parametrize(
    ("held", "is_dropped"),
    [(None, False), ({"decode-0": 2}, True), ({"decode-0": 3}, False), ({"decode-1": 0}, False)],
)
def test_unheld_leaves_kept_room_alone(held: Any, is_dropped: bool) -> None:
    assert bool(dropped("unheld", make_candidates({}), make_question(held=held))) == is_dropped


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
    candidates = make_candidates({"node": node, "blocks": own, "claim": own_claim})
    assert bool(dropped("headroom", candidates)) == is_dropped


def test_headroom_says_what_would_be_left_and_what_is_kept() -> None:
    candidates = make_candidates({"node": busy(blocks=92, claim=92), "claim": 9})
    assert dropped("headroom", candidates) == {
        "decode-0": "it would have 5 blocks left, 6 are kept"
    }


def test_headroom_lets_the_first_one_have_a_whole_node() -> None:
    assert dropped("headroom", make_candidates({"blocks": 95, "claim": 100})) == {}


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
    told = dropped(
        "large_share",
        make_candidates({"node": node, "blocks": own}),
        make_question(is_long=is_long),
    )
    why = f"large ones would hold {held + own} blocks, over 75"
    assert told == ({"decode-0": why} if is_dropped else {})


def test_large_share_bounds_their_number_too() -> None:
    node = make_node(max_num_seqs=4)
    for index in range(3):
        node.lease(RequestId(f"x{index}"), blocks=1, queued_tokens=0, is_long=True)
    candidates = make_candidates({"node": node})
    assert dropped("large_share", candidates, make_question(is_long=True)) == {
        "decode-0": "it runs 3 long sequences, their most"
    }
    assert not dropped("large_share", candidates)


def test_a_large_one_may_have_a_node_without_others_for_itself() -> None:
    candidates = make_candidates({"blocks": 100})
    assert dropped("large_share", candidates, make_question(is_long=True)) == {}


@pytest.mark.parametrize(
    ("seconds", "why"),
    [
        (0.0, None),
        (2.0, None),
        (2.1, "its link is 2.1 s behind what is computed for it"),
    ],
)
def test_inbound_bounds_what_is_on_its_way(seconds: float, why: str | None) -> None:
    told = dropped("inbound", make_candidates({"inbound_s": seconds}))
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
    candidates = make_candidates({"load": load}, {"load": other_load}, preferred_at=0)
    assert dropped("spill", candidates) == ({} if why is None else {"decode-0": why})


def test_spill_concerns_only_the_key_that_prefers_the_node() -> None:
    assert dropped("spill", make_candidates({"load": 0.99}, {})) == {}
