"""WAL and snapshot files together, on the simulated disk and on the real one."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
from pathlib import Path

import pytest

from pdd.raft.config import RaftConfig
from pdd.raft.ready import Ready
from pdd.raft.state import Role
from pdd.raft.values import Entry, EntryKind, HardState, NodeId, Snapshot, SnapshotMeta
from pdd.replication.errors import DamagedError, StorageFailedError, StorageMissingError
from pdd.replication.filesystem import FileSystem, OsFileSystem
from pdd.replication.snapshots import is_snapshot, snapshot_name
from pdd.replication.storage import Restart, Storage, open_storage
from tests.simulation.raft.filesystem import PowerCut, SimFileSystem

CONFIG = RaftConfig(node=NodeId("s0"), voters=(NodeId("s0"),), cluster_id="c")


def ready_with(
    *terms: int, first_index: int = 1, snapshot: Snapshot | None = None, commit_index: int = 0
) -> Ready:
    entries = [
        Entry(index=index, term=term, kind=EntryKind.COMMAND, data=b"data %d" % index)
        for index, term in enumerate(terms, start=first_index)
    ]
    return Ready(
        role=Role.FOLLOWER,
        term=max(terms, default=1),
        leader=None,
        early_messages=(),
        snapshot=snapshot,
        entries=entries,
        hard_state=HardState(term=max(terms, default=1), vote=None, commit_index=commit_index),
        must_sync=True,
        messages=(),
        committed=(),
        reads=(),
        aborted_reads=(),
        divergence=None,
    )


def start(files: FileSystem, *, may_create: bool = True) -> tuple[Storage, Restart]:
    return open_storage(files, CONFIG, may_create=may_create, segment_bytes=4096)


def persist(storage: Storage, ready: Ready) -> None:
    storage.write(ready)
    storage.sync()


def snapshot_at(index: int, term: int = 1, data: bytes = b"state") -> Snapshot:
    return Snapshot(meta=SnapshotMeta(index=index, term=term), data=data)


def test_a_first_start_is_empty_and_must_be_allowed() -> None:
    files = SimFileSystem()
    with pytest.raises(StorageMissingError, match=r"raft init.*do not delete it and start"):
        start(files, may_create=False)
    _, restart = start(files)
    assert (restart.snapshot, list(restart.entries)) == (None, [])
    _, again = start(files, may_create=False)
    assert again.hard_state.term == 0


def test_a_snapshot_without_a_log_is_damage_even_if_creating_is_allowed() -> None:
    files = SimFileSystem()
    storage, _ = start(files)
    persist(storage, ready_with(1, 1, 1))
    storage.save_snapshot(snapshot_at(2))
    for name in [n for n in files.files if not is_snapshot(n)]:
        del files.files[name]
    with pytest.raises(DamagedError, match="no WAL segment"):
        start(files)


def test_a_local_snapshot_comes_back_with_the_entries_after_it() -> None:
    files = SimFileSystem()
    storage, _ = start(files)
    persist(storage, ready_with(1, 1, 1))
    storage.save_snapshot(snapshot_at(2))
    _, restart = start(files)
    assert restart.snapshot == snapshot_at(2)
    assert [e.index for e in restart.entries] == [3]


def test_only_the_marked_snapshot_is_kept() -> None:
    files = SimFileSystem()
    storage, _ = start(files)
    persist(storage, ready_with(1, 1, 1, 1))
    for index in (1, 2, 4):
        storage.save_snapshot(snapshot_at(index))
    assert [n for n in files.names() if is_snapshot(n)] == [
        snapshot_name(SnapshotMeta(index=4, term=1))
    ]


def test_an_installed_snapshot_and_what_follows_it_are_one_write() -> None:
    for seed in range(30):
        files = SimFileSystem()
        storage, _ = start(files)
        persist(storage, ready_with(1, 1, 1))
        storage.write(ready_with(5, first_index=11, snapshot=snapshot_at(10, term=4)))
        files.crash(random.Random(seed))
        _, restart = start(files)
        if restart.snapshot is None:
            assert [e.index for e in restart.entries] == [1, 2, 3]
        else:
            assert restart.snapshot == snapshot_at(10, term=4)
            assert [e.index for e in restart.entries] == [11]


def test_a_power_cut_at_any_call_of_a_snapshot_loses_nothing() -> None:
    snapshots_found = set()
    for fuse in range(25):
        for seed in range(3):
            files = SimFileSystem()
            storage, _ = start(files)
            persist(storage, ready_with(1, 1, 1, 1))
            storage.save_snapshot(snapshot_at(1))
            files.fuse = fuse
            with contextlib.suppress(PowerCut):
                storage.save_snapshot(snapshot_at(3))
            files.crash(random.Random(seed))
            _, restart = start(files)
            assert restart.snapshot is not None
            index = restart.snapshot.meta.index
            snapshots_found.add(index)
            assert [e.index for e in restart.entries] == list(range(index + 1, 5))
    assert snapshots_found == {1, 3}, "both outcomes must have been played"


def test_a_local_snapshot_that_an_installed_one_overtook_is_forgotten() -> None:
    files = SimFileSystem()
    storage, _ = start(files)
    persist(storage, ready_with(1, 1, 1))
    storage.write_snapshot_file(snapshot_at(2))
    persist(storage, ready_with(4, first_index=11, snapshot=snapshot_at(10, term=4)))
    storage.mark_snapshot(SnapshotMeta(index=2, term=1))
    _, restart = start(files)
    assert restart.snapshot == snapshot_at(10, term=4)
    assert [e.index for e in restart.entries] == [11]


def test_a_missing_or_changed_snapshot_file_is_damage() -> None:
    files = SimFileSystem()
    storage, _ = start(files)
    persist(storage, ready_with(1, 1, 1))
    storage.save_snapshot(snapshot_at(2))
    name = snapshot_name(SnapshotMeta(index=2, term=1))
    whole = bytes(files.files[name].content)
    for position in range(len(whole)):
        files.files[name].content = bytearray(whole)
        files.files[name].content[position] ^= 64
        with pytest.raises(Exception, match=name) as caught:
            start(files)
        assert type(caught.value).__name__ in ("DamagedError", "StorageVersionError")
    for length in range(len(whole)):
        files.files[name].content = bytearray(whole[:length])
        with pytest.raises(DamagedError, match=name):
            start(files)
    del files.files[name]
    with pytest.raises(DamagedError, match="is missing"):
        start(files)


def test_the_real_file_system_keeps_what_was_written(tmp_path: Path) -> None:
    files = OsFileSystem(tmp_path / "raft")
    storage, _ = start(files)
    persist(storage, ready_with(1, 1, 1, commit_index=2))
    storage.save_snapshot(snapshot_at(2, data=os.urandom(3_000_000)))
    persist(storage, ready_with(2, 2, first_index=3))
    storage.close()
    storage, restart = start(files, may_create=False)
    storage.close()
    assert restart.snapshot is not None
    assert len(restart.snapshot.data) == 3_000_000
    assert [(e.index, e.term) for e in restart.entries] == [(3, 2), (4, 2)]
    assert restart.hard_state.term == 2
    assert (tmp_path / "raft").stat().st_mode & 0o077 == 0, "no other user may read the log"


def test_a_full_disk_when_a_segment_is_due_ends_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, _ = start(OsFileSystem(tmp_path))

    def fail(descriptor: int, offset_bytes: int, size_bytes: int) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "posix_fallocate", fail)
    big = ready_with(*[1] * 400)
    with pytest.raises(StorageFailedError, match=r"allocate .* bytes .*No space left"):
        persist(storage, big)
    monkeypatch.undo()
    with pytest.raises(StorageFailedError, match="failed before"):
        persist(storage, big)


@pytest.mark.parametrize("number", [5, 28], ids=["EIO", "ENOSPC"])
def test_an_error_of_the_disk_names_file_and_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    files = OsFileSystem(tmp_path)
    storage, _ = start(files)

    def fail(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fdatasync", fail)
    storage.write(ready_with(1))
    with pytest.raises(StorageFailedError, match=rf"wal-.*errno {number}.*start it again"):
        storage.sync()
    monkeypatch.undo()
    with pytest.raises(StorageFailedError, match="failed before"):
        storage.sync()
    storage.close()


@pytest.mark.parametrize("seed", range(20))
def test_a_write_that_is_called_quick_makes_no_file(seed: int) -> None:
    """Entries of any size and the largest numbers there are, up to the last byte of a segment."""
    rng = random.Random(seed)
    files = SimFileSystem()
    storage, _ = start(files)
    index, quick_count, slow_count = 1, 0, 0
    term = rng.choice((1, 2**62))
    while slow_count < 5:
        count = rng.randint(1, 20)
        size_bytes = rng.choice((0, 1, 40, 300))
        ready = ready_with(index, *[term] * count)
        entries = [
            Entry(index=e.index, term=term, kind=e.kind, data=rng.randbytes(size_bytes))
            for e in ready.entries
        ]
        ready = dataclasses.replace(ready, entries=entries)
        before = files.names()
        is_quick = storage.is_quick(ready)
        persist(storage, ready)
        assert not is_quick or files.names() == before, f"seed {seed}"
        index += count
        quick_count += is_quick
        slow_count += not is_quick
    assert quick_count > 0, f"seed {seed}: nothing was quick"


def test_an_installed_snapshot_is_never_quick() -> None:
    storage, _ = start(SimFileSystem())
    assert storage.is_quick(ready_with(1, 1))
    assert not storage.is_quick(ready_with(11, 1, snapshot=snapshot_at(10)))
