"""RaftCore: one replica of the log, as a pure object.

    driver                          core
      tick / step / propose / ... --->  decides
      <------------------------------  ready()      what to persist, send, apply
      persist, send, apply
      advance(ready) -------------->   counts what is durable and applied

Peers' input never raises: what cannot be is dropped and counted in `ignored`. An AssertionError is
a bug of ours and must end the process, before it ends the data.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from pdd.raft import election, replication, snapshots, terms
from pdd.raft.config import RaftConfig
from pdd.raft.log import RaftLog
from pdd.raft.messages import (
    AppendRequest,
    AppendResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    InstallSnapshot,
    Message,
    PreVoteRequest,
    PreVoteResponse,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
    fault_in,
)
from pdd.raft.ready import Ready, has_ready, take_ready
from pdd.raft.roles import append_as_leader, restart_election_clock
from pdd.raft.state import RaftState, Role, Transfer
from pdd.raft.values import (
    EMPTY_HARD_STATE,
    ENTRY_OVERHEAD_BYTES,
    NO_SNAPSHOT,
    Entry,
    EntryKind,
    HardState,
    NodeId,
    SnapshotMeta,
)


class Refusal(StrEnum):
    """Why an input was not taken. Nothing of it will ever happen; retry elsewhere or later."""

    NOT_LEADER = "not_leader"
    TRANSFERRING = "transferring"
    TOO_LARGE = "too_large"
    UNCOMMITTED_FULL = "uncommitted_full"
    READS_FULL = "reads_full"
    UNKNOWN_TARGET = "unknown_target"


class Proposed(NamedTuple):
    """In the leader's log. Whether it commits is known only when ``(index, term)`` is applied."""

    index: int  # type: ignore[assignment]  # in place of tuple's method, which nobody calls
    term: int


class RaftCore:
    def __init__(
        self,
        config: RaftConfig,
        *,
        rng: random.Random,
        hard_state: HardState = EMPTY_HARD_STATE,
        snapshot: SnapshotMeta = NO_SNAPSHOT,
        entries: Sequence[Entry] = (),
    ) -> None:
        """Start as a follower from what the disk holds (nothing, for a new cluster).

        The driver has restored ``snapshot`` into the state machine; committed entries after it
        come again through `ready`.
        """
        self.state = RaftState(
            config=config,
            random=rng,
            log=RaftLog(snapshot=snapshot, entries=entries, commit_index=hard_state.commit_index),
            term=hard_state.term,
            vote=hard_state.vote,
            written=hard_state,
            durable_term=hard_state.term,
        )
        assert self.state.log.last_term <= hard_state.term, "log from a term never voted in"
        restart_election_clock(self.state)
        self._outstanding: Ready | None = None

    # Inputs

    def tick(self) -> None:
        state = self.state
        if state.is_leader:
            election.tick_transfer(state)
            election.tick_check_quorum(state)
        else:
            election.tick_election(state)
        if state.is_leader:  # still, or as a single voter just now
            snapshots.tick_snapshots(state)
            replication.tick_heartbeat(state)

    def step(self, message: Message) -> None:
        """Take one message whose sender the transport has authenticated."""
        fault = fault_in(message, self.state.config)
        if fault is not None:
            self.state.ignored[fault] += 1
            return
        if terms.admit(self.state, message):
            _HANDLERS[type(message)](self.state, message)

    def propose(self, data: bytes) -> Proposed | Refusal:
        state = self.state
        leadership = state.leadership
        if leadership is None:
            return Refusal.NOT_LEADER
        if leadership.transfer is not None:
            return Refusal.TRANSFERRING
        size_bytes = len(data) + ENTRY_OVERHEAD_BYTES
        if len(data) > state.config.max_entry_bytes:
            return Refusal.TOO_LARGE
        if would_overfill(leadership.uncommitted_bytes, size_bytes, state.config):
            return Refusal.UNCOMMITTED_FULL
        entry = append_as_leader(state, kind=EntryKind.COMMAND, data=data)
        return Proposed(entry.index, entry.term)

    def read_index(self, context: object) -> Refusal | None:
        """Ask for a linearizable read. ``context`` comes back in `Ready.reads`, or in
        `Ready.aborted_reads` when the leadership ends first. None: accepted."""
        state = self.state
        if state.leadership is None:
            return Refusal.NOT_LEADER
        pending_count = state.leadership.reads.pending_count + len(state.confirmed_reads)
        if pending_count >= state.config.max_pending_reads:
            return Refusal.READS_FULL
        state.leadership.reads.waiting.append(context)
        return None

    def transfer(self, target: NodeId) -> Refusal | None:
        """Hand the leadership to ``target`` once it holds the whole log; proposals are refused
        meanwhile, at most for one election timeout. None: begun (or already under way)."""
        state = self.state
        if state.leadership is None:
            return Refusal.NOT_LEADER
        if target not in state.config.peers:
            return Refusal.UNKNOWN_TARGET
        if state.leadership.transfer is not None:
            same = state.leadership.transfer.target == target
            return None if same else Refusal.TRANSFERRING
        state.leadership.transfer = Transfer(target=target)
        election.send_timeout_now_when_caught_up(state)
        return None

    def report_snapshot(self, target: NodeId, *, delivered: bool) -> None:
        """How the transfer of an InstallSnapshot ended, as far as the transport knows."""
        snapshots.on_snapshot_report(self.state, target, delivered=delivered)

    def compact(self, meta: SnapshotMeta, *, keep_entries: int) -> None:
        """A snapshot of the own state machine at ``meta`` is durable."""
        self.state.log.compact(meta, keep_entries=keep_entries)

    def report_state_hash(self, index: int, state_hash: bytes) -> None:
        """The state machine's hash after applying ``index`` (a multiple of the interval)."""
        replication.note_state_hash(self.state, self.state.state_hashes, index, state_hash)

    # Output

    def has_ready(self) -> bool:
        """Whether `ready` would hold work. Changes nothing, so it may be asked at any time."""
        if self._outstanding is not None:
            return False
        return has_ready(self.state) or replication.has_unsent(self.state)

    def ready(self) -> Ready:
        assert self._outstanding is None, "ready() before advance() of the previous one"
        if self.state.leadership is not None:
            replication.flush(self.state)
        self._outstanding = take_ready(self.state)
        return self._outstanding

    def advance(self, ready: Ready) -> None:
        """Steps 1 to 5 of `Ready` are done."""
        assert ready is self._outstanding, "advance() of another Ready"
        self._outstanding = None
        state = self.state
        if ready.hard_state is not None:
            state.durable_term = ready.hard_state.term
        state.log.mark_written(ready.snapshot.meta if ready.snapshot is not None else None)
        if ready.committed:
            state.log.mark_applied(ready.committed[-1].index)
        replication.note_own_disk(state)

    # Looking

    @property
    def role(self) -> Role:
        return self.state.role

    @property
    def term(self) -> int:
        return self.state.term

    @property
    def leader(self) -> NodeId | None:
        return self.state.leader


def would_overfill(uncommitted_bytes: int, size_bytes: int, config: RaftConfig) -> bool:
    """One entry always fits, else a bound below the entry size would refuse everything."""
    return uncommitted_bytes > 0 and uncommitted_bytes + size_bytes > config.max_uncommitted_bytes


def _on_install_snapshot(state: RaftState, message: InstallSnapshot) -> None:
    if replication.accept_leader(state, message):
        snapshots.on_install_snapshot(state, message)


_HANDLERS: dict[type[Message], Callable[[RaftState, Any], None]] = {
    VoteRequest: lambda s, m: election.on_vote_request(s, m),
    VoteResponse: lambda s, m: election.on_vote_response(s, m),
    PreVoteRequest: lambda s, m: election.on_pre_vote_request(s, m),
    PreVoteResponse: lambda s, m: election.on_pre_vote_response(s, m),
    AppendRequest: lambda s, m: replication.on_append_request(s, m),
    AppendResponse: lambda s, m: replication.on_append_response(s, m),
    HeartbeatRequest: lambda s, m: replication.on_heartbeat_request(s, m),
    HeartbeatResponse: lambda s, m: replication.on_heartbeat_response(s, m),
    InstallSnapshot: _on_install_snapshot,
    TimeoutNow: lambda s, m: election.on_timeout_now(s, m),
}
