"""What a message of another term does, before its own handler sees it (paper section 5.1).

Higher term: step down and adopt it, except for questions about a future term (pre-votes) and for
campaigns against a leader that is alive. Lower term: the sender is stale; tell it so, if it asked.
"""

from __future__ import annotations

from pdd.raft.election import hears_other_leader
from pdd.raft.messages import (
    LEADER_MESSAGES,
    AppendRequest,
    AppendResponse,
    HeartbeatRequest,
    InstallSnapshot,
    Message,
    PreVoteRequest,
    PreVoteResponse,
    VoteRequest,
    VoteResponse,
)
from pdd.raft.roles import become_follower
from pdd.raft.state import RaftState


def admit(state: RaftState, message: Message) -> bool:
    """Settle the terms. True when the message's handler should run."""
    if message.term > state.term:
        return _admit_higher(state, message)
    if message.term < state.term:
        answer_stale(state, message)
        return False
    return True


def _admit_higher(state: RaftState, message: Message) -> bool:
    match message:
        case PreVoteRequest():
            return not hears_other_leader(state, message.source)
        case PreVoteResponse(granted=True):
            return True
        case VoteRequest(is_transfer=False) if hears_other_leader(state, message.source):
            return False
        case _:
            leader = message.source if isinstance(message, LEADER_MESSAGES) else None
            become_follower(state, term=message.term, leader=leader)
            return True


def answer_stale(state: RaftState, message: Message) -> None:
    """Without this answer a replica in a higher term, which ignores the leader and is ignored by
    the leader's followers, would be stuck for ever; with it the leader steps down."""
    node, source = state.config.node, message.source
    match message:
        case AppendRequest() | HeartbeatRequest() | InstallSnapshot():
            state.send(
                AppendResponse(
                    source=node, target=source, term=state.term, match_index=0, rejected=True
                )
            )
        case VoteRequest():
            state.send(VoteResponse(source=node, target=source, term=state.term, granted=False))
        case PreVoteRequest():
            state.send(PreVoteResponse(source=node, target=source, term=state.term, granted=False))
        case _:
            pass  # a late answer, or a late TimeoutNow: nobody waits for a reply
