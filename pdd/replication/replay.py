"""What the records of a WAL amount to, in order. Pure; `wal` feeds it, `Recovered` comes out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pdd.raft.values import EMPTY_HARD_STATE, NO_SNAPSHOT, Entry, HardState, SnapshotMeta
from pdd.replication.batch import Batch, MarkerKind, SegmentStart
from pdd.replication.errors import DamagedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    hard_state: HardState
    snapshot: SnapshotMeta
    entries: Sequence[Entry]
    """They follow ``snapshot`` without a gap."""


class Replay:
    def __init__(self) -> None:
        self.hard_state = EMPTY_HARD_STATE
        self.snapshot = NO_SNAPSHOT
        self.entries: list[Entry] = []
        self._base_known = True
        """False while older segments are dropped and nothing says where the entries begin."""

    def begin(self, start: SegmentStart) -> None:
        """The oldest segment there is."""
        self.hard_state = start.hard_state
        self.snapshot = start.snapshot
        self._base_known = start.sequence == 1

    def apply(self, batch: Batch) -> None:
        """Raises: DamagedError, when batches with good checksums contradict each other."""
        if batch.marker is not None:
            self._mark(batch.marker.meta, batch.marker.kind)
        if batch.entries:
            self._extend(batch.entries)
        if batch.hard_state is not None:
            self.hard_state = batch.hard_state

    def _mark(self, meta: SnapshotMeta, kind: MarkerKind) -> None:
        if meta.index < self.snapshot.index:
            raise DamagedError(f"snapshot marker {meta.index} after {self.snapshot.index}")
        self.snapshot = meta
        if kind is MarkerKind.INSTALLED:
            self.entries = []
            self._base_known = True
        elif self.entries:
            first = self.entries[0].index
            if first <= meta.index:
                del self.entries[: meta.index - first + 1]
                self._base_known = True

    def _extend(self, entries: Sequence[Entry]) -> None:
        first = entries[0].index
        if first <= self.snapshot.index:
            raise DamagedError(f"entry {first} rewrites what snapshot {self.snapshot.index} covers")
        if self.entries:
            start = self.entries[0].index
            if first > self.entries[-1].index + 1:
                raise DamagedError(f"entry {first} follows entry {self.entries[-1].index}")
            del self.entries[max(first - start, 0) :]
        elif self._base_known and first != self.snapshot.index + 1:
            raise DamagedError(f"entry {first} follows snapshot {self.snapshot.index}")
        self.entries += entries

    def finish(self) -> Recovered:
        """Raises: DamagedError."""
        if self.entries and self.entries[0].index != self.snapshot.index + 1:
            raise DamagedError(
                f"entries begin at {self.entries[0].index}, the snapshot ends at "
                f"{self.snapshot.index}: segments between them are gone"
            )
        last = self.entries[-1].index if self.entries else self.snapshot.index
        if self.hard_state.commit_index > last:
            raise DamagedError(
                f"commit index {self.hard_state.commit_index} beyond last entry {last}"
            )
        return Recovered(hard_state=self.hard_state, snapshot=self.snapshot, entries=self.entries)
