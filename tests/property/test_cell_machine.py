"""The cell's state machine: the same entries give the same state, in every process and shape."""

import os
import subprocess
import sys
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from pdd.cell.codec import CODEC, EntryError, encode_operations
from pdd.cell.machine import CellMachine
from pdd.cell.operations import (
    Cordoned,
    MemberJoined,
    MemberLeft,
    Operation,
    OverrideRemoved,
    OverrideSet,
    QuotaRemoved,
    QuotaSet,
    RoleReleased,
    RoleSet,
    Uncordoned,
)
from pdd.cell.sequences import (
    HOW_LOST,
    HolderLost,
    RowsAsked,
    SequenceEnded,
    SequenceHeld,
    SequenceTable,
    SoftOperation,
    encode_rows,
)

names = st.sampled_from(["decode-0", "decode-1", "prefill-0"])
uuids = st.sampled_from(["u-1", "u-2"])
epochs = st.integers(1, 4)
words = st.sampled_from(["", "a", "b"])
limits = st.none() | st.integers(0, 3)
operations: st.SearchStrategy[Operation] = st.one_of(
    st.builds(
        MemberJoined,
        node=names,
        uuid=uuids,
        boot_epoch=epochs,
        role=words,
        address=words,
        block_count=st.integers(1, 9),
    ),
    st.builds(MemberLeft, node=names, uuid=uuids, boot_epoch=epochs),
    st.builds(Cordoned, node=names, message=words, is_drain=st.booleans(), at_ms=st.integers(0, 9)),
    st.builds(Uncordoned, node=names),
    st.builds(OverrideSet, key=words, value=words),
    st.builds(OverrideRemoved, key=words),
    st.builds(QuotaSet, tenant=words, running_requests_max=limits, tokens_per_minute_max=limits),
    st.builds(QuotaRemoved, tenant=words),
    st.builds(
        RoleSet,
        node=names,
        role=words,
        is_by_hand=st.booleans(),
        message=words,
        at_ms=st.integers(0, 9),
    ),
    st.builds(RoleReleased, node=names),
)
hard = st.lists(operations, max_size=4).map(lambda said: encode_operations(*said))
request_ids = st.sampled_from(["r-1", "r-2", "r-3"])
holders = st.sampled_from(["s-0", "s-1"])
times = st.integers(0, 9)
rows: st.SearchStrategy[SoftOperation] = st.one_of(
    st.builds(
        SequenceHeld,
        request_id=request_ids,
        holder=holders,
        tenant=words,
        key=st.sampled_from([b"", b"k", b"l"]),
        generation=st.integers(0, 3),
        prefill=names,
        decode=names,
        at_ms=times,
    ),
    st.builds(
        SequenceEnded, request_id=request_ids, holder=holders, how=st.just("done"), at_ms=times
    ),
    st.builds(HolderLost, holder=holders, is_final=st.booleans(), at_ms=times),
    st.builds(RowsAsked, by=holders),
)
soft = st.lists(rows, max_size=4).map(encode_rows)
entries = st.lists(hard | soft | st.binary(max_size=8), max_size=25)


def apply_all(machine: CellMachine, data: Sequence[bytes], *, first: int = 1) -> list[bytes]:
    return [machine.apply(first + place, entry) for place, entry in enumerate(data)]


def keeper() -> CellMachine:
    return CellMachine(soft=SequenceTable(running_max=2, ended_max=1))


@settings(deadline=None, derandomize=True, max_examples=150)
@given(data=entries, cut=st.integers(0, 25))
def test_a_replica_restored_in_the_middle_ends_like_one_that_never_stopped(
    data: list[bytes], cut: int
) -> None:
    cut = min(cut, len(data))
    steady, restored = keeper(), keeper()
    results = apply_all(steady, data)
    donor = CellMachine()
    apply_all(donor, data[:cut])
    restored.restore(donor.snapshot())
    assert apply_all(restored, data[cut:], first=cut + 1) == results[cut:]
    assert restored.state_hash() == steady.state_hash()
    assert restored.snapshot() == steady.snapshot()


@settings(deadline=None, derandomize=True, max_examples=150)
@given(data=entries)
def test_the_hash_that_follows_changes_is_the_hash_of_the_rows(data: list[bytes]) -> None:
    machine = CellMachine()
    apply_all(machine, data)
    fresh = CellMachine()
    fresh.restore(machine.snapshot())
    assert fresh.state_hash() == machine.state_hash()


@settings(deadline=None, derandomize=True, max_examples=150)
@given(data=st.lists(hard, min_size=1, max_size=10), extra=st.lists(soft, max_size=20))
def test_soft_entries_leave_no_byte_in_a_snapshot(data: list[bytes], extra: list[bytes]) -> None:
    machine, without = keeper(), keeper()
    apply_all(without, data)
    apply_all(machine, data)
    apply_all(machine, extra, first=len(data) + 1)
    assert machine.snapshot() == without.snapshot()
    assert machine.state_hash() == without.state_hash()


def told(table: SequenceTable) -> dict[str, tuple[str, str, bool, int] | None]:
    found = {name: table.get(name) for name in ("r-1", "r-2", "r-3")}
    return {
        name: row and (row.holder, row.ended, row.is_adrift, row.generation)
        for name, row in found.items()
    }


@settings(deadline=None, derandomize=True, max_examples=300)
@given(said=st.lists(rows, max_size=20), sizes=st.lists(st.integers(1, 5), max_size=20))
def test_the_table_is_what_a_dumb_one_says_however_the_batches_are_cut(
    said: list[SoftOperation], sizes: list[int]
) -> None:
    table, dumb = SequenceTable(), dict[str, tuple[str, str, bool, int]]()
    for one in said:
        if isinstance(one, SequenceHeld):
            dumb[one.request_id] = (one.holder, "", False, one.generation)
        elif isinstance(one, SequenceEnded) and (row := dumb.get(one.request_id)) is not None:
            if row[:2] == (one.holder, ""):
                dumb[one.request_id] = (row[0], one.how, False, row[3])
        elif isinstance(one, HolderLost):
            for name, row in dumb.items():
                if row[:2] == (one.holder, "") and not one.is_final:
                    dumb[name] = (*row[:2], True, row[3])
                elif row[:3] == (one.holder, "", True):
                    dumb[name] = (row[0], HOW_LOST, False, row[3])
    machine, rest = CellMachine(soft=table), list(said)
    for size in [*sizes, *[1] * len(said)]:
        machine.apply(1, encode_rows(rest[:size]))
        del rest[:size]
    assert told(table) == {name: dumb.get(name) for name in ("r-1", "r-2", "r-3")}
    again = SequenceTable()  # the same log once more
    for one in said:
        CellMachine(soft=again).apply(1, encode_rows([one]))
    assert told(again) == told(table)


@settings(deadline=None, derandomize=True, max_examples=200)
@given(said=st.lists(rows, max_size=30))
def test_whatever_is_said_the_table_keeps_its_bounds_and_finds_only_what_it_has(
    said: list[SoftOperation],
) -> None:
    table = SequenceTable(running_max=2, ended_max=1)
    for one in said:
        CellMachine(soft=table).apply(1, encode_rows([one]))
        assert table.running_count <= 2
        assert len(table) <= 3
        for key in (b"k", b"l"):
            holder = table.holder_of(key)
            having = [r for n in ("r-1", "r-2", "r-3") if (r := table.get(n)) and r.key == key]
            assert holder is None or holder in [row.holder for row in having]


@settings(deadline=None, derandomize=True, max_examples=300)
@given(data=st.binary(max_size=60))
def test_the_decoder_raises_nothing_but_its_own_error(data: bytes) -> None:
    try:
        CODEC.decode(data)
    except EntryError:
        return


SCRIPT = """
from pdd.cell.codec import encode_operations
from pdd.cell.machine import CellMachine
from pdd.cell.operations import Cordoned, MemberJoined, OverrideSet, QuotaSet
machine = CellMachine()
for index in range(1, 200):
    name = f"n-{index * 7919 % 101}"
    machine.apply(index, encode_operations(
        MemberJoined(node=name, uuid="u", boot_epoch=index, role="decode", address="a",
                     block_count=index),
        Cordoned(node=name, message="", is_drain=index % 2 == 0, at_ms=index),
        OverrideSet(key=name, value=str(index)),
        QuotaSet(tenant=name, running_requests_max=index, tokens_per_minute_max=None),
    ))
print(machine.state_hash().hex(), machine.snapshot().hex())
"""


def test_processes_with_other_hash_seeds_come_to_the_same_bytes() -> None:
    outputs = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1
