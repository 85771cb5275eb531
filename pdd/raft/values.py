"""What the log is made of. Indices are 1-based; index 0 and term 0 mean "nothing".

`Entry` is made for each command on each replica, and written several times: it is a tuple in the
order of the wire, so that packing takes it as it is, and making one costs a quarter of a frozen
dataclass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, NewType

NodeId = NewType("NodeId", str)
"""Name of one voter, as the config spells it (``scheduler-0``)."""

ENTRY_OVERHEAD_BYTES = 24
"""Counted per entry beside its data, so that a flood of empty entries is bounded too."""


class EntryKind(IntEnum):
    """Numbers are on the wire and on disk: never reuse one."""

    COMMAND = 1
    NOOP = 2


class Entry(NamedTuple):
    """One log entry. ``(index, term)`` names it in the whole cluster for ever (log matching)."""

    index: int  # type: ignore[assignment]  # in place of tuple's method, which nobody calls
    term: int
    kind: EntryKind
    data: bytes

    @property
    def size_bytes(self) -> int:
        return len(self.data) + ENTRY_OVERHEAD_BYTES


def size_bytes_of(entries: Sequence[Entry]) -> int:
    return sum([len(entry.data) for entry in entries]) + len(entries) * ENTRY_OVERHEAD_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class HardState:
    """What a replica must find again after a crash.

    ``commit_index`` is a hint that saves time after a restart, so it is written only along with
    something else; ``term`` and ``vote`` are safety.
    """

    term: int
    vote: NodeId | None
    commit_index: int


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class SnapshotMeta:
    """The last entry a snapshot contains."""

    index: int
    term: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    meta: SnapshotMeta
    data: bytes


NO_SNAPSHOT = SnapshotMeta(index=0, term=0)
EMPTY_HARD_STATE = HardState(term=0, vote=None, commit_index=0)
