"""The replicated state machine: its contract, and the object that drives one.

Apply must be deterministic: no clock, no randomness, no order of a set or of unordered input, no
NaN. Time comes in the entry, stamped by the leader. A command that fails is a *result*; an
exception is a bug, on every replica alike, and ends the process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pdd.raft.values import Entry, EntryKind, Snapshot, SnapshotMeta


class StateMachine(Protocol):
    def apply(self, index: int, data: bytes) -> bytes:
        """Apply one command; the bytes go to whoever proposed it."""

    def snapshot(self) -> bytes:
        """The whole state, versioned by its owner."""

    def restore(self, data: bytes) -> None:
        """Replace the whole state by a snapshot's. All or nothing."""

    def state_hash(self) -> bytes:
        """Equal on any two replicas that applied the same entries. Should be kept up to date
        incrementally: it is asked for every 1,024 entries, in the driver's loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    index: int
    term: int
    result: bytes


@dataclass(slots=True)
class Applier:
    """Feeds committed entries to the machine in order, each once, and notes state hashes."""

    machine: StateMachine
    hash_interval: int
    index: int = 0
    term: int = 0

    def restore(self, snapshot: Snapshot) -> None:
        self.machine.restore(snapshot.data)
        self.index, self.term = snapshot.meta.index, snapshot.meta.term

    def apply(self, entries: Sequence[Entry]) -> tuple[list[Applied], list[tuple[int, bytes]]]:
        """``(what was applied, [(index, state hash)] for `RaftCore.report_state_hash`)``."""
        applied: list[Applied] = []
        hashes: list[tuple[int, bytes]] = []
        for entry in entries:
            assert entry.index == self.index + 1, f"apply {entry.index} after {self.index}"
            result = b""
            if entry.kind is EntryKind.COMMAND:
                result = self.machine.apply(entry.index, entry.data)
            self.index, self.term = entry.index, entry.term
            applied.append(Applied(index=entry.index, term=entry.term, result=result))
            if entry.index % self.hash_interval == 0:
                hashes.append((entry.index, self.machine.state_hash()))
        return applied, hashes

    def snapshot(self) -> Snapshot:
        """Of the state right now; small states only, it is built in the caller's turn."""
        return Snapshot(
            meta=SnapshotMeta(index=self.index, term=self.term), data=self.machine.snapshot()
        )
