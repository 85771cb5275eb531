"""Appends, heartbeats and commit (paper section 5.3).

The leader sends from `flush` only, once per Ready, so that everything proposed in one turn of the
driver travels in one append; the followers' answers leave after their fsync.
"""

from __future__ import annotations

from collections import OrderedDict

from pdd.raft.election import send_timeout_now_when_caught_up
from pdd.raft.log import RaftLog
from pdd.raft.messages import (
    AppendRequest,
    AppendResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    Message,
)
from pdd.raft.progress import Progress, ProgressState
from pdd.raft.quorum import majority_index
from pdd.raft.roles import become_follower
from pdd.raft.snapshots import send_snapshot
from pdd.raft.state import STATE_HASHES_KEPT, Divergence, RaftState, Role
from pdd.raft.values import NodeId

# Follower


def accept_leader(state: RaftState, message: Message) -> bool:
    """``message`` comes from a leader of the present term. False when that cannot be."""
    if state.role is Role.LEADER or (
        state.leader not in (None, message.source) and state.role is Role.FOLLOWER
    ):
        state.ignored["second_leader_in_term"] += 1
        return False
    if state.role is not Role.FOLLOWER:
        become_follower(state, term=state.term, leader=message.source)
    state.leader = message.source
    state.election_elapsed_ticks = 0
    return True


def on_append_request(state: RaftState, message: AppendRequest) -> None:
    if not accept_leader(state, message):
        return
    log = state.log
    if message.prev_index < log.commit_index:
        # An old or repeated message. What is committed matches any leader's log by definition.
        _answer_append(state, message.source, match_index=log.commit_index)
        return
    if not log.matches(message.prev_index, message.prev_term):
        _reject_append(state, message)
        return
    log.accept(message.entries)
    last_matched = message.prev_index + len(message.entries)
    log.commit_to(follower_commit(message.commit_index, last_matched_index=last_matched))
    _answer_append(state, message.source, match_index=acknowledged_index(log, last_matched))


def follower_commit(leader_commit_index: int, *, last_matched_index: int) -> int:
    """Beyond what this message has proved equal, the own log may still differ from the leader's."""
    return min(leader_commit_index, last_matched_index)


def acknowledged_index(log: RaftLog, last_matched_index: int) -> int:
    """Only what this message has proved equal; not the own last index, which may be a tail that
    another leader left."""
    assert last_matched_index <= log.last_index
    return last_matched_index


def _answer_append(state: RaftState, leader: NodeId, *, match_index: int) -> None:
    state.send(
        AppendResponse(
            source=state.config.node, target=leader, term=state.term, match_index=match_index
        )
    )


def _reject_append(state: RaftState, message: AppendRequest) -> None:
    hint_index, hint_term = state.log.last_possible_match(message.prev_index, message.prev_term)
    state.send(
        AppendResponse(
            source=state.config.node,
            target=message.source,
            term=state.term,
            match_index=message.prev_index,
            rejected=True,
            hint_index=hint_index,
            hint_term=hint_term,
        )
    )


def on_heartbeat_request(state: RaftState, message: HeartbeatRequest) -> None:
    if message.commit_index > state.log.last_index:
        # The leader counts on entries this replica has acknowledged and does not hold: its disk
        # went back in time. Stay silent rather than take part on false grounds.
        state.ignored["acknowledged_entries_missing"] += 1
        return
    if not accept_leader(state, message):
        return
    state.log.commit_to(message.commit_index)
    if message.hash_index:
        note_state_hash(state, state.leader_hashes, message.hash_index, message.state_hash)
    state.send(
        HeartbeatResponse(
            source=state.config.node,
            target=message.source,
            term=state.term,
            read_sequence=message.read_sequence,
        )
    )


def note_state_hash(
    state: RaftState, side: OrderedDict[int, bytes], index: int, state_hash: bytes
) -> None:
    """``side``: the own hashes or the leader's. Compares once both know the same index."""
    side[index] = state_hash
    while len(side) > STATE_HASHES_KEPT:
        side.popitem(last=False)
    own_hash, leader_hash = state.state_hashes.get(index), state.leader_hashes.get(index)
    if own_hash is not None and leader_hash is not None and own_hash != leader_hash:
        state.divergence = Divergence(index=index, own_hash=own_hash, leader_hash=leader_hash)


# Leader


def on_append_response(state: RaftState, message: AppendResponse) -> None:
    if state.leadership is None:
        return
    if message.match_index > state.log.last_index:
        state.ignored["ack_beyond_log"] += 1
        return
    progress = state.leadership.progress[message.source]
    progress.recently_active = True
    progress.snapshot_silent_ticks = 0
    if message.rejected:
        possible_index, _ = state.log.last_possible_match(message.hint_index, message.hint_term)
        progress.rejected(rejected_index=message.match_index, possible_index=possible_index)
        return
    advanced = progress.acknowledged(message.match_index)
    _follow_up_ack(state, progress)
    if advanced:
        advance_commit(state)
        send_timeout_now_when_caught_up(state)


def _follow_up_ack(state: RaftState, progress: Progress) -> None:
    """Pipeline again once the follower's position is certain."""
    match progress.state:
        case ProgressState.PROBE if progress.next_index == progress.match_index + 1:
            progress.become_replicate()
        case ProgressState.SNAPSHOT if progress.match_index >= state.log.offset_index:
            progress.become_replicate()
        case _:
            pass  # an old ack: the probe or the snapshot is still on its way


def on_heartbeat_response(state: RaftState, message: HeartbeatResponse) -> None:
    if state.leadership is None:
        return
    progress = state.leadership.progress[message.source]
    progress.recently_active = True
    progress.probe_sent = False
    progress.needs_nudge = progress.match_index < state.log.last_index
    reads = state.leadership.reads
    if message.read_sequence > reads.sequence:
        state.ignored["read_ack_beyond_sequence"] += 1
        return
    progress.acknowledged_read = max(progress.acknowledged_read, message.read_sequence)
    confirm_reads(state)


def confirm_reads(state: RaftState) -> None:
    assert state.leadership is not None
    leadership = state.leadership
    leadership.progress[state.config.node].acknowledged_read = leadership.reads.sequence
    majority = majority_index(p.acknowledged_read for p in leadership.progress.values())
    state.confirmed_reads += leadership.reads.confirm(majority)


def advance_commit(state: RaftState) -> None:
    """Commit what a majority holds on disk (the leader counts its own disk, not its memory)."""
    assert state.leadership is not None
    log = state.log
    index = majority_index(p.match_index for p in state.leadership.progress.values())
    if index <= log.commit_index or not may_commit_by_counting(state, index):
        return
    state.leadership.uncommitted_bytes -= log.size_between(log.commit_index, index)
    log.commit_to(index)


def may_commit_by_counting(state: RaftState, index: int) -> bool:
    """Only entries of the own term; older ones commit along with them (paper figure 8)."""
    return state.log.term_at(index) == state.term


def has_committed_in_term(state: RaftState) -> bool:
    return state.log.term_at(state.log.commit_index) == state.term


def note_own_disk(state: RaftState) -> None:
    """The driver has persisted: the leader's own ack."""
    if state.leadership is not None:
        progress = state.leadership.progress[state.config.node]
        if progress.acknowledged(own_match_index(state.log)):
            advance_commit(state)
            send_timeout_now_when_caught_up(state)


def own_match_index(log: RaftLog) -> int:
    return log.durable_index


def tick_heartbeat(state: RaftState) -> None:
    state.heartbeat_elapsed_ticks += 1
    if state.heartbeat_elapsed_ticks >= state.config.heartbeat_ticks:
        send_heartbeats(state)


def send_heartbeats(state: RaftState) -> None:
    assert state.leadership is not None
    state.heartbeat_elapsed_ticks = 0
    hash_index, state_hash = next(reversed(state.state_hashes.items()), (0, b""))
    for peer in state.config.peers:
        progress = state.leadership.progress[peer]
        state.send(
            HeartbeatRequest(
                source=state.config.node,
                target=peer,
                term=state.term,
                commit_index=min(state.log.commit_index, progress.match_index),
                read_sequence=state.leadership.reads.sequence,
                hash_index=hash_index,
                state_hash=state_hash,
            )
        )


def flush(state: RaftState) -> None:
    """Put on the wire what this turn has produced: read rounds, then entries per follower."""
    assert state.leadership is not None
    reads = state.leadership.reads
    if reads.waiting and has_committed_in_term(state):
        reads.open_round(state.log.commit_index)
        send_heartbeats(state)
        confirm_reads(state)  # at once where the quorum is one
    for peer in state.config.peers:
        _flush_peer(state, peer, state.leadership.progress[peer])


def has_unsent(state: RaftState) -> bool:
    """Whether `flush` would send something."""
    leadership = state.leadership
    if leadership is None:
        return False
    if leadership.reads.waiting and has_committed_in_term(state):
        return True
    return any(_has_news(state, leadership.progress[peer]) for peer in state.config.peers)


def _has_news(state: RaftState, progress: Progress) -> bool:
    if progress.state is ProgressState.SNAPSHOT:
        return False
    if not progress.recently_active and state.log.term_at(progress.next_index - 1) is None:
        return False  # needs a snapshot, and is silent: see `send_snapshot`
    if progress.state is ProgressState.PROBE:
        return not progress.probe_sent
    has_entries = progress.next_index <= state.log.last_index and not progress.is_full
    return has_entries or _owes_empty_append(state, progress)


def _owes_empty_append(state: RaftState, progress: Progress) -> bool:
    """To show where a lagging follower is, or to pass on a commit index without waiting."""
    if progress.state is ProgressState.PROBE:
        return not progress.probe_sent
    return progress.state is ProgressState.REPLICATE and (
        progress.needs_nudge or progress.sent_commit_index < state.log.commit_index
    )


def _flush_peer(state: RaftState, peer: NodeId, progress: Progress) -> None:
    while not progress.is_paused and progress.next_index <= state.log.last_index:
        if not _send_append(state, peer, progress, with_entries=True):
            return
    if _owes_empty_append(state, progress):
        _send_append(state, peer, progress, with_entries=False)


def _send_append(state: RaftState, peer: NodeId, progress: Progress, *, with_entries: bool) -> bool:
    """False when a snapshot has to go (or to wait) instead."""
    log = state.log
    prev_index = progress.next_index - 1
    prev_term = log.term_at(prev_index)
    if prev_term is None:
        send_snapshot(state, peer, progress)
        return False
    entries = (
        log.slice_from(progress.next_index, max_bytes=state.config.max_message_bytes)
        if with_entries
        else []
    )
    state.send(
        AppendRequest(
            source=state.config.node,
            target=peer,
            term=state.term,
            prev_index=prev_index,
            prev_term=prev_term,
            commit_index=log.commit_index,
            entries=entries,
        )
    )
    last_index = prev_index + len(entries)
    progress.sent(last_index, size_bytes=log.size_between(prev_index, last_index))
    progress.needs_nudge = False
    progress.sent_commit_index = log.commit_index
    return True
