"""Votes, pre-votes, campaigns and leadership transfer.

Liveness of pre-vote and check-quorum together rests on four habits, each with a test:
 - a pre-vote neither changes the voter's term nor refreshes its contact with the leader;
 - a replica that hears its leader ignores campaigns, except one its own leader starts (that leader
   has evidently given up) or wishes (transfer);
 - a refused pre-vote teaches the candidate the newer term;
 - a stale leader is answered with the newer term (see `terms`), so a candidate stuck in a higher
   term cannot be ignored for ever.
"""

from __future__ import annotations

from pdd.raft.messages import (
    PreVoteRequest,
    PreVoteResponse,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from pdd.raft.quorum import VoteResult, vote_result
from pdd.raft.roles import (
    become_candidate,
    become_follower,
    become_leader,
    become_pre_candidate,
)
from pdd.raft.state import RaftState, Role
from pdd.raft.values import NodeId


def campaign(state: RaftState) -> None:
    """The election timeout has passed: ask first whether it is worth it."""
    become_pre_candidate(state)
    if _count_votes(state) is VoteResult.WON:  # a single voter
        start_election(state, is_transfer=False)
        return
    for peer in state.config.peers:
        state.send(
            PreVoteRequest(
                source=state.config.node,
                target=peer,
                term=state.term + 1,
                last_index=state.log.last_index,
                last_term=state.log.last_term,
            )
        )


def start_election(state: RaftState, *, is_transfer: bool) -> None:
    become_candidate(state)
    if _count_votes(state) is VoteResult.WON:
        become_leader(state)
        return
    for peer in state.config.peers:
        state.send(
            VoteRequest(
                source=state.config.node,
                target=peer,
                term=state.term,
                last_index=state.log.last_index,
                last_term=state.log.last_term,
                is_transfer=is_transfer,
            )
        )


def on_pre_vote_request(state: RaftState, message: PreVoteRequest) -> None:
    granted = message.term > state.term and is_up_to_date(
        state, last_index=message.last_index, last_term=message.last_term
    )
    state.send(
        PreVoteResponse(
            source=state.config.node,
            target=message.source,
            term=message.term if granted else state.term,
            granted=granted,
        )
    )


def on_vote_request(state: RaftState, message: VoteRequest) -> None:
    """``message.term`` is this replica's term by now."""
    granted = may_vote_for(state, message.source) and is_up_to_date(
        state, last_index=message.last_index, last_term=message.last_term
    )
    if granted:
        state.vote = message.source
        state.election_elapsed_ticks = 0
    state.send(
        VoteResponse(
            source=state.config.node, target=message.source, term=state.term, granted=granted
        )
    )


def may_vote_for(state: RaftState, candidate: NodeId) -> bool:
    """One vote per term, kept across restarts; the same candidate may ask again."""
    return state.vote == candidate or (state.vote is None and state.leader is None)


def is_up_to_date(state: RaftState, *, last_index: int, last_term: int) -> bool:
    """Paper section 5.4.1: the later last term wins; at the same term the longer log."""
    return (last_term, last_index) >= (state.log.last_term, state.log.last_index)


def hears_other_leader(state: RaftState, candidate: NodeId) -> bool:
    """Whether to stay loyal to the present leader rather than help ``candidate``."""
    return (
        state.leader is not None
        and state.leader != candidate
        and state.election_elapsed_ticks < state.config.election_ticks
    )


def on_pre_vote_response(state: RaftState, message: PreVoteResponse) -> None:
    if state.role is not Role.PRE_CANDIDATE:
        return
    if message.granted and message.term != state.term + 1:
        return  # answer to a campaign of an earlier term
    match record_vote(state, message.source, granted=message.granted):
        case VoteResult.WON:
            start_election(state, is_transfer=False)
        case VoteResult.LOST:
            become_follower(state, term=state.term, leader=None)
        case VoteResult.PENDING:
            pass


def on_vote_response(state: RaftState, message: VoteResponse) -> None:
    if state.role is not Role.CANDIDATE:
        return
    match record_vote(state, message.source, granted=message.granted):
        case VoteResult.WON:
            become_leader(state)
        case VoteResult.LOST:
            become_follower(state, term=state.term, leader=None)
        case VoteResult.PENDING:
            pass


def record_vote(state: RaftState, voter: NodeId, *, granted: bool) -> VoteResult:
    """Votes are kept by voter; the first answer of an attempt stands."""
    state.votes.setdefault(voter, granted)
    return _count_votes(state)


def _count_votes(state: RaftState) -> VoteResult:
    return vote_result(state.votes, voter_count=len(state.config.voters))


def on_timeout_now(state: RaftState, message: TimeoutNow) -> None:
    if state.leader != message.source or not may_campaign(state):
        return
    start_election(state, is_transfer=True)


def send_timeout_now_when_caught_up(state: RaftState) -> None:
    """Transfer: the target must hold the whole log, else it could not win."""
    leadership = state.leadership
    if leadership is None or leadership.transfer is None or leadership.transfer.timeout_now_sent:
        return
    target = leadership.transfer.target
    if leadership.progress[target].match_index == state.log.last_index:
        leadership.transfer.timeout_now_sent = True
        state.send(TimeoutNow(source=state.config.node, target=target, term=state.term))


def tick_transfer(state: RaftState) -> None:
    """Give up after one election timeout, so that proposals are not refused for ever."""
    leadership = state.leadership
    if leadership is None or leadership.transfer is None:
        return
    leadership.transfer.elapsed_ticks += 1
    if leadership.transfer.elapsed_ticks >= state.config.election_ticks:
        leadership.transfer = None


def tick_election(state: RaftState) -> None:
    state.election_elapsed_ticks += 1
    if state.election_elapsed_ticks >= state.election_timeout_ticks and may_campaign(state):
        campaign(state)


def may_campaign(state: RaftState) -> bool:
    """Not while an installed snapshot is on its way to the disk: its log is not yet ours."""
    return state.role is not Role.LEADER and state.log.unsaved_snapshot is None


def tick_check_quorum(state: RaftState) -> None:
    """A leader that has not heard a majority for one election timeout steps down.

    Else one cut off from the others would go on taking proposals it can never commit.
    """
    state.election_elapsed_ticks += 1
    if state.election_elapsed_ticks < state.config.election_ticks:
        return
    state.election_elapsed_ticks = 0
    assert state.leadership is not None
    active_count = 1
    for peer in state.config.peers:
        progress = state.leadership.progress[peer]
        active_count += progress.recently_active
        progress.recently_active = False
    if active_count < state.config.quorum:
        become_follower(state, term=state.term, leader=None)
