"""Bytes cut and flipped at every offset: what opens is a prefix with everything synced, or nothing
opens at all."""

from __future__ import annotations

import random

import pytest

from pdd.raft.values import Entry, EntryKind, HardState, NodeId, SnapshotMeta
from pdd.replication.batch import Batch, Marker, MarkerKind, StorageIdentity
from pdd.replication.errors import StorageError
from pdd.replication.replay import Recovered
from pdd.replication.segment import segment_name
from pdd.replication.wal import Wal, create_wal, open_wal, segment_sequences
from tests.simulation.raft.filesystem import SimFile, SimFileSystem

IDENTITY = StorageIdentity(cluster_id="c", node=NodeId("s0"), voters_hash=b"12345678")
SEGMENT_BYTES = 2_048


def filled(*, unsynced_tail: bool) -> tuple[SimFileSystem, list[Entry]]:
    """Three segments: entries, replaced entries, a snapshot marker; and perhaps a last record that
    was written and not synced. ``(disk, the synced entries)``."""
    rng = random.Random(5)
    files = SimFileSystem()
    wal = create_wal(
        files,
        IDENTITY,
        hard_state=HardState(term=0, vote=None, commit_index=0),
        segment_bytes=SEGMENT_BYTES,
    )
    kept: list[Entry] = []
    index = 0
    while len(segment_sequences(files)) < 3 or index % 7:
        index += 1
        data = rng.choice((b"", b"short", rng.randbytes(300), bytes(700)))
        one = Entry(index=index, term=1, kind=EntryKind.COMMAND, data=data)
        _put(wal, one)
        kept.append(one)
    meta = SnapshotMeta(index=2, term=1)
    wal.write(Batch(marker=Marker(meta=meta, kind=MarkerKind.LOCAL)))
    wal.sync()
    replaced = Entry(index=index, term=2, kind=EntryKind.COMMAND, data=b"replaced")
    _put(wal, replaced)
    kept[-1] = replaced
    kept = kept[2:]
    if unsynced_tail:
        tail = Entry(index=index + 1, term=2, kind=EntryKind.COMMAND, data=rng.randbytes(600))
        wal.write(Batch(entries=[tail], hard_state=HardState(term=2, vote=None, commit_index=0)))
    return files, kept


def _put(wal: Wal, one: Entry) -> None:
    wal.write(Batch(entries=[one], hard_state=HardState(term=one.term, vote=None, commit_index=0)))
    wal.sync()


def copy_of(files: SimFileSystem) -> SimFileSystem:
    other = SimFileSystem()
    for name, file in files.files.items():
        twin = SimFile(other, len(file.content))
        twin.content[:] = file.content
        other.files[name] = twin
    return other


def opened(files: SimFileSystem) -> Recovered | None:
    """None when it refuses to start. Any exception but a StorageError fails the test."""
    try:
        _, recovered = open_wal(files, IDENTITY, segment_bytes=SEGMENT_BYTES)
    except StorageError:
        return None
    return recovered


def test_flipping_any_byte_loses_nothing_that_was_synced() -> None:
    files, synced = filled(unsynced_tail=False)
    refused = 0
    for sequence in segment_sequences(files):
        name = segment_name(sequence)
        for offset in range(SEGMENT_BYTES):
            damaged = copy_of(files)
            damaged.files[name].content[offset] ^= 1 << offset % 8
            recovered = opened(damaged)
            refused += recovered is None
            if recovered is not None:
                assert list(recovered.entries) == synced, f"{name} byte {offset}"
                assert recovered.hard_state.term == 2
    assert refused > SEGMENT_BYTES, "most flips hit records"


def test_flipping_any_byte_under_an_unsynced_tail_loses_nothing_that_was_synced() -> None:
    files, synced = filled(unsynced_tail=True)
    name = segment_name(segment_sequences(files)[-1])
    for offset in range(SEGMENT_BYTES):
        damaged = copy_of(files)
        damaged.files[name].content[offset] ^= 0x81
        recovered = opened(damaged)
        if recovered is not None:
            assert list(recovered.entries)[: len(synced)] == synced, f"byte {offset}"
            assert len(recovered.entries) <= len(synced) + 1


@pytest.mark.parametrize("unsynced_tail", [False, True])
def test_cutting_any_file_at_any_length_refuses_to_start(unsynced_tail: bool) -> None:
    """Segments are preallocated, so a shorter one has lost bytes, whatever they were."""
    files, _ = filled(unsynced_tail=unsynced_tail)
    for sequence in segment_sequences(files):
        name = segment_name(sequence)
        for length in range(SEGMENT_BYTES):
            damaged = copy_of(files)
            del damaged.files[name].content[length:]
            assert opened(damaged) is None, f"{name} cut to {length}"


def test_a_lost_tail_of_the_unsynced_record_is_cut_at_any_sector() -> None:
    files, synced = filled(unsynced_tail=True)
    name = segment_name(segment_sequences(files)[-1])
    whole = opened(copy_of(files))
    assert whole is not None
    assert len(whole.entries) == len(synced) + 1
    outcomes = set()
    written = len(bytes(files.files[name].content).rstrip(b"\x00"))
    start = written - 600
    for sector in range(start // 512 + 1, written // 512 + 1):
        damaged = copy_of(files)
        damaged.files[name].content[sector * 512 : (sector + 1) * 512] = bytes(512)
        recovered = opened(damaged)
        assert recovered is not None, f"sector {sector}"
        assert list(recovered.entries) == synced
        outcomes.add(sector)
    assert outcomes


def test_removing_any_segment_but_the_last_refuses_to_start() -> None:
    files, _ = filled(unsynced_tail=False)
    for sequence in segment_sequences(files)[:-1]:
        damaged = copy_of(files)
        del damaged.files[segment_name(sequence)]
        assert opened(damaged) is None


def test_swapping_two_segments_refuses_to_start() -> None:
    files, _ = filled(unsynced_tail=False)
    first, second = (segment_name(s) for s in segment_sequences(files)[:2])
    damaged = copy_of(files)
    damaged.files[first], damaged.files[second] = damaged.files[second], damaged.files[first]
    assert opened(damaged) is None
