"""Snapshot files: one per snapshot, complete or absent.

    | magic 8 | version u32 | crc u32 | index u64 | term u64 | data length u64 | data |

Written under a temporary name, synced, renamed, directory synced. A file counts only once the WAL
holds a marker for it; older segments and snapshot files go after that, never before.
"""

from __future__ import annotations

import struct
import zlib

from pdd.raft.values import Snapshot, SnapshotMeta
from pdd.replication.errors import REPLACE_ADVICE, DamagedError, StorageVersionError
from pdd.replication.filesystem import FileSystem

MAGIC = b"PDDSNAP\n"
VERSION = 1
PREFIX = "snapshot-"
TEMPORARY_SUFFIX = ".tmp"
WRITE_BYTES = 1024 * 1024
_HEAD = struct.Struct("<8sII")
_BODY = struct.Struct("<QQQ")


def snapshot_name(meta: SnapshotMeta) -> str:
    return f"{PREFIX}{meta.index:016x}-{meta.term:016x}"


def is_snapshot(name: str) -> bool:
    return name.startswith(PREFIX) and not name.endswith(TEMPORARY_SUFFIX)


def write_snapshot(files: FileSystem, snapshot: Snapshot) -> None:
    """Durable under its final name when this returns. Raises: StorageFailedError."""
    body = _BODY.pack(snapshot.meta.index, snapshot.meta.term, len(snapshot.data))
    crc = zlib.crc32(snapshot.data, zlib.crc32(body))
    head = _HEAD.pack(MAGIC, VERSION, crc) + body
    name = snapshot_name(snapshot.meta)
    file = files.create(name + TEMPORARY_SUFFIX, size_bytes=len(head) + len(snapshot.data))
    file.write_at(0, head)
    for start in range(0, len(snapshot.data), WRITE_BYTES):
        file.write_at(len(head) + start, snapshot.data[start : start + WRITE_BYTES])
    file.sync()
    file.close()
    files.rename(name + TEMPORARY_SUFFIX, name)
    files.sync_directory()


def read_snapshot(files: FileSystem, meta: SnapshotMeta) -> Snapshot:
    """Raises: DamagedError, StorageVersionError."""
    name = snapshot_name(meta)
    if name not in files.names():
        raise _damaged(name, "is missing, and the log before it is gone")
    raw = files.read(name)
    head_bytes = _HEAD.size + _BODY.size
    if len(raw) < head_bytes or raw[: len(MAGIC)] != MAGIC:
        raise _damaged(name, "is not a snapshot")
    _, version, crc = _HEAD.unpack_from(raw)
    if version != VERSION:
        raise StorageVersionError(f"{name}: version {version}; this release reads {VERSION}")
    body = raw[_HEAD.size : head_bytes]
    index, term, length = _BODY.unpack(body)
    data = raw[head_bytes:]
    if (index, term) != (meta.index, meta.term) or length != len(data):
        raise _damaged(name, "does not hold what its name says")
    if zlib.crc32(data, zlib.crc32(body)) != crc:
        raise _damaged(name, "checksum does not match")
    return Snapshot(meta=meta, data=data)


def remove_others(files: FileSystem, keep: SnapshotMeta) -> None:
    """Drop every snapshot but the marked one. A crash in between leaves files for the next call."""
    for name in files.names():
        if is_snapshot(name) and name != snapshot_name(keep):
            files.remove(name)


def _damaged(name: str, reason: str) -> DamagedError:
    return DamagedError(f"{name} {reason}; the replica does not start; {REPLACE_ADVICE}")
