"""Majorities against a dumb twin that counts."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from pdd.raft.quorum import VoteResult, majority_index, vote_result
from pdd.raft.values import NodeId

VOTERS = [NodeId(f"s{number}") for number in range(5)]
SETTINGS = settings(deadline=None, derandomize=True, max_examples=300)


def dumb_majority_index(acknowledged: list[int]) -> int:
    """The largest number that more than half have reached, by trying all."""
    best = 0
    for candidate in acknowledged:
        holders = [one for one in acknowledged if one >= candidate]
        if len(holders) * 2 > len(acknowledged):
            best = max(best, candidate)
    return best


@SETTINGS
@given(
    st.sampled_from([1, 3, 5]).flatmap(
        lambda n: st.lists(st.integers(0, 9), min_size=n, max_size=n)
    )
)
def test_the_majority_index_is_what_counting_says(acknowledged: list[int]) -> None:
    assert majority_index(acknowledged) == dumb_majority_index(acknowledged)


@SETTINGS
@given(
    st.sampled_from([1, 3, 5]),
    st.lists(st.one_of(st.none(), st.booleans()), min_size=5, max_size=5),
)
def test_a_vote_is_decided_when_the_open_ones_cannot_change_it(
    voter_count: int, answers: list[bool | None]
) -> None:
    votes = {
        voter: answer
        for voter, answer in zip(VOTERS[:voter_count], answers, strict=False)
        if answer is not None
    }
    open_count = voter_count - len(votes)
    granted = sum(votes.values())
    could_win = (granted + open_count) * 2 > voter_count
    has_won = granted * 2 > voter_count
    expected = VoteResult.WON if has_won else VoteResult.PENDING if could_win else VoteResult.LOST
    assert vote_result(votes, voter_count=voter_count) is expected
