"""The entries held in memory, above the last compaction.

      compacted        held in `entries`
    |...........|---------------------------------------|
             offset   applied   commit   durable   handed   last
                      <= applying <=

Invariants: offset <= snapshot <= applied <= applying <= commit <= last, and
durable <= handed <= last. ``handed`` is what a Ready has given to the driver for persisting,
``durable`` what the driver has reported back. A truncation pulls both down, so that a report which
arrives late never claims an entry that was replaced meanwhile (stale "last written").

`_ends` runs along with `entries`: the bytes of all entries up to and with each, so that what fits
into a message, and what a commit frees, is looked up instead of added up.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from pdd.raft.values import ENTRY_OVERHEAD_BYTES, NO_SNAPSHOT, Entry, SnapshotMeta


class RaftLog:
    __slots__ = (
        "_ends",
        "_start_bytes",
        "applied_index",
        "applying_index",
        "commit_index",
        "durable_index",
        "entries",
        "handed_index",
        "offset_index",
        "offset_term",
        "snapshot",
        "unsaved_snapshot",
    )

    def __init__(
        self,
        *,
        snapshot: SnapshotMeta = NO_SNAPSHOT,
        entries: Sequence[Entry] = (),
        commit_index: int = 0,
    ) -> None:
        """As recovered from disk: ``entries`` follow ``snapshot`` without a gap."""
        self.snapshot = snapshot
        self.offset_index = snapshot.index
        self.offset_term = snapshot.term
        self.entries: list[Entry] = []
        self._ends: list[int] = []
        self._start_bytes = 0
        """What `_ends` had reached at `offset_index`; only differences mean anything."""
        self._extend(entries)
        assert not entries or entries[0].index == snapshot.index + 1, "entries must follow snapshot"
        self.commit_index = max(commit_index, snapshot.index)
        assert self.commit_index <= self.last_index, "commit index beyond the recovered log"
        self.applied_index = snapshot.index
        self.applying_index = snapshot.index
        self.durable_index = self.last_index
        self.handed_index = self.last_index
        self.unsaved_snapshot: SnapshotMeta | None = None
        """Installed from the leader, not yet reported durable."""

    # Looking

    @property
    def last_index(self) -> int:
        return self.offset_index + len(self.entries)

    @property
    def last_term(self) -> int:
        return self.entries[-1].term if self.entries else self.offset_term

    def term_at(self, index: int) -> int | None:
        """Term of the entry at ``index``; None when it is compacted away or not there yet."""
        position = index - self.offset_index
        if position == 0:
            return self.offset_term
        if 0 < position <= len(self.entries):
            return self.entries[position - 1].term
        return None

    def matches(self, index: int, term: int) -> bool:
        return self.term_at(index) == term

    def slice_from(self, start_index: int, *, max_bytes: int) -> list[Entry]:
        """Entries from ``start_index``, at least one if there is one, then while they fit."""
        position = start_index - self.offset_index - 1
        assert position >= 0, f"entry {start_index} is compacted (offset {self.offset_index})"
        return self._fitting(position, len(self.entries), max_bytes)

    def size_between(self, after_index: int, last_index: int) -> int:
        """Bytes of the entries after ``after_index`` up to and with ``last_index``."""
        if last_index <= after_index:
            return 0
        return self._bytes_up_to(last_index) - self._bytes_up_to(after_index)

    def _bytes_up_to(self, index: int) -> int:
        position = index - self.offset_index
        return self._ends[position - 1] if position > 0 else self._start_bytes

    def _fitting(self, start: int, end: int, max_bytes: int) -> list[Entry]:
        """``entries[start:end]``, cut after ``max_bytes``, never empty unless the range is."""
        start_bytes = self._ends[start - 1] if start else self._start_bytes
        fitting = bisect_right(self._ends, start_bytes + max_bytes, start, end)
        return self.entries[start : min(max(fitting, start + 1), end)]

    def entries_up_to(self, index: int) -> list[Entry]:
        """What is held of the log up to and with ``index``."""
        return self.entries[: max(index - self.offset_index, 0)]

    def last_possible_match(self, index: int, term: int) -> tuple[int, int]:
        """Largest ``(i, its term)`` with i <= ``index`` and its term <= ``term``.

        Skips a whole diverging term per round trip instead of one entry (paper section 5.3, end).
        Stops at the offset: what is compacted was committed, so it agrees everywhere.
        """
        index = min(index, self.last_index)
        while index > self.offset_index:
            found = self.entries[index - self.offset_index - 1].term
            if found <= term:
                return index, found
            index -= 1
        return self.offset_index, self.offset_term

    # Changing

    def append(self, entry: Entry) -> None:
        index, term, _, data = entry
        entries, ends = self.entries, self._ends
        last_index = self.offset_index + len(entries)
        last_term = entries[-1].term if entries else self.offset_term
        assert index == last_index + 1, f"append {index} after {last_index}"
        assert term >= last_term, f"term {term} after {last_term}"
        end_bytes = ends[-1] if ends else self._start_bytes
        ends.append(end_bytes + len(data) + ENTRY_OVERHEAD_BYTES)
        entries.append(entry)

    def _extend(self, entries: Sequence[Entry]) -> None:
        end_bytes = self._ends[-1] if self._ends else self._start_bytes
        for entry in entries:
            end_bytes += len(entry.data) + ENTRY_OVERHEAD_BYTES
            self._ends.append(end_bytes)
        self.entries.extend(entries)

    def accept(self, entries: Sequence[Entry]) -> None:
        """Take a leader's entries, whose predecessor is known to match, and which follow each other
        in terms that never fall (`messages.fault_in`)."""
        fresh = first_unmatched(self, entries)
        if fresh == len(entries):
            return
        first = entries[fresh]
        if first.index <= self.last_index:
            self.truncate_from(first.index)
        assert first.index == self.last_index + 1, f"accept {first.index} after {self.last_index}"
        assert first.term >= self.last_term, f"term {first.term} after {self.last_term}"
        self._extend(entries[fresh:])

    def truncate_from(self, index: int) -> None:
        """Drop ``index`` and everything after it: a conflict has been found there."""
        assert index > self.commit_index, (
            f"would drop committed entry {index} (commit {self.commit_index})"
        )
        del self.entries[index - self.offset_index - 1 :]
        del self._ends[index - self.offset_index - 1 :]
        pull_back_written_marks(self, index - 1)

    def commit_to(self, index: int) -> bool:
        """Raise the commit index; never lowers it. True when it moved."""
        if index <= self.commit_index:
            return False
        assert index <= self.last_index, f"commit {index} beyond last entry {self.last_index}"
        self.commit_index = index
        return True

    def compact(self, meta: SnapshotMeta, *, keep_entries: int) -> None:
        """A local snapshot up to ``meta`` is durable: forget entries, keep some for laggards."""
        if meta.index <= self.snapshot.index:
            return  # an installed snapshot overtook it
        assert meta.index <= self.applied_index, "snapshot of what is not applied"
        assert self.term_at(meta.index) == meta.term, "snapshot names another entry"
        self.snapshot = meta
        new_offset = meta.index - keep_entries
        if new_offset > self.offset_index:
            term = self.term_at(new_offset)
            assert term is not None
            self._start_bytes = self._bytes_up_to(new_offset)
            del self.entries[: new_offset - self.offset_index]
            del self._ends[: new_offset - self.offset_index]
            self.offset_index, self.offset_term = new_offset, term

    def restore(self, meta: SnapshotMeta) -> None:
        """Replace the whole log by a snapshot that does not match it."""
        assert meta.index > self.commit_index, "restore would go back"
        self.snapshot = meta
        self.unsaved_snapshot = meta
        self.offset_index, self.offset_term = meta.index, meta.term
        self.entries, self._ends, self._start_bytes = [], [], 0
        self.commit_index = self.applied_index = self.applying_index = meta.index
        self.durable_index = self.handed_index = meta.index

    # Conversation with the driver

    def take_unwritten(self) -> list[Entry]:
        """Entries to persist now; they count as durable after `mark_written`."""
        position = max(self.handed_index - self.offset_index, 0)
        self.handed_index = self.last_index
        return self.entries[position:]

    def mark_written(self, snapshot: SnapshotMeta | None) -> None:
        """Everything handed out (and not replaced since) is durable."""
        if snapshot is not None and snapshot == self.unsaved_snapshot:
            self.unsaved_snapshot = None
        self.durable_index = max(self.durable_index, self.handed_index)

    def take_committed(self, *, max_bytes: int) -> list[Entry]:
        """The next committed entries to apply, in order, each once."""
        start = self.applying_index - self.offset_index
        end = self.commit_index - self.offset_index
        if start >= end:
            return []
        taken = self._fitting(start, end, max_bytes)
        self.applying_index = taken[-1].index
        return taken

    def mark_applied(self, index: int) -> None:
        # max: a snapshot installed while the driver was applying has moved it already.
        self.applied_index = max(self.applied_index, index)


def first_unmatched(log: RaftLog, entries: Sequence[Entry]) -> int:
    """Position of the first entry the log lacks or holds under another term.

    Truncating anywhere but at a real conflict loses acknowledged entries: a delayed, shorter
    append would cut what later appends brought (paper section 5.3: "if an existing entry
    conflicts").
    """
    if entries and entries[0].index > log.last_index:
        return 0  # nothing of it is there: a busy follower's every message
    for position, entry in enumerate(entries):
        if not log.matches(entry.index, entry.term):
            return position
    return len(entries)


def pull_back_written_marks(log: RaftLog, index: int) -> None:
    """After a truncation, what is on disk above ``index`` is no longer this log."""
    log.durable_index = min(log.durable_index, index)
    log.handed_index = min(log.handed_index, index)
