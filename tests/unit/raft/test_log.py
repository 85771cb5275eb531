"""RaftLog: what is held, what conflicts, what has been written and applied."""

from __future__ import annotations

import pytest

from pdd.raft.log import RaftLog
from pdd.raft.values import Entry, EntryKind, SnapshotMeta


def entry(index: int, term: int, data: bytes = b"") -> Entry:
    return Entry(index=index, term=term, kind=EntryKind.COMMAND, data=data)


def log_of(*terms: int, snapshot: tuple[int, int] = (0, 0), commit_index: int = 0) -> RaftLog:
    index, term = snapshot
    return RaftLog(
        snapshot=SnapshotMeta(index=index, term=term),
        entries=[entry(i, t) for i, t in enumerate(terms, start=index + 1)],
        commit_index=commit_index,
    )


def test_terms_are_known_from_the_offset_to_the_end() -> None:
    log = log_of(4, 5, snapshot=(10, 3))
    assert [log.term_at(i) for i in (9, 10, 11, 12, 13)] == [None, 3, 4, 5, None]
    assert (log.last_index, log.last_term) == (12, 5)
    assert log_of(snapshot=(10, 3)).last_term == 3


@pytest.mark.parametrize(
    ("index", "term", "expected"),
    [
        (9, 9, (5, 4)),
        (5, 4, (5, 4)),
        (5, 3, (3, 2)),
        (4, 2, (3, 2)),
        (3, 1, (1, 1)),
        (2, 0, (0, 0)),
    ],
)
def test_the_last_possible_match_skips_later_terms(
    index: int, term: int, expected: tuple[int, int]
) -> None:
    assert log_of(1, 2, 2, 4, 4).last_possible_match(index, term) == expected


def test_the_last_possible_match_ends_at_what_is_compacted() -> None:
    assert log_of(5, 5, snapshot=(10, 4)).last_possible_match(11, 2) == (10, 4)


def test_slices_hold_at_least_one_entry_and_then_what_fits() -> None:
    log = RaftLog(entries=[entry(i, 1, bytes(76)) for i in range(1, 5)])  # 100 bytes each
    assert len(log.slice_from(1, max_bytes=1)) == 1
    assert len(log.slice_from(1, max_bytes=199)) == 1
    assert len(log.slice_from(1, max_bytes=200)) == 2
    assert len(log.slice_from(3, max_bytes=10_000)) == 2
    assert log.slice_from(5, max_bytes=100) == []


def test_truncating_what_is_committed_is_a_bug() -> None:
    log = log_of(1, 1, 1, commit_index=2)
    with pytest.raises(AssertionError, match=r"committed entry 2 \(commit 2\)"):
        log.truncate_from(2)
    log.truncate_from(3)
    assert log.last_index == 2


def test_the_commit_index_never_falls_and_never_passes_the_end() -> None:
    log = log_of(1, 1, 1)
    assert log.commit_to(2)
    assert not log.commit_to(1)
    assert log.commit_index == 2
    with pytest.raises(AssertionError, match="beyond last entry"):
        log.commit_to(4)


def test_committed_entries_are_taken_once_in_order_and_within_bounds() -> None:
    log = RaftLog(entries=[entry(i, 1, bytes(76)) for i in range(1, 6)], commit_index=5)
    taken = []
    while batch := log.take_committed(max_bytes=250):
        assert len(batch) <= 2
        taken += [e.index for e in batch]
    assert taken == [1, 2, 3, 4, 5]
    log.mark_applied(5)
    assert log.applied_index == 5


def test_unwritten_entries_are_taken_once_and_durable_after_the_report() -> None:
    log = log_of(1)
    log.accept([entry(2, 1), entry(3, 1)])
    assert [e.index for e in log.take_unwritten()] == [2, 3]
    assert log.take_unwritten() == []
    assert log.durable_index == 1
    log.mark_written(None)
    assert log.durable_index == 3


def test_compaction_keeps_the_snapshot_and_some_entries_before_it() -> None:
    log = log_of(1, 1, 2, 2, 3, commit_index=5)
    log.take_committed(max_bytes=10_000)
    log.mark_applied(5)
    log.compact(SnapshotMeta(index=4, term=2), keep_entries=2)
    assert (log.offset_index, log.offset_term) == (2, 1)
    assert [e.index for e in log.entries] == [3, 4, 5]
    log.compact(SnapshotMeta(index=3, term=2), keep_entries=0)
    assert log.snapshot.index == 4, "an older snapshot changes nothing"


def test_a_restored_snapshot_replaces_everything() -> None:
    log = log_of(1, 1, 1)
    log.restore(SnapshotMeta(index=9, term=4))
    assert (log.last_index, log.last_term, log.commit_index, log.applied_index) == (9, 4, 9, 9)
    assert log.unsaved_snapshot is not None
    log.accept([entry(10, 4)])
    assert [e.index for e in log.take_unwritten()] == [10]
    log.mark_written(SnapshotMeta(index=9, term=4))
    assert log.unsaved_snapshot is None


def test_a_report_of_an_older_snapshot_leaves_the_newer_one_unsaved() -> None:
    log = log_of(1)
    log.restore(SnapshotMeta(index=5, term=2))
    log.restore(SnapshotMeta(index=9, term=3))
    log.mark_written(SnapshotMeta(index=5, term=2))
    assert log.unsaved_snapshot == SnapshotMeta(index=9, term=3)
