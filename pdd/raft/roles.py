"""The transitions between follower, pre-candidate, candidate and leader (paper figure 4).

            timeout                majority would vote           majority voted
  FOLLOWER ---------> PRE_CANDIDATE ------------------> CANDIDATE --------------> LEADER
     ^  ^                  |                                |                        |
     |  '--- refused ------'                                |                        |
     '------ higher term, a leader of this term, or no quorum in sight --------------'

Each transition that opens a new attempt draws a new election timeout, so that two replicas that
tied once do not tie for ever.
"""

from __future__ import annotations

from pdd.raft.progress import Progress
from pdd.raft.reads import ReadRounds
from pdd.raft.state import Leadership, RaftState, Role
from pdd.raft.values import ENTRY_OVERHEAD_BYTES, Entry, EntryKind, NodeId


def become_follower(state: RaftState, *, term: int, leader: NodeId | None) -> None:
    assert term >= state.term, f"term would fall from {state.term} to {term}"
    if term > state.term:
        state.term = term
        state.vote = None
    if state.role is not Role.FOLLOWER:
        # A follower that only learns a term keeps its clock: else a replica that campaigns in
        # vain again and again would keep everybody else from ever campaigning.
        restart_election_clock(state)
    _drop_leadership(state)
    state.role = Role.FOLLOWER
    state.leader = leader
    state.votes = {}


def become_pre_candidate(state: RaftState) -> None:
    """Ask whether an election could be won; term and vote stay (thesis section 9.6)."""
    assert state.role is not Role.LEADER, "a leader does not campaign"
    restart_election_clock(state)
    state.role = Role.PRE_CANDIDATE
    state.leader = None
    state.votes = {state.config.node: True}


def become_candidate(state: RaftState) -> None:
    assert state.role is not Role.LEADER, "a leader does not campaign"
    restart_election_clock(state)
    state.term += 1
    state.vote = state.config.node
    state.role = Role.CANDIDATE
    state.leader = None
    state.votes = {state.config.node: True}


def become_leader(state: RaftState) -> None:
    assert state.role is Role.CANDIDATE, "only a candidate wins"
    assert state.log.unsaved_snapshot is None, "won while a snapshot is not durable"
    config, log = state.config, state.log
    restart_election_clock(state)
    state.heartbeat_elapsed_ticks = 0
    state.role = Role.LEADER
    state.leader = config.node
    progress = {
        voter: Progress(next_index=log.last_index + 1, config=config) for voter in config.voters
    }
    progress[config.node].match_index = log.durable_index
    state.leadership = Leadership(
        progress=progress,
        reads=ReadRounds(),
        uncommitted_bytes=log.size_between(log.commit_index, log.last_index),
    )
    append_term_start(state)


def append_term_start(state: RaftState) -> None:
    """A no-op of the new term: only an entry of its own term lets a leader commit by counting,
    and with it everything before (paper sections 5.4.2 and 8)."""
    append_as_leader(state, kind=EntryKind.NOOP, data=b"")


def append_as_leader(state: RaftState, *, kind: EntryKind, data: bytes) -> Entry:
    leadership, log = state.leadership, state.log
    assert leadership is not None
    entry = Entry(log.last_index + 1, state.term, kind, data)
    log.append(entry)
    leadership.uncommitted_bytes += len(data) + ENTRY_OVERHEAD_BYTES
    return entry


def restart_election_clock(state: RaftState) -> None:
    state.election_elapsed_ticks = 0
    state.election_timeout_ticks = draw_election_timeout(state)


def draw_election_timeout(state: RaftState) -> int:
    """Uniform in [election_ticks, 2 * election_ticks) (paper section 5.2)."""
    return state.config.election_ticks + state.random.randrange(state.config.election_ticks)


def _drop_leadership(state: RaftState) -> None:
    if state.leadership is not None:
        state.aborted_reads += state.leadership.reads.drain()
        state.leadership = None
    # Confirmed reads stay: a majority vouched for them after they arrived.
