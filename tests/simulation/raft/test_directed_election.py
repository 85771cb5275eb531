"""Scripts about elections that random search seldom plays."""

from __future__ import annotations

from pdd.raft.core import Proposed, Refusal
from pdd.raft.messages import (
    AppendRequest,
    AppendResponse,
    HeartbeatRequest,
    PreVoteRequest,
    PreVoteResponse,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from pdd.raft.state import Role
from tests.simulation.raft.harness import Cluster


def test_two_pre_candidates_at_once_end_with_one_leader() -> None:
    cluster = Cluster(3)
    cluster.time_out("s0")
    cluster.time_out("s1")
    assert cluster.role("s0") is cluster.role("s1") is Role.PRE_CANDIDATE
    cluster.run()
    for _ in range(10):
        leaders = [n for n in cluster.voters if cluster.role(n) is Role.LEADER]
        if leaders:
            break
        cluster.tick(count=5)
        cluster.run()
    assert len(leaders) == 1
    cluster.propose(leaders[0], b"x")
    cluster.run()
    assert cluster.commands(leaders[0]) == [b"x"]


def test_a_lagging_pre_candidate_does_not_keep_the_other_from_winning() -> None:
    cluster = Cluster(3)
    cluster.given("s0", terms=[1, 1])
    cluster.given("s1", terms=[1])
    cluster.crash("s2")
    cluster.time_out("s1")
    cluster.time_out("s0")
    cluster.run()
    assert cluster.role("s0") is Role.LEADER


def test_a_replica_back_from_isolation_does_not_depose_the_leader() -> None:
    cluster = Cluster(3)
    cluster.elect("s0")
    cluster.isolate("s2")
    for _ in range(5):
        cluster.time_out("s2")
        cluster.run()
    assert cluster.term("s2") == 1, "a pre-vote must not raise the term"
    cluster.heal()
    cluster.time_out("s2")
    cluster.run()
    assert cluster.role("s0") is Role.LEADER
    assert cluster.term("s0") == 1
    cluster.tick("s0", count=2)
    cluster.run()
    assert cluster.cores["s2"].leader == "s0"


def test_a_pre_vote_does_not_refresh_the_contact_with_the_leader() -> None:
    cluster = Cluster(3)
    cluster.elect("s0")
    cluster.tick("s1", count=9)
    cluster.time_out("s2")
    request = cluster.take(PreVoteRequest, target="s1")
    elapsed_ticks = cluster.cores["s1"].state.election_elapsed_ticks
    cluster.give(request)
    assert cluster.cores["s1"].state.election_elapsed_ticks == elapsed_ticks >= 9
    cluster.forget_leader("s1")
    cluster.give(request)  # granted now, and still no contact
    assert cluster.take(PreVoteResponse, source="s1")[0].granted
    assert cluster.cores["s1"].state.election_elapsed_ticks == 10


def test_a_replica_helps_its_own_leader_back_into_office() -> None:
    cluster = Cluster(3)
    cluster.elect("s0")
    cluster.crash("s0")
    cluster.restart("s0")
    cluster.time_out("s0")  # s1 and s2 heard it a moment ago
    cluster.run()
    assert cluster.role("s0") is Role.LEADER
    assert cluster.term("s0") == 2


def test_a_loyal_follower_ignores_another_campaign_but_not_for_ever() -> None:
    cluster = Cluster(3)
    cluster.elect("s0")
    request = VoteRequest(
        source=cluster.voters[2], target=cluster.voters[1], term=7, last_index=9, last_term=6
    )
    cluster.give(request)
    assert cluster.term("s1") == 1
    assert not cluster.take(VoteResponse)
    cluster.forget_leader("s1")
    cluster.give(request)
    assert cluster.take(VoteResponse, source="s1")[0].granted


def test_a_refused_pre_vote_teaches_the_newer_term() -> None:
    cluster = Cluster(3)
    cluster.given("s0", terms=[1, 1], term=1)
    cluster.given("s1", terms=[1], term=5)
    cluster.crash("s2")
    cluster.time_out("s0")
    cluster.run()
    assert cluster.term("s0") == 5
    cluster.time_out("s0")
    cluster.run()
    assert cluster.role("s0") is Role.LEADER


def test_a_candidate_stuck_in_a_higher_term_is_freed_by_the_leaders_next_message() -> None:
    """Its vote requests are ignored by loyal followers, and it ignores the leader's old term:
    only the answer with the newer term ends that."""
    cluster = Cluster(3)
    cluster.elect("s0")
    cluster.set_term("s2", 4)
    cluster.tick("s0")
    cluster.give(cluster.take(HeartbeatRequest, target="s2"))
    answers = cluster.take(AppendResponse, source="s2")
    assert answers
    assert answers[0].rejected
    assert answers[0].term == 4
    cluster.give(answers)
    assert cluster.role("s0") is Role.FOLLOWER
    assert cluster.term("s0") == 4
    cluster.elect("s0")
    assert cluster.cores["s2"].leader == "s0"


def test_every_message_of_a_stale_leader_is_answered_with_the_newer_term() -> None:
    cluster = Cluster(3)
    cluster.elect("s0")
    cluster.isolate("s0")
    cluster.elect("s1")
    cluster.propose("s0", b"never")
    cluster.tick("s0")
    stale = cluster.take(source="s0", target="s2")
    assert {type(m) for m in stale} >= {AppendRequest, HeartbeatRequest}
    cluster.heal()
    for message in stale:
        cluster.give(message)
        answer = cluster.take(AppendResponse, source="s2", target="s0")
        assert answer[0].rejected
        assert answer[0].term == 2
    cluster.give(answer)
    assert cluster.role("s0") is Role.FOLLOWER


def test_a_repeated_vote_counts_once() -> None:
    cluster = Cluster(5)
    cluster.time_out("s0")
    cluster.give(cluster.take(PreVoteRequest))
    cluster.give(cluster.take(PreVoteResponse))
    assert cluster.role("s0") is Role.CANDIDATE
    cluster.give(cluster.take(VoteRequest, target="s1"))
    vote = cluster.take(VoteResponse, source="s1")
    cluster.give(vote * 3)
    assert cluster.role("s0") is Role.CANDIDATE
    cluster.give(cluster.take(VoteRequest, target="s2"))
    cluster.run()
    assert cluster.role("s0") is Role.LEADER


def test_a_vote_for_an_earlier_campaign_does_not_count() -> None:
    cluster = Cluster(3)
    cluster.time_out("s0")
    cluster.give(cluster.take(PreVoteRequest))
    cluster.give(cluster.take(PreVoteResponse))
    cluster.give(cluster.take(VoteRequest))
    late = cluster.take(VoteResponse)
    cluster.isolate("s0")
    cluster.elect("s1")  # term 2
    cluster.heal()
    cluster.forget_leader("s1")
    cluster.forget_leader("s2")
    cluster.time_out("s0")
    cluster.give(cluster.take(PreVoteRequest))
    cluster.take(VoteRequest)
    cluster.give(late)
    assert cluster.role("s0") is not Role.LEADER


def test_a_vote_is_remembered_across_a_crash() -> None:
    cluster = Cluster(3)
    request = VoteRequest(
        source=cluster.voters[0], target=cluster.voters[1], term=3, last_index=0, last_term=0
    )
    cluster.give(request)
    assert cluster.take(VoteResponse)[0].granted
    cluster.crash("s1")
    cluster.restart("s1")
    rival = VoteRequest(
        source=cluster.voters[2], target=cluster.voters[1], term=3, last_index=9, last_term=2
    )
    cluster.give(rival)
    assert not cluster.take(VoteResponse, target="s2")[0].granted
    cluster.give(request)  # the same candidate may ask again
    assert cluster.take(VoteResponse, target="s0")[0].granted


def test_a_second_candidate_gets_no_vote_in_the_same_term() -> None:
    cluster = Cluster(3)
    for source, granted in (("s0", True), ("s2", False)):
        cluster.give(
            VoteRequest(
                source=cluster.voters[int(source[1])],
                target=cluster.voters[1],
                term=1,
                last_index=0,
                last_term=0,
            )
        )
        assert cluster.take(VoteResponse)[0].granted is granted


def test_a_vote_leaves_only_after_it_is_durable() -> None:
    cluster = Cluster(3)
    cluster.step(
        VoteRequest(
            source=cluster.voters[0], target=cluster.voters[1], term=3, last_index=0, last_term=0
        )
    )
    ready = cluster.begin("s1")
    assert not cluster.wire
    assert ready.must_sync
    assert ready.hard_state is not None
    assert (ready.hard_state.term, ready.hard_state.vote) == (3, "s0")
    cluster.finish("s1", ready)
    assert cluster.take(VoteResponse)[0].granted


def test_a_replica_with_a_stale_log_does_not_win() -> None:
    cluster = Cluster(3)
    cluster.elect("s0")
    cluster.isolate("s2")
    cluster.propose("s0", b"chosen")
    cluster.run()
    cluster.heal()
    cluster.crash("s0")
    cluster.forget_leader("s1")
    cluster.time_out("s2")
    cluster.run()
    assert cluster.role("s2") is not Role.LEADER
    # Nor with a real vote request, which pre-vote would have spared it.
    cluster.give(
        VoteRequest(
            source=cluster.voters[2], target=cluster.voters[1], term=9, last_index=1, last_term=1
        )
    )
    assert not cluster.take(VoteResponse, source="s1")[0].granted
    cluster.elect("s1")
    assert cluster.commands("s1") == [b"chosen"]


def test_a_leader_that_hears_no_majority_steps_down() -> None:
    cluster = Cluster(3)
    cluster.elect("s0")
    cluster.isolate("s0")
    cluster.read("s0", "r")
    cluster.tick("s0", count=2 * cluster.cores["s0"].state.config.election_ticks)
    assert cluster.role("s0") is not Role.LEADER
    assert cluster.aborted_reads["s0"] == ["r"]
    assert cluster.cores["s0"].propose(b"x") is Refusal.NOT_LEADER


def test_a_leader_that_hears_a_majority_stays() -> None:
    cluster = Cluster(3)
    cluster.elect("s0")
    cluster.isolate("s2")
    for _ in range(50):
        cluster.tick("s0", "s1")
        cluster.run()
    assert cluster.role("s0") is Role.LEADER


def test_leadership_moves_to_the_wished_replica_though_followers_are_loyal() -> None:
    cluster = Cluster(3)
    cluster.elect("s0")
    cluster.propose("s0", b"x")
    cluster.run()
    cluster.tick("s0")
    cluster.run()  # everybody has just heard s0
    assert cluster.cores["s0"].transfer(cluster.voters[1]) is None
    cluster.run()
    assert cluster.role("s1") is Role.LEADER
    assert cluster.term("s1") == 2
    assert cluster.cores["s0"].leader == "s1"


def test_a_transfer_waits_until_the_target_has_caught_up() -> None:
    cluster = Cluster(3)
    cluster.elect("s0")
    cluster.isolate("s1")
    cluster.propose("s0", b"x")
    cluster.run()
    cluster.cores["s0"].transfer(cluster.voters[1])
    cluster.settle()
    assert not cluster.take(TimeoutNow)
    assert cluster.cores["s0"].propose(b"y") is Refusal.TRANSFERRING
    cluster.heal()
    cluster.tick("s0")
    cluster.run()
    assert cluster.role("s1") is Role.LEADER
    cluster.run()
    assert cluster.commands("s1") == [b"x"]


def test_a_transfer_that_fails_ends_after_one_election_timeout() -> None:
    cluster = Cluster(3)
    cluster.elect("s0")
    cluster.crash("s1")
    cluster.cores["s0"].transfer(cluster.voters[1])
    for _ in range(cluster.cores["s0"].state.config.election_ticks):
        cluster.tick("s0")
        cluster.run()
    assert cluster.role("s0") is Role.LEADER
    assert isinstance(cluster.cores["s0"].propose(b"x"), Proposed)


def test_a_transfer_does_not_survive_the_leadership() -> None:
    cluster = Cluster(3)
    cluster.elect("s0")
    cluster.isolate("s1")
    cluster.propose("s0", b"x")
    cluster.run()
    cluster.cores["s0"].transfer(cluster.voters[1])
    cluster.heal()
    cluster.elect("s2")
    cluster.elect("s0")
    assert isinstance(cluster.cores["s0"].propose(b"y"), Proposed)
    assert cluster.cores["s0"].transfer(cluster.voters[2]) is None, "free for another target"


def test_a_late_wish_of_a_former_leader_is_ignored() -> None:
    cluster = Cluster(3)
    cluster.elect("s0")
    cluster.cores["s0"].transfer(cluster.voters[1])
    cluster.settle("s0")
    wish = cluster.take(TimeoutNow)
    assert wish
    cluster.elect("s2")
    cluster.give(wish)
    assert cluster.role("s1") is Role.FOLLOWER
    assert cluster.term("s1") == 2


def test_transfer_is_refused_to_strangers_to_itself_and_at_followers() -> None:
    cluster = Cluster(3)
    cluster.elect("s0")
    assert cluster.cores["s0"].transfer(cluster.voters[0]) is Refusal.UNKNOWN_TARGET
    assert cluster.cores["s1"].transfer(cluster.voters[2]) is Refusal.NOT_LEADER
    assert cluster.cores["s0"].transfer(cluster.voters[1]) is None
    assert cluster.cores["s0"].transfer(cluster.voters[1]) is None, "already under way"
    assert cluster.cores["s0"].transfer(cluster.voters[2]) is Refusal.TRANSFERRING


def test_the_election_timeout_is_drawn_anew_for_each_attempt() -> None:
    cluster = Cluster(3)
    cluster.isolate("s0")
    drawn = set()
    for _ in range(30):
        drawn.add(cluster.cores["s0"].state.election_timeout_ticks)
        cluster.time_out("s0")
        cluster.run()
    assert drawn <= set(range(10, 20))
    assert len(drawn) > 5


def test_a_candidate_refused_by_a_majority_becomes_a_follower() -> None:
    cluster = Cluster(3)
    cluster.given("s1", terms=[1, 1])
    cluster.given("s2", terms=[1, 1])
    cluster.given("s0", terms=[1])
    cluster.time_out("s0")
    cluster.run()
    assert cluster.role("s0") is Role.FOLLOWER
    assert cluster.term("s0") == 1


def test_a_single_voter_leads_after_its_timeout_and_commits_after_its_fsync() -> None:
    cluster = Cluster(1)
    cluster.elect("s0")
    cluster.cores["s0"].propose(b"x")
    ready = cluster.begin("s0")
    assert not ready.committed
    cluster.finish("s0", ready)
    cluster.settle("s0")
    assert cluster.commands("s0") == [b"x"]
    cluster.crash("s0")
    cluster.restart("s0")
    cluster.elect("s0")
    assert cluster.commands("s0") == [b"x"]


def test_a_pre_candidate_yields_to_the_leader_of_its_term() -> None:
    cluster = Cluster(3)
    cluster.elect("s0")
    cluster.time_out("s1")
    cluster.take(PreVoteRequest)
    assert cluster.role("s1") is Role.PRE_CANDIDATE
    cluster.tick("s0")
    cluster.run()
    assert cluster.role("s1") is Role.FOLLOWER
    assert cluster.cores["s1"].leader == "s0"


def test_a_second_leader_in_one_term_is_not_believed() -> None:
    """Cannot happen among honest replicas; if it does, at least nobody follows both."""
    cluster = Cluster(3)
    cluster.elect("s0")
    forged = HeartbeatRequest(
        source=cluster.voters[2], target=cluster.voters[1], term=1, commit_index=0
    )
    cluster.give(forged)
    assert cluster.cores["s1"].leader == "s0"
    assert cluster.cores["s1"].state.ignored["second_leader_in_term"] == 1
