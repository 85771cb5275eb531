"""The extended Raft paper, section by section. Each test names the sentence it checks."""

from __future__ import annotations

import pytest

from pdd.raft.messages import (
    AppendRequest,
    AppendResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    Message,
    PreVoteRequest,
    PreVoteResponse,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from pdd.raft.state import Role
from pdd.raft.values import EntryKind
from tests.simulation.raft.harness import Cluster

S0, S1, S2 = Cluster(3).voters


def messages_of_term(term: int) -> list[Message]:
    """One of each kind whose term is adopted, from s1 to s0."""
    return [
        VoteRequest(source=S1, target=S0, term=term, last_index=0, last_term=0),
        VoteResponse(source=S1, target=S0, term=term, granted=False),
        PreVoteResponse(source=S1, target=S0, term=term, granted=False),
        AppendRequest(source=S1, target=S0, term=term, prev_index=0, prev_term=0, commit_index=0),
        AppendResponse(source=S1, target=S0, term=term, match_index=0, rejected=True),
        HeartbeatRequest(source=S1, target=S0, term=term, commit_index=0),
        HeartbeatResponse(source=S1, target=S0, term=term),
    ]


def in_role(role: Role) -> Cluster:
    cluster = Cluster(3)
    match role:
        case Role.PRE_CANDIDATE:
            cluster.time_out("s0")
        case Role.CANDIDATE:
            cluster.time_out("s0")
            cluster.give(cluster.take(PreVoteRequest))
            cluster.give(cluster.take(PreVoteResponse))
        case Role.LEADER:
            cluster.elect("s0")
            for name in cluster.voters:
                cluster.forget_leader(name)
        case Role.FOLLOWER:
            cluster.elect("s1")
            for name in cluster.voters:
                cluster.forget_leader(name)
    cluster.take()
    assert cluster.role("s0") is role
    return cluster


@pytest.mark.parametrize("role", list(Role))
@pytest.mark.parametrize("message", messages_of_term(9), ids=lambda m: type(m).__name__)
def test_5_1_a_larger_term_is_adopted_and_ends_any_office(role: Role, message: Message) -> None:
    """ "If one server's current term is smaller than the other's, then it updates its current
    term to the larger value. If a candidate or leader discovers that its term is out of date, it
    immediately reverts to follower state." """
    cluster = in_role(role)
    cluster.give(message)
    assert cluster.term("s0") == 9
    assert cluster.role("s0") is Role.FOLLOWER


@pytest.mark.parametrize("message", messages_of_term(1), ids=lambda m: type(m).__name__)
def test_5_1_a_message_of_a_stale_term_changes_nothing(message: Message) -> None:
    """ "If a server receives a request with a stale term number, it rejects the request." """
    cluster = Cluster(3)
    cluster.given("s0", terms=[1, 2], term=5)
    cluster.give(message)
    assert (cluster.term("s0"), cluster.role("s0")) == (5, Role.FOLLOWER)
    assert cluster.terms("s0") == [1, 2]
    assert cluster.cores["s0"].leader is None
    for answer in cluster.take(target="s1"):
        assert answer.term == 5
        assert getattr(answer, "rejected", False) or not getattr(answer, "granted", True)


def test_5_2_servers_start_as_followers() -> None:
    """ "When servers start up, they begin as followers." """
    cluster = Cluster(3)
    assert {cluster.role(name) for name in cluster.voters} == {Role.FOLLOWER}


def test_5_2_a_leader_sends_heartbeats_to_all() -> None:
    """ "Leaders send periodic heartbeats to all followers." """
    cluster = Cluster(3, heartbeat_ticks=2)
    cluster.elect("s0")
    cluster.tick("s0")
    assert cluster.take(HeartbeatRequest) == []
    cluster.tick("s0")
    assert [m.target for m in cluster.take(HeartbeatRequest)] == ["s1", "s2"]


def test_5_2_silence_starts_an_election() -> None:
    """ "If a follower receives no communication over a period of time called the election
    timeout, it begins an election", here after a pre-election (thesis 9.6)."""
    cluster = Cluster(3)
    cluster.time_out("s0")
    assert cluster.role("s0") is Role.PRE_CANDIDATE
    assert [m.term for m in cluster.take(PreVoteRequest)] == [1, 1]
    assert cluster.term("s0") == 0


def test_5_2_a_candidate_raises_its_term_votes_for_itself_and_asks_all() -> None:
    """ "It increments its current term and transitions to candidate state. It then votes for
    itself and issues RequestVote RPCs in parallel." """
    cluster = Cluster(3)
    cluster.time_out("s0")
    cluster.give(cluster.take(PreVoteRequest))
    cluster.give(cluster.take(PreVoteResponse))
    assert cluster.role("s0") is Role.CANDIDATE
    assert cluster.checker.shadows[S0].hard_state.vote == "s0"
    assert [(m.target, m.term) for m in cluster.take(VoteRequest)] == [("s1", 1), ("s2", 1)]


@pytest.mark.parametrize(
    ("count", "votes", "role"),
    [
        (1, [], Role.LEADER),
        (3, [True], Role.LEADER),
        (3, [], Role.CANDIDATE),
        (3, [False], Role.CANDIDATE),
        (3, [False, True], Role.LEADER),
        (3, [False, False], Role.FOLLOWER),
        (5, [True], Role.CANDIDATE),
        (5, [True, True], Role.LEADER),
        (5, [False, False, True], Role.CANDIDATE),
        (5, [False, False, True, True], Role.LEADER),
        (5, [False, False, False], Role.FOLLOWER),
    ],
)
def test_5_2_a_majority_elects(count: int, votes: list[bool], role: Role) -> None:
    """ "A candidate wins an election if it receives votes from a majority of the servers." """
    cluster = Cluster(count)
    cluster.time_out("s0")
    cluster.give(cluster.take(PreVoteRequest))
    cluster.give(cluster.take(PreVoteResponse))
    cluster.take()
    for number, granted in enumerate(votes, start=1):
        cluster.give(
            VoteResponse(source=cluster.voters[number], target=S0, term=1, granted=granted)
        )
    assert cluster.role("s0") is role


@pytest.mark.parametrize(
    ("voted_for", "candidate", "granted"),
    [(None, "s1", True), (None, "s2", True), ("s1", "s1", True), ("s1", "s2", False)],
)
def test_5_2_one_vote_per_term_first_come_first_served(
    voted_for: str | None, candidate: str, granted: bool
) -> None:
    """ "Each server will vote for at most one candidate in a given term, on a
    first-come-first-served basis." """
    cluster = Cluster(3)
    asked = [name for name in (voted_for, candidate) if name is not None]
    for name in asked:
        source = cluster.voters[int(name[1])]
        cluster.give(VoteRequest(source=source, target=S0, term=1, last_index=0, last_term=0))
    assert cluster.take(VoteResponse)[-1].granted is granted


@pytest.mark.parametrize("term", [1, 2])
def test_5_2_a_candidate_recognises_the_leader_of_its_term_or_a_later_one(term: int) -> None:
    """ "If the leader's term is at least as large as the candidate's current term, then the
    candidate recognizes the leader as legitimate and returns to follower state." """
    cluster = in_role(Role.CANDIDATE)
    cluster.give(
        AppendRequest(source=S1, target=S0, term=term, prev_index=0, prev_term=0, commit_index=0)
    )
    assert cluster.role("s0") is Role.FOLLOWER
    assert cluster.cores["s0"].leader == "s1"


def test_5_2_timeouts_of_several_replicas_seldom_coincide() -> None:
    """ "Raft uses randomized election timeouts to ensure that split votes are rare." """
    coincidences = 0
    for seed in range(200):
        cluster = Cluster(5, seed=seed)
        drawn = sorted(core.state.election_timeout_ticks for core in cluster.cores.values())
        coincidences += drawn[0] == drawn[1]
    assert coincidences < 100


def test_5_3_a_proposal_is_appended_sent_and_committed_by_a_majority() -> None:
    """ "The leader appends the command to its log as a new entry, then issues AppendEntries RPCs
    in parallel to each of the other servers. When the entry has been safely replicated, the
    leader applies the entry to its state machine and returns the result." """
    cluster = Cluster(3)
    cluster.elect("s0")
    cluster.propose("s0", b"x")
    requests = cluster.take(AppendRequest)
    assert [m.target for m in requests] == ["s1", "s2"]
    for m in requests:
        assert (m.prev_index, m.prev_term, m.commit_index) == (1, 1, 1)
        assert [(e.index, e.term, e.data) for e in m.entries] == [(2, 1, b"x")]
    assert cluster.commands("s0") == []
    cluster.give(requests[:1])
    cluster.give(cluster.take(AppendResponse))
    assert cluster.commands("s0") == [b"x"]
    assert cluster.commands("s1") == []
    cluster.run()
    assert cluster.commands("s1") == [b"x"], "followers learn the commit index"


@pytest.mark.parametrize(
    ("count", "acks", "committed"),
    [
        (3, 0, False),
        (3, 1, True),
        (3, 2, True),
        (5, 0, False),
        (5, 1, False),
        (5, 2, True),
        (5, 3, True),
        (5, 4, True),
    ],
)
def test_5_3_committed_means_on_a_majority(count: int, acks: int, committed: bool) -> None:
    """ "A log entry is committed once the leader that created the entry has replicated it on a
    majority of the servers." """
    cluster = Cluster(count)
    cluster.elect("s0")
    cluster.propose("s0", b"x")
    for peer in cluster.voters[1 : 1 + acks]:
        cluster.give(cluster.take(AppendRequest, target=peer))
    cluster.take(AppendRequest)
    cluster.give(cluster.take(AppendResponse))
    assert (cluster.commit("s0") == 2) is committed


@pytest.mark.parametrize("terms", [[], [2], [1, 2], [1]])
def test_5_3_committing_an_entry_commits_all_before_it(terms: list[int]) -> None:
    """ "This also commits all preceding entries in the leader's log, including entries created
    by previous leaders." """
    cluster = Cluster(3)
    cluster.given("s0", terms=terms, term=2)
    cluster.elect("s0")
    cluster.run()
    assert cluster.commit("s0") == len(terms) + 1
    assert len(cluster.applied["s0"]) == len(terms) + 1


@pytest.mark.parametrize(
    ("prev_index", "prev_term", "rejected", "answered_index"),
    [
        (0, 0, False, 1),  # below commit: what is committed matches
        (1, 1, False, 1),
        (2, 2, False, 2),
        (1, 2, True, 1),
        (2, 1, True, 2),
        (3, 3, True, 3),
    ],
)
def test_5_3_the_consistency_check(
    prev_index: int, prev_term: int, rejected: bool, answered_index: int
) -> None:
    """ "If the follower does not find an entry in its log with the same index and term, then it
    refuses the new entries." """
    cluster = Cluster(3)
    cluster.given("s0", terms=[1, 2], commit_index=1)
    cluster.give(
        AppendRequest(
            source=S1,
            target=S0,
            term=3,
            prev_index=prev_index,
            prev_term=prev_term,
            commit_index=1,
        )
    )
    (answer,) = cluster.take(AppendResponse)
    assert (answer.rejected, answer.match_index) == (rejected, answered_index)


@pytest.mark.parametrize(
    ("prev_index", "prev_term", "terms", "log"),
    [
        (2, 2, [3], [1, 2, 3]),
        (1, 1, [3, 4], [1, 3, 4]),
        (0, 0, [1], [1, 2]),
        (0, 0, [3], [3]),
        (1, 1, [2], [1, 2]),
        (2, 2, [], [1, 2]),
    ],
)
def test_5_3_conflicting_entries_are_overwritten_and_no_others(
    prev_index: int, prev_term: int, terms: list[int], log: list[int]
) -> None:
    """ "If an existing entry conflicts with a new one (same index but different terms), delete
    the existing entry and all that follow it. Append any new entries not already in the log." """
    cluster = Cluster(3)
    cluster.given("s0", terms=[1, 2])
    entries = [
        cluster.cores["s0"].state.log.entries[index - 1]
        if cluster.cores["s0"].state.log.term_at(index) == term
        else cluster.entries(first=index, terms=[term], mark=b"new")[0]
        for index, term in enumerate(terms, start=prev_index + 1)
    ]
    cluster.give(
        AppendRequest(
            source=S1,
            target=S0,
            term=4,
            prev_index=prev_index,
            prev_term=prev_term,
            commit_index=0,
            entries=entries,
        )
    )
    assert cluster.terms("s0") == log
    assert cluster.take(AppendResponse)[0].match_index == prev_index + len(terms)


FIGURE_7 = {
    "a": [1, 1, 1, 4, 4, 5, 5, 6, 6],
    "b": [1, 1, 1, 4],
    "c": [1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 6],
    "d": [1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 7, 7],
    "e": [1, 1, 1, 4, 4, 4, 4],
    "f": [1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3],
}


@pytest.mark.parametrize("case", FIGURE_7)
def test_5_3_figure_7_any_follower_is_brought_to_the_leaders_log(case: str) -> None:
    """Section 5.3: the leader forces the followers' logs to duplicate its own."""
    leader = [1, 1, 1, 4, 4, 5, 5, 6, 6, 6]
    cluster = Cluster(3)
    cluster.given("s0", terms=leader, term=7)
    cluster.given("s1", terms=FIGURE_7[case], term=7)
    cluster.given("s2", terms=leader[:3], term=7)  # votes, whatever s1 thinks
    cluster.elect("s0")
    cluster.tick("s0", count=2)
    cluster.run()
    assert cluster.terms("s1") == cluster.terms("s0") == [*leader, 8]


def test_5_3_a_diverging_term_is_skipped_in_one_round_trip() -> None:
    """End of section 5.3: "one AppendEntries RPC will be required for each term with conflicting
    entries, rather than one RPC per entry." """
    cluster = Cluster(3)
    cluster.given("s0", terms=[1] * 3 + [5] * 40)
    cluster.given("s1", terms=[1] * 3 + [2] * 40, term=5)
    cluster.elect("s0")
    cluster.run()
    rejections = cluster.checker.rejections
    assert cluster.terms("s1") == cluster.terms("s0")
    assert rejections <= 3


@pytest.mark.parametrize(
    ("own", "last_term", "last_index", "granted"),
    [
        ([1], 1, 1, True),
        ([1], 1, 2, True),
        ([1, 1], 1, 1, False),
        ([1], 2, 1, True),
        ([1, 1], 2, 1, True),
        ([2], 1, 1, False),
        ([2], 1, 9, False),
        ([], 0, 0, True),
    ],
)
def test_5_4_1_votes_go_to_logs_at_least_as_up_to_date(
    own: list[int], last_term: int, last_index: int, granted: bool
) -> None:
    """ "If the logs have last entries with different terms, then the log with the later term is
    more up-to-date. If the logs end with the same term, then whichever log is longer is." """
    cluster = Cluster(3)
    cluster.given("s0", terms=own)
    for kind, response in ((PreVoteRequest, PreVoteResponse), (VoteRequest, VoteResponse)):
        cluster.give(kind(source=S1, target=S0, term=7, last_index=last_index, last_term=last_term))
        assert cluster.take(response)[0].granted is granted


def test_5_4_1_requests_for_votes_describe_the_candidates_log() -> None:
    """ "The RPC includes information about the candidate's log." """
    cluster = Cluster(3)
    cluster.given("s0", terms=[1, 1, 3])
    cluster.time_out("s0")
    assert {(m.last_index, m.last_term) for m in cluster.take(PreVoteRequest)} == {(3, 3)}


def test_8_a_leader_starts_its_term_with_a_no_op() -> None:
    """ "Raft handles this by having each leader commit a blank no-op entry into the log at the
    start of its term." """
    cluster = Cluster(3)
    cluster.elect("s0")
    assert [(e.term, e.kind) for e in cluster.applied["s1"]] == [(1, EntryKind.NOOP)]


def test_thesis_3_10_timeout_now_starts_an_election_at_once() -> None:
    cluster = Cluster(3)
    cluster.elect("s0")
    cluster.give(TimeoutNow(source=S0, target=S1, term=1))
    requests = cluster.take(VoteRequest)
    assert [m.is_transfer for m in requests] == [True, True]
    assert cluster.term("s1") == 2
