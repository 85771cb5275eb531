"""The table of requests: what each thing that is said does to it, its bounds, and its bytes."""

import msgpack
import pytest

from pdd.cell.codec import CODEC, KINDS, Codec, HardEntry, SoftEntry
from pdd.cell.machine import CellMachine
from pdd.cell.sequences import (
    HOW_LOST,
    SOFT_CODEC,
    HolderLost,
    RowsAsked,
    SequenceTable,
    SoftOperation,
    encode_rows,
    size_bytes,
)
from tests.unit.cell.samples import EVERY_SOFT_OPERATION, ended, held

KEY = b"k" * 16


def table_of(*operations: SoftOperation, **bounds: int) -> SequenceTable:
    table = SequenceTable(**bounds)
    say(table, *operations)
    return table


def say(table: SequenceTable, *operations: SoftOperation) -> None:
    entry = CODEC.decode(encode_rows(operations))
    assert isinstance(entry, SoftEntry)
    table.apply(entry.data)


@pytest.mark.parametrize("operation", EVERY_SOFT_OPERATION, ids=lambda one: type(one).__name__)
def test_every_operation_comes_back_as_it_was_and_as_large_as_told(
    operation: SoftOperation,
) -> None:
    data = SOFT_CODEC.encode([operation])
    assert SOFT_CODEC.decode(data) == HardEntry(operations=(operation,))
    assert len(data) <= size_bytes(operation)


def test_a_request_is_where_its_holder_said_last() -> None:
    table = table_of(held(), held(generation=1, decode="decode-1"))
    row = table.get("r-1")
    assert row is not None
    assert (row.holder, row.decode, row.generation, row.ended) == (
        *("scheduler-0", "decode-1"),
        *(1, ""),
    )
    assert table.get("r-2") is None


def test_an_ended_request_is_remembered_with_its_key() -> None:
    table = table_of(held(key=KEY), ended())
    row = table.get("r-1")
    assert row is not None
    assert (row.ended, row.at_ms, table.running_count) == ("finished", 9, 0)
    assert table.holder_of(KEY) == "scheduler-0"


def test_a_former_holder_cannot_end_what_another_one_has() -> None:
    table = table_of(held(), held(holder="scheduler-1"), ended(holder="scheduler-0"))
    row = table.get("r-1")
    assert row is not None
    assert (row.holder, row.ended) == ("scheduler-1", "")


def test_a_key_belongs_to_the_latest_request_of_that_name() -> None:
    table = table_of(held("r-1", key=KEY), held("r-2", holder="scheduler-1", key=KEY))
    assert table.holder_of(KEY) == "scheduler-1"
    assert table.holder_of(b"other") is None


def test_requests_of_a_lost_scheduler_are_adrift_and_then_ended() -> None:
    table = table_of(held("r-1"), held("r-2", holder="scheduler-1"))
    say(table, HolderLost(holder="scheduler-0", is_final=False, at_ms=5))
    assert {name: table.get(name).is_adrift for name in ("r-1", "r-2")} == {  # type: ignore[union-attr]
        "r-1": True,
        "r-2": False,
    }
    say(table, HolderLost(holder="scheduler-0", is_final=True, at_ms=6))
    assert table.get("r-1").ended == HOW_LOST  # type: ignore[union-attr]
    assert table.get("r-2").ended == ""  # type: ignore[union-attr]


def test_one_that_was_taken_over_is_adrift_no_longer() -> None:
    lost = HolderLost(holder="scheduler-0", is_final=False, at_ms=5)
    table = table_of(held(), lost, held(holder="scheduler-1"))
    say(table, HolderLost(holder="scheduler-0", is_final=True, at_ms=6))
    row = table.get("r-1")
    assert row is not None
    assert (row.is_adrift, row.ended) == (False, "")


def test_what_a_scheduler_has_said_again_is_not_over_with_the_rest() -> None:
    lost = HolderLost(holder="scheduler-0", is_final=False, at_ms=5)
    table = table_of(held("r-1"), held("r-2"), lost, held("r-2"))
    say(table, HolderLost(holder="scheduler-0", is_final=True, at_ms=6))
    assert table.get("r-1").ended == HOW_LOST  # type: ignore[union-attr]
    assert table.get("r-2").ended == ""  # type: ignore[union-attr]


def test_beyond_the_bound_what_was_said_longest_ago_is_forgotten_and_counted() -> None:
    table = table_of(held("a", key=KEY), held("b"), held("a", key=KEY), running_max=2)
    say(table, held("c"))
    assert (table.get("b"), table.forgotten_count) == (None, 1)
    say(table, held("d"))
    assert (table.get("a"), table.holder_of(KEY), table.running_count) == (None, None, 2)


def test_of_ended_requests_the_oldest_is_forgotten_first() -> None:
    table = table_of(ended_max=2)
    for name in ("a", "b", "c"):
        say(table, held(name, key=name.encode()), ended(name))
    assert table.get("a") is None
    assert table.holder_of(b"a") is None
    assert table.holder_of(b"c") == "scheduler-0"
    assert len(table) == 2


def test_who_asks_for_everything_is_told_once() -> None:
    table = table_of(RowsAsked(by="scheduler-1"), RowsAsked(by="scheduler-2"))
    assert table.take_asked() == ["scheduler-1", "scheduler-2"]
    assert table.take_asked() == []


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        msgpack.packb([99, 1, []]),
        msgpack.packb([1, 1, [[77]]]),
        msgpack.packb([1, 1, [[1, "r", "s", "t", b"k" * 17, 0, "p", "d", 0]]]),
        msgpack.packb([1, 1, [[2, "r", "s", "finished", 1], [4, 5]]]),
    ],
)
def test_what_cannot_be_read_changes_nothing_as_a_whole(data: bytes) -> None:
    table = table_of(held("r"))
    table.apply(data)
    assert table.get("r").ended == ""  # type: ignore[union-attr]


def test_the_release_that_knows_no_rows_passes_them_by_and_agrees_on_the_rest() -> None:
    before_rows = Codec(KINDS, version=CODEC.version)
    written = encode_rows(EVERY_SOFT_OPERATION)
    assert isinstance(before_rows.decode(written), SoftEntry)
    assert isinstance(Codec({}, version=1).decode(written), SoftEntry)
    plain, keeping = CellMachine(), CellMachine(soft=SequenceTable())
    assert plain.apply(1, written) == keeping.apply(1, written) == b""
    assert plain.snapshot() == keeping.snapshot()
    assert plain.state_hash() == keeping.state_hash()
