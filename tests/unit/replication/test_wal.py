"""The write-ahead log on a simulated disk: what survives, what is cut, what refuses to start."""

from __future__ import annotations

import contextlib
import random

import pytest

from pdd.raft.values import Entry, EntryKind, HardState, NodeId, SnapshotMeta
from pdd.replication.batch import Batch, Marker, MarkerKind, StorageIdentity
from pdd.replication.errors import (
    DamagedError,
    ForeignStorageError,
    StorageFailedError,
    StorageVersionError,
)
from pdd.replication.record import SECTOR_BYTES
from pdd.replication.replay import Recovered
from pdd.replication.segment import segment_name
from pdd.replication.wal import Wal, create_wal, open_wal, segment_sequences
from tests.simulation.raft.filesystem import PowerCut, SimFileSystem

IDENTITY = StorageIdentity(cluster_id="c", node=NodeId("s0"), voters_hash=b"12345678")
SEGMENT_BYTES = 4096


def entry(index: int, term: int = 1, data: bytes = b"x") -> Entry:
    return Entry(index=index, term=term, kind=EntryKind.COMMAND, data=data)


def hard_state(term: int = 1, vote: str | None = None, commit_index: int = 0) -> HardState:
    return HardState(term=term, vote=NodeId(vote) if vote else None, commit_index=commit_index)


def new_wal(segment_bytes: int = SEGMENT_BYTES) -> tuple[SimFileSystem, Wal]:
    files = SimFileSystem()
    return files, create_wal(
        files, IDENTITY, hard_state=hard_state(term=0), segment_bytes=segment_bytes
    )


def put(wal: Wal, *entries: Entry, term: int = 1) -> None:
    wal.write(Batch(entries=entries, hard_state=hard_state(term)))
    wal.sync()


def reopen(files: SimFileSystem, segment_bytes: int = SEGMENT_BYTES) -> tuple[Wal, Recovered]:
    return open_wal(files, IDENTITY, segment_bytes=segment_bytes)


def content_of(files: SimFileSystem, sequence: int) -> bytearray:
    return files.files[segment_name(sequence)].content


def used_bytes(files: SimFileSystem, sequence: int) -> int:
    return len(bytes(content_of(files, sequence)).rstrip(b"\x00"))


def test_what_was_synced_comes_back() -> None:
    files, wal = new_wal()
    put(wal, entry(1), entry(2))
    wal.write(Batch(hard_state=hard_state(5, "s2")))
    wal.sync()
    put(wal, entry(3, term=5), term=5)
    _, recovered = reopen(files)
    assert recovered.entries == [entry(1), entry(2), entry(3, term=5)]
    assert recovered.hard_state == hard_state(5)


def test_a_later_entry_of_the_same_index_replaces_it_and_all_after_it() -> None:
    files, wal = new_wal()
    put(wal, entry(1), entry(2), entry(3))
    put(wal, entry(2, term=2), term=2)
    _, recovered = reopen(files)
    assert recovered.entries == [entry(1), entry(2, term=2)]


def test_writing_goes_on_after_a_reopening() -> None:
    files, wal = new_wal()
    put(wal, entry(1))
    wal, _ = reopen(files)
    put(wal, entry(2))
    _, recovered = reopen(files)
    assert recovered.entries == [entry(1), entry(2)]


def test_the_log_rolls_over_segments_and_reads_them_all() -> None:
    files, wal = new_wal(segment_bytes=512)
    for index in range(1, 50):
        put(wal, entry(index, data=bytes([index]) * 20))
    assert len(segment_sequences(files)) > 3
    _, recovered = reopen(files, segment_bytes=512)
    assert [e.index for e in recovered.entries] == list(range(1, 50))


def test_a_batch_larger_than_a_segment_gets_a_larger_segment() -> None:
    files, wal = new_wal(segment_bytes=512)
    big = entry(1, data=random.Random(1).randbytes(5_000))
    put(wal, big)
    put(wal, entry(2))
    _, recovered = reopen(files, segment_bytes=512)
    assert recovered.entries == [big, entry(2)]


def test_segments_that_a_snapshot_covers_are_dropped_and_no_others() -> None:
    files, wal = new_wal(segment_bytes=512)
    for index in range(1, 31):
        put(wal, entry(index, data=bytes(20)))
    before = segment_sequences(files)
    meta = SnapshotMeta(index=20, term=1)
    wal.write(Batch(marker=Marker(meta=meta, kind=MarkerKind.LOCAL)))
    wal.sync()
    wal.drop_covered()
    assert segment_sequences(files)[0] > before[0]
    _, recovered = reopen(files, segment_bytes=512)
    assert recovered.snapshot == meta
    assert [e.index for e in recovered.entries] == list(range(21, 31))


def test_an_installed_snapshot_voids_the_log_before_it() -> None:
    files, wal = new_wal()
    put(wal, entry(1), entry(2), entry(3))
    meta = SnapshotMeta(index=2, term=9)
    wal.write(
        Batch(
            marker=Marker(meta=meta, kind=MarkerKind.INSTALLED),
            entries=[entry(3, term=9)],
            hard_state=hard_state(9),
        )
    )
    wal.sync()
    _, recovered = reopen(files)
    assert recovered.snapshot == meta
    assert recovered.entries == [entry(3, term=9)]


def test_a_vote_outlives_the_segment_it_was_written_to() -> None:
    files, wal = new_wal(segment_bytes=512)
    put(wal, entry(1))
    wal.write(Batch(hard_state=hard_state(7, "s2")))
    wal.sync()
    # Markers alone fill segments; the one with the vote is dropped.
    for _ in range(40):
        marker = Marker(meta=SnapshotMeta(index=1, term=1), kind=MarkerKind.LOCAL)
        wal.write(Batch(marker=marker))
        wal.sync()
        wal.drop_covered()
    assert segment_sequences(files)[0] > 1
    _, recovered = reopen(files, segment_bytes=512)
    assert recovered.hard_state == hard_state(7, "s2")


def test_an_unsynced_record_is_there_whole_or_not_at_all() -> None:
    outcomes = set()
    for seed in range(60):
        files, wal = new_wal()
        put(wal, entry(1))
        wal.write(Batch(entries=[entry(2, data=bytes(range(256)) * 6)], hard_state=hard_state()))
        files.crash(random.Random(seed))
        wal, recovered = reopen(files)
        assert recovered.entries[0] == entry(1)
        outcomes.add(len(recovered.entries))
        put(wal, entry(len(recovered.entries) + 1, data=b"after"))
        _, again = reopen(files)
        assert again.entries[-1].data == b"after"
    assert outcomes == {1, 2}, "both outcomes must have been played"


def test_a_torn_record_that_was_cut_leaves_no_trace_for_later_records() -> None:
    """Its sectors beyond the cut must not look like a later record's."""
    for seed in range(40):
        files, wal = new_wal()
        put(wal, entry(1))
        wal.write(Batch(entries=[entry(2, data=bytes(range(256)) * 8)], hard_state=hard_state()))
        files.crash(random.Random(seed))
        wal, recovered = reopen(files)
        kept = len(recovered.entries)
        put(wal, entry(kept + 1, data=b"short"))
        _, again = reopen(files)
        assert len(again.entries) == kept + 1


def test_a_flipped_bit_in_the_last_record_is_damage_not_a_torn_write() -> None:
    files, wal = new_wal()
    put(wal, entry(1))
    put(wal, entry(2, data=bytes(range(256)) * 4))
    content_of(files, 1)[used_bytes(files, 1) - 700] ^= 1
    with pytest.raises(DamagedError, match="checksum"):
        reopen(files)


def test_a_lost_sector_before_a_later_record_is_damage_not_a_torn_write() -> None:
    files, wal = new_wal()
    put(wal, entry(1, data=bytes(range(256)) * 8))
    put(wal, entry(2))
    content_of(files, 1)[2 * SECTOR_BYTES : 3 * SECTOR_BYTES] = bytes(SECTOR_BYTES)
    with pytest.raises(DamagedError, match="a record follows"):
        reopen(files)


def test_a_payload_of_zeros_is_not_taken_for_a_torn_write() -> None:
    files, wal = new_wal()
    put(wal, entry(1))
    put(wal, entry(2, data=bytes(3 * SECTOR_BYTES)))
    _, recovered = reopen(files)
    assert recovered.entries[1].data == bytes(3 * SECTOR_BYTES)
    content_of(files, 1)[used_bytes(files, 1) - 3] ^= 1  # inside the record's last bytes
    with pytest.raises(DamagedError):
        reopen(files)


def test_a_cut_file_is_damage() -> None:
    files, wal = new_wal()
    put(wal, entry(1))
    del content_of(files, 1)[1000:]
    with pytest.raises(DamagedError, match=f"1000 bytes long instead of {SEGMENT_BYTES}"):
        reopen(files)


def test_a_missing_segment_between_others_is_damage() -> None:
    files, wal = new_wal(segment_bytes=512)
    for index in range(1, 30):
        put(wal, entry(index, data=bytes(20)))
    del files.files[segment_name(2)]
    with pytest.raises(DamagedError, match="missing"):
        reopen(files, segment_bytes=512)


def test_a_closed_segment_that_lost_its_tail_is_damage() -> None:
    files, wal = new_wal(segment_bytes=512)
    for index in range(1, 30):
        put(wal, entry(index, data=bytes([index]) * 20))
    content = content_of(files, 1)
    last_record_start = used_bytes(files, 1) // 16 * 16 - 4 * 16
    content[last_record_start:] = bytes(len(content) - last_record_start)
    with pytest.raises(DamagedError):
        reopen(files, segment_bytes=512)


def test_the_message_says_where_what_and_what_to_do() -> None:
    files, wal = new_wal()
    put(wal, entry(1))
    content_of(files, 1)[used_bytes(files, 1) - 4] ^= 255
    with pytest.raises(DamagedError) as caught:
        reopen(files)
    text = str(caught.value)
    assert segment_name(1) in text
    assert "byte" in text
    assert "do not delete it and start empty" in text
    assert "replace this replica offline" in text


def test_a_log_of_another_replica_cluster_or_voter_set_is_refused() -> None:
    files, wal = new_wal()
    put(wal, entry(1))
    for other in (
        StorageIdentity(cluster_id="d", node=NodeId("s0"), voters_hash=b"12345678"),
        StorageIdentity(cluster_id="c", node=NodeId("s1"), voters_hash=b"12345678"),
        StorageIdentity(cluster_id="c", node=NodeId("s0"), voters_hash=b"87654321"),
    ):
        with pytest.raises(ForeignStorageError, match="belongs to replica 's0' of cluster 'c'"):
            open_wal(files, other, segment_bytes=SEGMENT_BYTES)


def test_a_log_of_another_format_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pdd.replication.batch.FORMAT", 2)
    files, _ = new_wal()
    monkeypatch.undo()
    with pytest.raises(StorageVersionError, match="WAL format 2; this release reads 1"):
        reopen(files)


def test_after_a_failed_fsync_the_log_refuses_everything() -> None:
    files, wal = new_wal()
    put(wal, entry(1))
    files.failing = "fsync"
    wal.write(Batch(entries=[entry(2)], hard_state=hard_state()))
    with pytest.raises(StorageFailedError, match="fsync"):
        wal.sync()
    files.failing = None  # the disk claims to be well again
    for call in (wal.sync, lambda: wal.write(Batch(entries=[entry(3)])), wal.drop_covered):
        with pytest.raises(StorageFailedError, match="failed before"):
            call()


def test_after_a_failed_write_the_log_refuses_everything() -> None:
    files, wal = new_wal()
    files.failing = "write"
    with pytest.raises(StorageFailedError):
        wal.write(Batch(entries=[entry(1)], hard_state=hard_state()))
    files.failing = None
    with pytest.raises(StorageFailedError, match="failed before"):
        wal.sync()


def test_power_cut_at_any_call_of_a_roll_leaves_a_log_that_opens() -> None:
    for fuse in range(30):
        files, wal = new_wal(segment_bytes=512)
        synced = 0
        files.fuse = fuse
        with contextlib.suppress(PowerCut):
            for index in range(1, 20):
                put(wal, entry(index, data=bytes([index]) * 60))
                synced = index
        files.crash(random.Random(fuse))
        _, recovered = reopen(files, segment_bytes=512)
        assert synced <= len(recovered.entries) <= synced + 1
