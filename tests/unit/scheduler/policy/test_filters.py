"""One table per filter: what it drops, and what it says."""

from typing import Any

import pytest

from pdd.core.identity import NodeName, RequestId
from pdd.scheduler.nodes import Node
from pdd.scheduler.policy import filters
from pdd.scheduler.settings import PolicySettings
from tests.builders import make_identity
from tests.unit.scheduler.policy.parts import make_candidate, make_node, make_question

SETTINGS = PolicySettings()
DECODE_0 = NodeName("decode-0")


def test_rested_drops_the_engine_that_has_just_failed_this_request() -> None:
    question = make_question(avoid=[make_identity("decode-0")])
    candidates = [make_candidate(), make_candidate("decode-1")]
    assert list(filters.rested(candidates, question, SETTINGS)) == ["decode-0"]
    assert filters.rested(candidates, make_question(), SETTINGS) == {}


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"blocks": 100}, None),
        ({"blocks": 101}, "101 blocks wanted, 100 unpromised"),
        ({"sequence_count": 15}, None),
        ({"sequence_count": 16}, "it runs 16 sequences, its most"),
    ],
)
def test_fits_counts_blocks_and_sequences(fields: dict[str, Any], why: str | None) -> None:
    dropped = filters.fits([make_candidate(**fields)], make_question(), SETTINGS)
    assert dropped.get(DECODE_0) == why


@pytest.mark.parametrize(("tokens", "is_dropped"), [(1600, False), (1601, True)])
def test_holds_longest_wants_the_whole_sequence_to_fit(tokens: int, is_dropped: bool) -> None:
    dropped = filters.holds_longest(
        [make_candidate(token_count_max=tokens)], make_question(), SETTINGS
    )
    assert bool(dropped) == is_dropped


@pytest.mark.parametrize(
    ("held", "is_dropped"),
    [(None, False), ({"decode-0": 2}, True), ({"decode-0": 3}, False), ({"decode-1": 0}, False)],
)
def test_unheld_leaves_kept_room_alone(held: Any, is_dropped: bool) -> None:
    dropped = filters.unheld([make_candidate()], make_question(held=held), SETTINGS)
    assert bool(dropped) == is_dropped


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
    candidate = make_candidate(node=busy(blocks=blocks, claim=claim), blocks=own, claim=own_claim)
    assert bool(filters.headroom([candidate], make_question(), SETTINGS)) == is_dropped


def test_headroom_lets_the_first_one_have_a_whole_node() -> None:
    candidate = make_candidate(blocks=95, claim=100)
    assert filters.headroom([candidate], make_question(), SETTINGS) == {}


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
    candidate = make_candidate(node=busy(blocks=held, claim=held, is_long=True), blocks=own)
    question = make_question(is_long=is_long)
    assert bool(filters.large_share([candidate], question, SETTINGS)) == is_dropped


def test_large_share_bounds_their_number_too() -> None:
    node = make_node(max_num_seqs=4)
    for index in range(3):
        node.lease(RequestId(f"x{index}"), blocks=1, queued_tokens=0, is_long=True)
    question = make_question(is_long=True)
    assert filters.large_share([make_candidate(node=node)], question, SETTINGS)
    assert not filters.large_share([make_candidate(node=node)], make_question(), SETTINGS)


def test_a_large_one_may_have_a_node_without_others_for_itself() -> None:
    candidate = make_candidate(blocks=100)
    assert filters.large_share([candidate], make_question(is_long=True), SETTINGS) == {}


@pytest.mark.parametrize(("seconds", "is_dropped"), [(0.0, False), (2.0, False), (2.1, True)])
def test_inbound_bounds_what_is_on_its_way(seconds: float, is_dropped: bool) -> None:
    candidate = make_candidate(inbound_s=seconds)
    assert bool(filters.inbound([candidate], make_question(), SETTINGS)) == is_dropped


@pytest.mark.parametrize(
    ("load", "other_load", "is_dropped"),
    [(0.85, 0.0, False), (0.86, 0.0, True), (0.86, 0.85, True), (0.95, 0.9, False)],
)
def test_spill_drops_the_preferred_node_above_its_load_if_another_is_below(
    load: float, other_load: float, is_dropped: bool
) -> None:
    candidates = [
        make_candidate(load=load, preferred_blocks=8),
        make_candidate("decode-1", load=other_load),
    ]
    assert (DECODE_0 in filters.spill(candidates, make_question(), SETTINGS)) == is_dropped


def test_spill_concerns_only_the_key_that_prefers_the_node() -> None:
    candidates = [make_candidate(load=0.99), make_candidate("decode-1")]
    assert filters.spill(candidates, make_question(), SETTINGS) == {}
