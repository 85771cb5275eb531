"""Scripts about ReadIndex: when a read may be answered, and by whose word."""

from __future__ import annotations

from pdd.raft.core import Refusal
from pdd.raft.messages import AppendRequest, HeartbeatRequest, HeartbeatResponse
from tests.simulation.raft.harness import Cluster


def test_a_read_waits_for_a_majority_that_answers_after_it() -> None:
    cluster = Cluster(3)
    cluster.elect("s0")
    cluster.read("s0", "r")
    assert cluster.reads["s0"] == []
    cluster.give(cluster.take(HeartbeatRequest, target="s1"))
    cluster.give(cluster.take(HeartbeatResponse, source="s1"))
    assert cluster.reads["s0"] == ["r"]


def test_a_heartbeat_answered_before_the_read_confirms_nothing_however_late_it_comes() -> None:
    """After a pause of the leader, old answers are all it finds in its inbox."""
    cluster = Cluster(3)
    cluster.elect("s0")
    cluster.tick("s0")
    cluster.give(cluster.take(HeartbeatRequest))
    old = cluster.take(HeartbeatResponse)
    assert len(old) == 2
    cluster.isolate("s0")
    cluster.elect("s1")
    cluster.propose("s1", b"newer")
    cluster.run()
    cluster.read("s0", "r")
    cluster.heal()
    cluster.take(HeartbeatRequest, source="s0")
    cluster.give(old)
    assert cluster.reads["s0"] == []


def test_a_repeated_answer_of_one_peer_is_not_a_majority() -> None:
    cluster = Cluster(5)
    cluster.elect("s0")
    cluster.read("s0", "r")
    cluster.give(cluster.take(HeartbeatRequest, target="s1"))
    answer = cluster.take(HeartbeatResponse, source="s1")
    cluster.give(answer * 4)
    assert cluster.reads["s0"] == []


def test_a_new_leader_reads_only_after_an_entry_of_its_own_term_is_committed() -> None:
    cluster = Cluster(3)
    cluster.elect("s0")
    cluster.propose("s0", b"x")
    cluster.settle()
    cluster.give(cluster.take(AppendRequest))  # chosen, and nobody but s0 will know it
    cluster.take()
    cluster.crash("s0")
    cluster.forget_leader("s2")
    cluster.time_out("s1")
    cluster.deliver_votes("s1")
    cluster.read("s1", "r")
    cluster.run_without(AppendRequest)  # heartbeats come and go
    cluster.tick("s1")
    cluster.run_without(AppendRequest)
    assert cluster.reads["s1"] == [], "its commit index may be behind what s0 acknowledged"
    cluster.run()
    assert cluster.reads["s1"] == ["r"]
    assert cluster.commands("s1") == [b"x"]


def test_answers_of_an_earlier_leadership_do_not_confirm_a_read() -> None:
    cluster = Cluster(3)
    cluster.elect("s0")
    for n in range(5):
        cluster.read("s0", n)
        cluster.run()
    cluster.read("s0", "last")
    cluster.give(cluster.take(HeartbeatRequest))
    old = cluster.take(HeartbeatResponse)
    cluster.elect("s1")
    assert cluster.aborted_reads["s0"] == ["last"]
    cluster.elect("s0")
    cluster.read("s0", "new")
    cluster.take(HeartbeatRequest)
    cluster.give(old)
    assert "new" not in cluster.reads["s0"]


def test_a_deposed_leader_refuses_its_waiting_reads() -> None:
    cluster = Cluster(3)
    cluster.elect("s0")
    cluster.isolate("s0")
    cluster.read("s0", "r")
    cluster.elect("s1")
    cluster.heal()
    cluster.tick("s1")
    cluster.run()
    assert cluster.aborted_reads["s0"] == ["r"]
    assert cluster.reads["s0"] == []


def test_a_read_is_answered_only_when_its_index_is_applied() -> None:
    cluster = Cluster(3, max_apply_bytes=1)
    cluster.elect("s0")
    core = cluster.cores["s0"]
    for n in range(3):
        cluster.propose("s0", bytes([n]))
    cluster.give(cluster.take(AppendRequest))
    # Commit moves by three at once; the state machine takes one entry per Ready.
    for message in cluster.take():
        cluster.step(message)
    assert core.state.log.commit_index == 4
    core.read_index("r")
    answered_at = []
    while core.has_ready():
        ready = cluster.begin("s0")
        for request in cluster.take(HeartbeatRequest):
            cluster.give(request)
        for message in cluster.take(HeartbeatResponse):
            cluster.step(message)
        cluster.finish("s0", ready)
        if ready.reads:
            answered_at.append(len(cluster.applied["s0"]))
    assert answered_at == [4]


def test_a_lost_round_is_confirmed_by_the_next_heartbeat() -> None:
    cluster = Cluster(3)
    cluster.elect("s0")
    cluster.read("s0", "r")
    cluster.take(HeartbeatRequest)
    cluster.run()
    assert cluster.reads["s0"] == []
    cluster.tick("s0")
    cluster.run()
    assert cluster.reads["s0"] == ["r"]


def test_reads_of_one_turn_share_one_round() -> None:
    cluster = Cluster(3)
    cluster.elect("s0")
    for n in range(10):
        assert cluster.cores["s0"].read_index(n) is None
    cluster.settle("s0")
    assert len(cluster.take(HeartbeatRequest)) == 2


def test_more_reads_than_the_bound_are_refused() -> None:
    cluster = Cluster(3, max_pending_reads=2)
    cluster.elect("s0")
    core = cluster.cores["s0"]
    assert [core.read_index(n) for n in range(3)] == [None, None, Refusal.READS_FULL]
    cluster.run()
    assert cluster.reads["s0"] == [0, 1]
    assert core.read_index(3) is None


def test_a_single_voter_reads_at_once() -> None:
    cluster = Cluster(1)
    cluster.elect("s0")
    cluster.read("s0", "r")
    assert cluster.reads["s0"] == ["r"]


def test_a_follower_refuses_reads() -> None:
    cluster = Cluster(3)
    cluster.elect("s0")
    assert cluster.cores["s1"].read_index("r") is Refusal.NOT_LEADER
