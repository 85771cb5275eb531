"""Arithmetic of majorities. Each function has a dumb twin in tests/property/test_raft_quorum.py."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

from pdd.raft.values import NodeId


class VoteResult(StrEnum):
    PENDING = "pending"
    WON = "won"
    LOST = "lost"


def majority_index(acknowledged: Iterable[int]) -> int:
    """Largest number that a majority has reached, one number per voter (paper section 5.3)."""
    ordered = sorted(acknowledged, reverse=True)
    return ordered[len(ordered) // 2]


def vote_result(votes: Mapping[NodeId, bool], *, voter_count: int) -> VoteResult:
    """``votes`` is keyed by voter, so one voter counts once however often its answer arrives."""
    quorum = voter_count // 2 + 1
    granted = sum(1 for vote in votes.values() if vote)
    refused = len(votes) - granted
    if granted >= quorum:
        return VoteResult.WON
    if voter_count - refused < quorum:
        return VoteResult.LOST
    return VoteResult.PENDING
