"""The life of a sequence record."""

import pytest

from pdd.directory.entries import (
    NodeLife,
    SequenceAdvanced,
    SequenceEnded,
    SequenceGrew,
    SequenceStarted,
    SequenceTakenOver,
)
from pdd.directory.sequences import SequenceTable
from pdd.directory.status import Status


def make_table(*, bound: int = 10) -> SequenceTable:
    return SequenceTable(max_sequence_count=bound)


def started(
    request: str = "r", *, ticket: str = "t1", prefill: NodeLife | None = ("p", 1)
) -> SequenceStarted:
    return SequenceStarted(
        request_id=request,
        ticket=ticket,
        prefill=prefill,
        decode=("d", 1),
        rank_blocks=((1,), (11,)),
    )


def test_the_prefill_node_owns_a_sequence_until_the_decode_node_takes_over() -> None:
    table = make_table()
    assert table.apply(started(), leader_time_ms=5) is Status.APPLIED
    record = table.get("r")
    assert record is not None
    assert (record.owner_life, record.started_at_ms) == (("p", 1), 5)
    taken = SequenceTakenOver(request_id="r", ticket="t1")
    assert table.apply(taken, leader_time_ms=6) is Status.APPLIED
    assert table.apply(taken, leader_time_ms=7) is Status.DUPLICATE
    record = table.get("r")
    assert record is not None
    assert record.owner_life == ("d", 1)


def test_blocks_are_appended_per_rank() -> None:
    table = make_table()
    table.apply(started(), leader_time_ms=0)
    grew = SequenceGrew(request_id="r", ticket="t1", rank_blocks=((2, 3), (12, 13)))
    assert table.apply(grew, leader_time_ms=0) is Status.APPLIED
    record = table.get("r")
    assert record is not None
    assert record.rank_blocks == ((1, 2, 3), (11, 12, 13))
    other_ranks = SequenceGrew(request_id="r", ticket="t1", rank_blocks=((4,),))
    assert table.apply(other_ranks, leader_time_ms=0) is Status.STALE


def test_a_watermark_only_rises() -> None:
    table = make_table()
    table.apply(started(), leader_time_ms=0)
    for tokens, expected in ((9, Status.APPLIED), (9, Status.DUPLICATE), (4, Status.DUPLICATE)):
        advanced = SequenceAdvanced(request_id="r", watermark_tokens=tokens)
        assert table.apply(advanced, leader_time_ms=0) is expected
    record = table.get("r")
    assert record is not None
    assert record.watermark_tokens == 9


@pytest.mark.parametrize(
    "late",
    [
        SequenceTakenOver(request_id="r", ticket="t1"),
        SequenceGrew(request_id="r", ticket="t1", rank_blocks=((2,), (3,))),
    ],
)
def test_what_belongs_to_a_former_ticket_changes_nothing(
    late: SequenceTakenOver | SequenceGrew,
) -> None:
    table = make_table()
    table.apply(started(), leader_time_ms=1)
    table.apply(SequenceAdvanced(request_id="r", watermark_tokens=7), leader_time_ms=2)
    assert table.apply(started(), leader_time_ms=3) is Status.DUPLICATE
    assert table.apply(started(ticket="t2"), leader_time_ms=3) is Status.APPLIED
    before = table.hash
    assert table.apply(late, leader_time_ms=4) is Status.STALE
    assert table.hash == before
    record = table.get("r")
    assert record is not None
    # A new placement keeps what the client has already seen.
    assert (record.watermark_tokens, record.started_at_ms) == (7, 1)


def test_a_dead_owner_leaves_no_owner_and_a_dead_other_side_leaves_the_owner() -> None:
    table = make_table()
    table.apply(started("owned"), leader_time_ms=0)
    table.apply(started("handed over"), leader_time_ms=0)
    table.apply(SequenceTakenOver(request_id="handed over", ticket="t1"), leader_time_ms=0)
    table.end_life("p")
    assert [record.request_id for record in table.without_owner()] == ["owned"]
    table.end_life("d")
    assert {record.request_id for record in table.without_owner()} == {"owned", "handed over"}
    assert table.on_node("p") == table.on_node("d") == []
    late = SequenceTakenOver(request_id="owned", ticket="t1")
    assert table.apply(late, leader_time_ms=0) is Status.STALE


def test_an_ended_sequence_is_gone_and_ending_it_again_is_harmless() -> None:
    table = make_table()
    empty = table.hash
    table.apply(started(), leader_time_ms=0)
    assert table.hash != empty
    assert table.apply(SequenceEnded(request_id="r"), leader_time_ms=0) is Status.APPLIED
    assert table.apply(SequenceEnded(request_id="r"), leader_time_ms=0) is Status.UNKNOWN
    assert (table.get("r"), table.on_node("d"), table.hash) == (None, [], empty)


def test_one_more_than_the_bound_is_refused_until_another_ends() -> None:
    table = make_table(bound=1)
    table.apply(started("a"), leader_time_ms=0)
    assert table.apply(started("b"), leader_time_ms=0) is Status.FULL
    table.apply(SequenceEnded(request_id="a"), leader_time_ms=0)
    assert table.apply(started("b"), leader_time_ms=0) is Status.APPLIED
