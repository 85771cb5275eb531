"""What `Ready` asks to persist, and what a restart finds: the WAL and the snapshot files together.

driver, step 2 of Ready       write(ready); sync()           one atomic batch
driver, now and then          write_snapshot_file(snapshot)  tmp, fsync, rename, fsync dir,
                              mark_snapshot(meta)            marker, fsync, only then removals
start                         open_storage(...)              -> Storage, Restart
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pdd.raft.config import RaftConfig, voters_hash
from pdd.raft.ready import Ready
from pdd.raft.values import (
    EMPTY_HARD_STATE,
    Entry,
    HardState,
    Snapshot,
    SnapshotMeta,
    size_bytes_of,
)
from pdd.replication.batch import Batch, Marker, MarkerKind, StorageIdentity
from pdd.replication.errors import REPLACE_ADVICE, DamagedError, StorageMissingError
from pdd.replication.filesystem import FileSystem
from pdd.replication.snapshots import (
    TEMPORARY_SUFFIX,
    is_snapshot,
    read_snapshot,
    remove_others,
    write_snapshot,
)
from pdd.replication.wal import SEGMENT_BYTES, Wal, create_wal, open_wal, segment_sequences

_ENTRY_PACKING_BYTES = 8
"""Above what msgpack adds to an entry's `size_bytes`."""
_BATCH_PACKING_BYTES = 512
"""Above what hard state, record header and padding add to a batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """What the disk holds: arguments for `RaftCore`, and the state to restore first."""

    hard_state: HardState
    snapshot: Snapshot | None
    entries: Sequence[Entry]


class Storage:
    def __init__(self, files: FileSystem, wal: Wal) -> None:
        self._files = files
        self._wal = wal
        self._unsynced_marker: Marker | None = None

    def is_quick(self, ready: Ready) -> bool:
        """Whether `write` only copies into the page cache: no new segment, no snapshot file."""
        packing_bytes = len(ready.entries) * _ENTRY_PACKING_BYTES
        needed_bytes = size_bytes_of(ready.entries) + packing_bytes
        has_room = needed_bytes + _BATCH_PACKING_BYTES <= self._wal.room_bytes
        return ready.snapshot is None and has_room

    def write(self, ready: Ready) -> None:
        """Durable after `sync`. Call only if ``ready.must_sync``. Raises: StorageFailedError."""
        marker = None
        if ready.snapshot is not None:
            write_snapshot(self._files, ready.snapshot)
            marker = Marker(meta=ready.snapshot.meta, kind=MarkerKind.INSTALLED)
        self._wal.write(Batch(marker=marker, entries=ready.entries, hard_state=ready.hard_state))
        self._unsynced_marker = marker

    def sync(self) -> None:
        """Raises: StorageFailedError."""
        self._wal.sync()
        if self._unsynced_marker is not None:
            self._remove_covered(self._unsynced_marker)
            self._unsynced_marker = None

    def save_snapshot(self, snapshot: Snapshot) -> None:
        """A snapshot of the own state, taken at an applied index. Then `RaftCore.compact`.

        The driver calls the two halves apart, `write_snapshot_file` from another thread, so that a
        large file does not hold up the log. Raises: StorageFailedError.
        """
        self.write_snapshot_file(snapshot)
        self.mark_snapshot(snapshot.meta)

    def write_snapshot_file(self, snapshot: Snapshot) -> None:
        """Durable, but not counted before `mark_snapshot`. Raises: StorageFailedError."""
        write_snapshot(self._files, snapshot)

    def mark_snapshot(self, meta: SnapshotMeta) -> None:
        """From the thread that writes the log. Raises: StorageFailedError."""
        if meta.index <= self._wal.snapshot.index:
            return  # one installed from the leader has overtaken it
        marker = Marker(meta=meta, kind=MarkerKind.LOCAL)
        self._wal.write(Batch(marker=marker))
        self._wal.sync()
        self._remove_covered(marker)

    def _remove_covered(self, marker: Marker) -> None:
        self._wal.drop_covered()
        remove_others(self._files, marker.meta)

    def close(self) -> None:
        self._wal.close()


def identity_of(config: RaftConfig) -> StorageIdentity:
    return StorageIdentity(
        cluster_id=config.cluster_id,
        node=config.node,
        voters_hash=voters_hash(config.voters),
    )


def open_storage(
    files: FileSystem,
    config: RaftConfig,
    *,
    may_create: bool,
    segment_bytes: int = SEGMENT_BYTES,
) -> tuple[Storage, Restart]:
    """``may_create``: this is the first start of a new cluster. An existing log is opened anyway.

    Raises: StorageMissingError, DamagedError, ForeignStorageError, StorageVersionError,
        StorageFailedError.
    """
    for name in files.names():
        if name.endswith(TEMPORARY_SUFFIX):
            files.remove(name)  # never got its final name, so nothing was promised on it
    identity = identity_of(config)
    if not segment_sequences(files):
        return _new_storage(files, identity, may_create=may_create, segment_bytes=segment_bytes)
    wal, recovered = open_wal(files, identity, segment_bytes=segment_bytes)
    snapshot = None
    if recovered.snapshot.index > 0:
        snapshot = read_snapshot(files, recovered.snapshot)
    remove_others(files, recovered.snapshot)
    restart = Restart(hard_state=recovered.hard_state, snapshot=snapshot, entries=recovered.entries)
    return Storage(files, wal), restart


def _new_storage(
    files: FileSystem, identity: StorageIdentity, *, may_create: bool, segment_bytes: int
) -> tuple[Storage, Restart]:
    leftovers = [name for name in files.names() if is_snapshot(name)]
    if leftovers:
        raise DamagedError(
            f"there is a snapshot ({leftovers[-1]}) but no WAL segment; {REPLACE_ADVICE}"
        )
    if not may_create:
        raise StorageMissingError(
            f"replica {identity.node!r} of cluster {identity.cluster_id!r} has no log here; "
            f"if the group is new, run 'pdd raft init' here first; else {REPLACE_ADVICE}"
        )
    wal = create_wal(files, identity, hard_state=EMPTY_HARD_STATE, segment_bytes=segment_bytes)
    return Storage(files, wal), Restart(hard_state=EMPTY_HARD_STATE, snapshot=None, entries=())
