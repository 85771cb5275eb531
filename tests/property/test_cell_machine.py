"""The cell's state machine: the same entries give the same state, in every process and shape."""

import os
import random
import subprocess
import sys
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from pdd.cell.codec import CODEC, EntryError, encode_operations
from pdd.cell.followed import FollowedDirectory
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
from pdd.directory.entries import BlockDelta, DirectoryEntry, SequenceStarted
from pdd.directory.machine import DirectoryMachine

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
soft = st.one_of(
    st.builds(
        BlockDelta,
        node=names,
        boot_epoch=epochs,
        first_sequence=st.just(1),
        last_sequence=st.integers(1, 5),
        stored=st.integers(1, 20).map(lambda seed: random.Random(seed).randbytes(16 * seed)),
    ),
    st.builds(
        SequenceStarted,
        request_id=words,
        ticket=words,
        prefill=st.none(),
        decode=st.tuples(names, epochs),
        rank_blocks=st.just((tuple(range(100)),)),
    ),
).map(lambda one: CODEC.encode_soft(DirectoryEntry(leader_time_ms=1, operations=(one,)).encode()))
entries = st.lists(hard | soft | st.binary(max_size=8), max_size=25)


def apply_all(machine: CellMachine, data: Sequence[bytes], *, first: int = 1) -> list[bytes]:
    return [machine.apply(first + place, entry) for place, entry in enumerate(data)]


def keeper() -> CellMachine:
    return CellMachine(soft=FollowedDirectory(lambda: DirectoryMachine(max_key_count=1000)))


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
