"""A snapshot as a stream of chunks: cut by the sender, put together by the receiver. Pure.

    header (hello, message, size, crc) | chunk | chunk | ...

Bound: the receiver takes SNAPSHOT_BYTES_MAX; a longer one is refused by its header, before any of
its bytes are held.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from pdd.core.errors import PddError
from pdd.rpc.v1.raft_pb2 import InstallSnapshotRequest, ReplicaHello, SnapshotHeader

CHUNK_BYTES = 256 * 1024
SNAPSHOT_BYTES_MAX = 1024 * 1024 * 1024


class SnapshotTooLongError(PddError):
    """More than this replica takes."""


class SnapshotBrokenError(PddError):
    """What arrived is not what was announced."""


def cut(data: bytes, *, hello: ReplicaHello, message: bytes) -> Iterator[InstallSnapshotRequest]:
    """``message``: the encoded InstallSnapshot, without data."""
    header = SnapshotHeader(
        hello=hello, message=message, size_bytes=len(data), crc32=zlib.crc32(data)
    )
    yield InstallSnapshotRequest(header=header)
    for start in range(0, len(data), CHUNK_BYTES):
        yield InstallSnapshotRequest(chunk=data[start : start + CHUNK_BYTES])


class Assembly:
    """The receiving end of one snapshot."""

    def __init__(self, header: SnapshotHeader, *, bytes_max: int = SNAPSHOT_BYTES_MAX) -> None:
        """Raises: SnapshotTooLongError."""
        if not 0 <= header.size_bytes <= bytes_max:
            raise SnapshotTooLongError(
                f"snapshot of {header.size_bytes} bytes; this replica takes up to {bytes_max}"
            )
        self._size_bytes = header.size_bytes
        self._crc32 = header.crc32
        self._data = bytearray()

    def add(self, chunk: bytes) -> None:
        """Raises: SnapshotBrokenError, as soon as it is longer than announced."""
        self._data += chunk
        if len(self._data) > self._size_bytes:
            raise SnapshotBrokenError(f"more than the {self._size_bytes} bytes announced")

    def finish(self) -> bytes:
        """Raises: SnapshotBrokenError."""
        if len(self._data) != self._size_bytes:
            raise SnapshotBrokenError(f"{len(self._data)} of {self._size_bytes} bytes arrived")
        data = bytes(self._data)
        if zlib.crc32(data) != self._crc32:
            raise SnapshotBrokenError("checksum does not match")
        return data


def deadline_s(size_bytes: int) -> float:
    """What a transfer may take: ten seconds, and what 10 MB/s need."""
    return 10.0 + size_bytes / 10e6
