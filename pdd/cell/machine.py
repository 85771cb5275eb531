"""The replicated state machine of a cell (`pdd.raft.machine.StateMachine`).

    raft's replica process    CellMachine()            soft entries pass by: they cost nothing
    the scheduler daemon      CellMachine(soft=...)    follows the same entries, and keeps them

What is answered for a soft entry must be the same on every replica, and so is nothing: one that was
restored from a snapshot knows no rows, one that never stopped knows them all.
"""

from __future__ import annotations

from typing import Protocol

import msgpack

from pdd.cell.codec import CODEC, EntryError, SoftEntry, encode_result
from pdd.cell.state import CellState

SNAPSHOT_VERSION = 2
"""History: 1 = first; 2 = the table of roles, which a release that knows it not would leave out. A
release reads its own version and the one before; without a role it writes the one before."""
OLDEST_READABLE_SNAPSHOT_VERSION = 1


class SnapshotError(Exception):
    """Bytes that are no snapshot of a version known here; nothing was changed."""


class Soft(Protocol):
    """Who keeps what the soft entries say."""

    def apply(self, data: bytes) -> None:
        """What one soft entry holds."""
        ...

    def begin(self) -> None:
        """The log goes on from a snapshot: what was said until there may have been missed."""
        ...


class CellMachine:
    """Members, cordons, roles, overrides, quotas; and who follows the soft entries, if anybody."""

    def __init__(self, *, soft: Soft | None = None) -> None:
        self.state = CellState()
        self.index = 0
        """Of the last hard entry that was applied."""
        self._soft = soft

    def apply(self, index: int, data: bytes) -> bytes:
        """A hard entry is answered as `codec.decode_result` reads it, a soft one with nothing."""
        try:
            entry = CODEC.decode(data)
        except EntryError as error:
            self.index = index
            return encode_result(index, [], fault=f"entry {index}: {error}")
        if isinstance(entry, SoftEntry):
            if self._soft is not None:
                self._soft.apply(entry.data)
            return b""
        self.index = index
        return encode_result(index, [self.state.apply(one) for one in entry.operations])

    def query(self, data: bytes) -> bytes:
        """Everything, whatever is asked: a snapshot."""
        return self.snapshot()

    def snapshot(self) -> bytes:
        """The hard state; about 100 bytes a row."""
        version = SNAPSHOT_VERSION if len(self.state.roles) else OLDEST_READABLE_SNAPSHOT_VERSION
        data: bytes = msgpack.packb([version, self.index, self.state.export()])
        return data

    def restore(self, data: bytes) -> None:
        """Replace the whole state; all or nothing. Raises SnapshotError."""
        try:
            version, index, tables = msgpack.unpackb(data)
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise SnapshotError(f"no snapshot of a cell ({type(error).__name__})") from error
        if not OLDEST_READABLE_SNAPSHOT_VERSION <= version <= SNAPSHOT_VERSION:
            raise SnapshotError(
                f"snapshot of a cell, version {version}; this release reads "
                f"{OLDEST_READABLE_SNAPSHOT_VERSION} to {SNAPSHOT_VERSION}: upgrade one release "
                "at a time"
            )
        fresh = CellState()
        fresh.load(tables)
        self.state, self.index = fresh, index
        if self._soft is not None:
            self._soft.begin()

    def state_hash(self) -> bytes:
        """Of the hard state."""
        return self.state.hash()
