"""What the driver must do next, and in which order.

    1. send      `early_messages`, at any time from now on
    2. persist   `snapshot`, `entries`, `hard_state`, in one atomic write; fsync if `must_sync`
    3. send      `messages`: only now, for they promise what step 2 made durable
    4. restore   `snapshot` into the state machine, then apply `committed`, in order
    5. answer    `reads` from the state machine; refuse `aborted_reads`
    6. call      `advance(ready)`

Crashing between any two steps is safe; swapping 2 and 3 is not, nor is 4 before 2. Inputs may go on
arriving while a Ready is worked on; what they cause comes with the next one, and there is never
more than one outstanding. `divergence` means: end the process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pdd.raft.messages import LEADER_MESSAGES, Message
from pdd.raft.state import Divergence, RaftState, Role
from pdd.raft.values import Entry, HardState, NodeId, Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    role: Role
    term: int
    leader: NodeId | None
    early_messages: Sequence[Message]
    """From the leader of a term that is durable already. An append may overtake the leader's own
    fsync: the leader counts itself only after `advance` (thesis section 10.2.1)."""
    snapshot: Snapshot | None
    """Replaces the whole log and state. All or nothing; `entries`, if any, follow it."""
    entries: Sequence[Entry]
    """Everything from ``entries[0].index`` on that was written before is void."""
    hard_state: HardState | None
    must_sync: bool
    messages: Sequence[Message]
    """An InstallSnapshot among either kind has no data: attach the newest saved snapshot and its
    meta, and report how the transfer ended with `report_snapshot`."""
    committed: Sequence[Entry]
    reads: Sequence[object]
    """Contexts of reads to be answered from the state as it is after `committed`."""
    aborted_reads: Sequence[object]
    divergence: Divergence | None


def take_ready(state: RaftState) -> Ready:
    early, late = split_messages(state)
    state.outbox = []
    snapshot, state.pending_snapshot = state.pending_snapshot, None
    entries = state.log.take_unwritten()
    hard_state = changed_hard_state(state, force=bool(entries) or snapshot is not None)
    if hard_state is not None:
        state.written = hard_state
    committed = state.log.take_committed(max_bytes=state.config.max_apply_bytes)
    reads = take_applied_reads(state)
    aborted_reads, state.aborted_reads = state.aborted_reads, []
    return Ready(
        role=state.role,
        term=state.term,
        leader=state.leader,
        early_messages=early,
        snapshot=snapshot,
        entries=entries,
        hard_state=hard_state,
        must_sync=hard_state is not None,
        messages=late,
        committed=committed,
        reads=reads,
        aborted_reads=aborted_reads,
        divergence=state.divergence,
    )


def split_messages(state: RaftState) -> tuple[list[Message], list[Message]]:
    """Only a leader's messages of a durable term may leave before the fsync."""
    early: list[Message] = []
    late: list[Message] = []
    for message in state.outbox:
        is_early = isinstance(message, LEADER_MESSAGES) and message.term <= state.durable_term
        (early if is_early else late).append(message)
    return early, late


def changed_hard_state(state: RaftState, *, force: bool) -> HardState | None:
    """None when only the commit index moved: that is not worth an fsync."""
    present = hard_state_of(state)
    if force or (present.term, present.vote) != (state.written.term, state.written.vote):
        return present
    return None


def hard_state_of(state: RaftState) -> HardState:
    return HardState(term=state.term, vote=state.vote, commit_index=state.log.commit_index)


def take_applied_reads(state: RaftState) -> list[object]:
    """Confirmed reads whose index will have been applied once this Ready's `committed` is."""
    ready, waiting = [], []
    for index, context in state.confirmed_reads:
        if index <= state.log.applying_index:
            ready.append(context)
        else:
            waiting.append((index, context))
    state.confirmed_reads = waiting
    return ready


def has_ready(state: RaftState) -> bool:
    log = state.log
    return bool(
        state.outbox
        or state.pending_snapshot is not None
        or log.handed_index < log.last_index
        or log.applying_index < log.commit_index
        or (state.term, state.vote) != (state.written.term, state.written.vote)
        or state.aborted_reads
        or state.divergence is not None
        or any(index <= log.applying_index for index, _ in state.confirmed_reads)
    )
