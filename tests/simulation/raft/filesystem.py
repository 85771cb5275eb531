"""A disk that forgets: what was not synced is lost at a crash, sector by sector.

Bytes reach the platter only with `sync`, names only with `sync_directory`. At a crash each unsynced
sector is kept or lost on its own, and a prefix of the unsynced directory operations is kept (they
are journalled in order). `fuse` cuts the power before the n-th call from now.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from pdd.replication.errors import StorageFailedError
from pdd.replication.record import SECTOR_BYTES


class PowerCut(Exception):
    """The machine is gone in the middle of a call."""


class SimFile:
    def __init__(self, disk: SimFileSystem, size_bytes: int) -> None:
        self._disk = disk
        self.content = bytearray(size_bytes)
        self.durable = bytearray()
        self.dirty: dict[int, None] = {}
        self.grown = True

    def write_at(self, offset_bytes: int, data: bytes) -> None:
        self._disk.burn("write")
        end = offset_bytes + len(data)
        assert end <= len(self.content), "writes stay inside the preallocated file"
        self.content[offset_bytes:end] = data
        for sector in range(offset_bytes // SECTOR_BYTES, -(-end // SECTOR_BYTES)):
            self.dirty[sector] = None

    def sync(self) -> None:
        self._disk.burn("fsync")
        self.durable = bytearray(self.content)
        self.dirty.clear()
        self.grown = False

    def close(self) -> None:
        pass

    def crash(self, rng: random.Random) -> None:
        if self.grown:
            self.durable = bytearray(len(self.content))  # never synced: size only, or nothing
            self.grown = False
        for sector in self.dirty:
            if rng.random() < 0.5:
                span = slice(sector * SECTOR_BYTES, (sector + 1) * SECTOR_BYTES)
                self.durable[span] = self.content[span]
        self.dirty.clear()
        self.content = bytearray(self.durable)


class SimFileSystem:
    def __init__(self) -> None:
        self.files: dict[str, SimFile] = {}
        self._durable_names: dict[str, SimFile] = {}
        self._unsynced: list[Callable[[dict[str, SimFile]], None]] = []
        self.fuse: int | None = None
        self.failing: str | None = None
        """Kind of call that fails from now on: "fsync", "write" or "create"."""

    def burn(self, kind: str) -> None:
        if self.failing == kind:
            raise StorageFailedError(f"cannot {kind} simulated disk: errno 5")
        if self.fuse is not None:
            if self.fuse == 0:
                raise PowerCut(kind)
            self.fuse -= 1

    def names(self) -> list[str]:
        return sorted(self.files)

    def read(self, name: str) -> bytes:
        return bytes(self.files[name].content)

    def create(self, name: str, *, size_bytes: int) -> SimFile:
        self.burn("create")
        file = SimFile(self, size_bytes)
        self._do(lambda names: names.__setitem__(name, file))
        return file

    def open(self, name: str) -> SimFile:
        return self.files[name]

    def rename(self, source: str, target: str) -> None:
        self.burn("rename")
        self._do(lambda names: names.__setitem__(target, names.pop(source)))

    def remove(self, name: str) -> None:
        self.burn("remove")
        self._do(lambda names: names.pop(name))

    def sync_directory(self) -> None:
        self.burn("fsync")
        self._durable_names = dict(self.files)
        self._unsynced.clear()

    def _do(self, operation: Callable[[dict[str, SimFile]], object]) -> None:
        operation(self.files)
        self._unsynced.append(operation)

    def crash(self, rng: random.Random) -> None:
        for operation in self._unsynced[: rng.randint(0, len(self._unsynced))]:
            operation(self._durable_names)
        self._unsynced.clear()
        self.files = dict(self._durable_names)
        self.fuse = None
        for file in self.files.values():
            file.crash(rng)
