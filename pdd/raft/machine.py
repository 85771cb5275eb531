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

    def apply(self, entries: Sequence[Entry]) -> tuple[list[bytes], list[tuple[int, bytes]]]:
        """``(a result for each entry, [(index, state hash)] for `RaftCore.report_state_hash`)``."""
        results: list[bytes] = []
        hashes: list[tuple[int, bytes]] = []
        apply = self.machine.apply
        for index, term, kind, data in entries:
            assert index == self.index + 1, f"apply {index} after {self.index}"
            results.append(apply(index, data) if kind is EntryKind.COMMAND else b"")
            self.index, self.term = index, term
            if index % self.hash_interval == 0:
                hashes.append((index, self.machine.state_hash()))
        return results, hashes

    def snapshot(self) -> Snapshot:
        """Of the state right now; small states only, it is built in the caller's turn."""
        return Snapshot(
            meta=SnapshotMeta(index=self.index, term=self.term), data=self.machine.snapshot()
        )
