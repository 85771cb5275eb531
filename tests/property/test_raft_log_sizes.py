"""The log's running sums against plain addition, whatever was appended, cut and forgotten."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from pdd.raft.log import RaftLog
from pdd.raft.values import Entry, EntryKind, SnapshotMeta

STEPS = st.lists(
    st.tuples(st.sampled_from(["append", "cut", "compact", "restore"]), st.integers(0, 40)),
    max_size=40,
)


def grown(steps: Sequence[tuple[str, int]]) -> RaftLog:
    """``number``: bytes to append, entries to cut or to keep, or indices to jump."""
    log = RaftLog()
    for step, number in steps:
        match step:
            case "append":
                entry = Entry(
                    index=log.last_index + 1, term=1, kind=EntryKind.COMMAND, data=bytes(number)
                )
                log.append(entry)
            case "cut":
                first = max(log.last_index + 1 - number, log.commit_index + 1)
                if first <= log.last_index:
                    log.truncate_from(first)
            case "compact":
                log.commit_to(log.last_index)
                taken = log.take_committed(max_bytes=1 << 30)
                if taken:
                    log.mark_applied(taken[-1].index)
                meta = SnapshotMeta(index=log.applied_index, term=1)
                if log.term_at(log.applied_index) == 1:
                    log.compact(meta, keep_entries=number)
            case "restore":
                log.restore(SnapshotMeta(index=log.last_index + 1 + number, term=1))
    return log


def plainly_fitting(entries: Sequence[Entry], max_bytes: int) -> list[Entry]:
    taken: list[Entry] = []
    for entry in entries:
        if taken and sum(one.size_bytes for one in taken) + entry.size_bytes > max_bytes:
            break
        taken.append(entry)
    return taken


@settings(deadline=None, derandomize=True, max_examples=400)
@given(steps=STEPS, max_bytes=st.integers(1, 400), data=st.data())
def test_sizes_and_slices_are_what_adding_up_gives(
    steps: Sequence[tuple[str, int]], max_bytes: int, data: st.DataObject
) -> None:
    log = grown(steps)
    first = data.draw(st.integers(log.offset_index + 1, log.last_index + 1))
    held = log.entries[first - log.offset_index - 1 :]
    assert log.slice_from(first, max_bytes=max_bytes) == plainly_fitting(held, max_bytes)
    last = data.draw(st.integers(first - 1, log.last_index))
    expected = sum(entry.size_bytes for entry in held[: last - first + 1])
    assert log.size_between(first - 1, last) == expected
