"""Scripts about the log: what overtakes what, and what counts as committed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pdd.raft.core import Refusal
from pdd.raft.messages import (
    AppendRequest,
    AppendResponse,
    HeartbeatRequest,
    HeartbeatResponse,
)
from pdd.raft.progress import ProgressState
from pdd.raft.ready import Ready
from pdd.raft.state import Role
from pdd.raft.values import ENTRY_OVERHEAD_BYTES
from tests.simulation.raft.harness import Cluster


def test_figure_8_an_old_entry_on_a_majority_is_not_committed_by_counting() -> None:
    """Paper section 5.4.2, figure 8: S1..S5 are s0..s4; index 2 is the disputed one."""
    cluster = Cluster(5)
    # (a) s0 leads term 2 and has replicated index 2 to s1 only.
    cluster.given("s0", terms=[1, 2])
    cluster.given("s1", terms=[1, 2])
    cluster.given("s2", terms=[1], term=2)
    # (b) s4 led term 3, with the votes of s2 and s3, and kept index 2 to itself.
    cluster.given("s3", terms=[1], term=2)
    cluster.given("s4", terms=[1, 3])
    # (c) s0 leads again (term 4, s4 is down) and brings index 2 to s2: now a majority holds it.
    # Its no-op of term 4 does not get that far.
    cluster.crash("s4")
    cluster.cores["s0"].state.term = 3  # it has heard of term 3
    cluster.time_out("s0")
    cluster.deliver_votes("s0")
    assert cluster.term("s0") == 4
    cluster.take(target="s3")
    for _ in range(4):
        for message in cluster.take(AppendRequest):
            entries = [entry for entry in message.entries if entry.term < 4]
            cluster.give(replace(message, entries=entries))
        cluster.give(cluster.take(AppendResponse, target="s0"))
    assert cluster.terms("s2") == [1, 2]
    assert cluster.commit("s0") < 2, "a majority holds 2@2, yet it can still be lost"
    # (d) s0 dies; s4 wins with s2, s3 and itself, and overwrites index 2.
    cluster.crash("s0")
    cluster.take()
    cluster.restart("s4")
    cluster.elect_after_refusals("s4")
    assert cluster.terms("s2")[:2] == [1, 3]
    assert cluster.commit("s4") >= 3


def test_figure_8_with_an_entry_of_its_own_term_the_leader_commits_both() -> None:
    """Figure 8 (e)."""
    cluster = Cluster(5)
    cluster.given("s0", terms=[1, 2])
    cluster.given("s1", terms=[1, 2])
    for name in ("s2", "s3"):
        cluster.given(name, terms=[1], term=2)
    cluster.given("s4", terms=[1, 3])
    cluster.crash("s4")
    cluster.elect_after_refusals("s0")
    cluster.run()
    assert cluster.commit("s0") == 3
    cluster.crash("s0")
    cluster.restart("s4")
    cluster.forget_leader("s1")
    cluster.time_out("s4")
    cluster.run()
    assert cluster.role("s4") is not Role.LEADER


def test_an_ack_of_an_earlier_term_does_not_count() -> None:
    cluster = Cluster(5)
    cluster.elect("s0")
    # Term 1: indices 2 and 3 reach s1 only; its ack is held back.
    cluster.isolate("s0", "s1")
    cluster.propose("s0", b"lost 2")
    cluster.propose("s0", b"lost 3")
    cluster.give(cluster.take(AppendRequest, target="s1"))
    cluster.take(AppendRequest)
    late = cluster.take(AppendResponse, source="s1")
    assert max(m.match_index for m in late) == 3
    # Term 2: s2 leads the rest and overwrites 2 and 3 everywhere.
    cluster.elect("s2")
    cluster.heal()
    cluster.run()
    cluster.tick("s2", count=2)
    cluster.run()
    assert cluster.terms("s1") == cluster.terms("s0") == [1, 2]
    # Term 3: s0 leads again; its index 3 is on its own disk and on s3's, not on s1's.
    for name in ("s1", "s2", "s3", "s4"):
        if cluster.role(name) is not Role.LEADER:
            cluster.forget_leader(name)
    cluster.time_out("s0")
    cluster.deliver_votes("s0")
    cluster.give(cluster.take(AppendRequest, target="s3"))
    cluster.take(AppendRequest)
    cluster.give(cluster.take(AppendResponse, source="s3"))
    commit_before = cluster.commit("s0")
    cluster.give(late)
    assert cluster.commit("s0") == commit_before < 3


def test_a_shorter_delayed_append_does_not_cut_what_came_after_it() -> None:
    cluster = Cluster(3)
    cluster.elect("s0")
    cluster.isolate("s2")
    cluster.propose("s0", b"one")
    early = cluster.take(AppendRequest, target="s1")
    cluster.give(early)
    cluster.propose("s0", b"two")
    cluster.propose("s0", b"three")
    cluster.give(cluster.take(AppendRequest, target="s1"))
    acks = cluster.take(AppendResponse, source="s1")
    assert len(cluster.terms("s1")) == 4
    assert cluster.commit("s1") == 1, "nothing of it is known to be committed"
    cluster.give(early)  # the network repeats it
    assert len(cluster.terms("s1")) == 4
    cluster.give(acks)  # chosen: s1 must keep them
    assert cluster.commit("s0") == 4
    cluster.heal()
    cluster.crash("s0")
    cluster.take()
    cluster.elect("s1")
    assert cluster.commands("s1") == [b"one", b"two", b"three"]


def test_a_follower_commits_only_what_the_append_has_proved_equal() -> None:
    """Its tail of an old term is as long as the leader's commit index, and different."""
    cluster = Cluster(3)
    cluster.given("s0", terms=[1, 1, 2, 2], commit_index=0)
    cluster.given("s1", terms=[1, 1, 1, 1], term=2)
    cluster.given("s2", terms=[1, 1, 2, 2])
    cluster.isolate("s1")
    cluster.elect("s0")
    cluster.run()
    assert cluster.commit("s0") == 5
    cluster.heal()
    cluster.give(
        AppendRequest(
            source=cluster.voters[0],
            target=cluster.voters[1],
            term=3,
            prev_index=2,
            prev_term=1,
            commit_index=4,
        )
    )
    assert cluster.commit("s1") == 2
    cluster.tick("s0", count=2)
    cluster.run()
    assert cluster.terms("s1") == cluster.terms("s0")


def test_a_follower_acknowledges_only_what_the_append_has_proved_equal() -> None:
    """A tail of an old term must not be taken for the leader's entries of the same indices."""
    cluster = Cluster(3)
    cluster.given("s0", terms=[1, 1, 2])
    cluster.given("s1", terms=[1, 1, 1, 1], term=2)
    cluster.given("s2", terms=[1, 1, 2])
    cluster.elect_with("s0", voter="s2")
    cluster.crash("s2")
    cluster.take()
    cluster.give(
        AppendRequest(
            source=cluster.voters[0],
            target=cluster.voters[1],
            term=cluster.term("s0"),
            prev_index=2,
            prev_term=1,
            commit_index=0,
        )
    )
    answer = cluster.take(AppendResponse, source="s1")
    cluster.give(answer)
    assert answer[0].match_index == 2
    assert cluster.commit("s0") == 0


def test_the_leader_counts_itself_only_after_its_own_fsync() -> None:
    cluster = Cluster(3)
    cluster.elect("s0")
    cluster.cores["s0"].propose(b"x")
    ready = cluster.begin("s0")
    cluster.give(cluster.take(AppendRequest, target="s1"))
    for answer in cluster.take(AppendResponse, source="s1"):
        cluster.step(answer)
    assert cluster.commit("s0") == 1, "one disk of three holds it"
    cluster.finish("s0", ready)
    assert cluster.commit("s0") == 2


def test_an_entry_on_a_majority_of_followers_commits_before_the_leaders_fsync() -> None:
    cluster = Cluster(3)
    cluster.elect("s0")
    cluster.cores["s0"].propose(b"x")
    ready = cluster.begin("s0")
    cluster.give(cluster.take(AppendRequest))
    for answer in cluster.take(AppendResponse):
        cluster.step(answer)
    assert cluster.commit("s0") == 2
    cluster.finish("s0", ready)
    cluster.settle("s0")
    assert cluster.commands("s0") == [b"x"]


def test_an_ack_leaves_only_after_the_entries_are_durable() -> None:
    cluster = Cluster(3)
    cluster.elect("s0")
    cluster.propose("s0", b"x")
    for message in cluster.take(AppendRequest, target="s1"):
        cluster.step(message)
    ready = cluster.begin("s1")
    assert [e.data for e in ready.entries] == [b"x"]
    assert not cluster.take(AppendResponse, source="s1")
    cluster.crash("s1")
    cluster.restart("s1")
    assert cluster.terms("s1") == [1], "not persisted, not acknowledged, gone"
    cluster.run()
    cluster.tick("s0", count=2)
    cluster.run()
    assert cluster.commands("s1") == [b"x"]


def replaced_while_persisting() -> tuple[Cluster, Ready]:
    """s1 persists 2@1 and 3@1 while the leader of term 2 replaces both."""
    cluster = Cluster(3)
    cluster.given("s1", terms=[1])
    s0, s1, s2 = cluster.voters
    old = cluster.entries(first=2, terms=[1, 1], mark=b"old")
    new = cluster.entries(first=2, terms=[2, 2], mark=b"new")
    cluster.step(
        AppendRequest(
            source=s0, target=s1, term=1, prev_index=1, prev_term=1, commit_index=0, entries=old
        )
    )
    outstanding = cluster.begin("s1")
    assert [e.term for e in outstanding.entries] == [1, 1]
    cluster.step(
        AppendRequest(
            source=s2, target=s1, term=2, prev_index=1, prev_term=1, commit_index=0, entries=new
        )
    )
    return cluster, outstanding


def test_a_late_report_of_an_fsync_does_not_cover_entries_replaced_meanwhile() -> None:
    cluster, outstanding = replaced_while_persisting()
    cluster.finish("s1", outstanding)
    assert cluster.cores["s1"].state.log.durable_index == 1
    ready = cluster.begin("s1")
    assert [(e.index, e.term) for e in ready.entries] == [(2, 2), (3, 2)]
    cluster.finish("s1", ready)
    acks = cluster.take(AppendResponse, source="s1", target="s2")
    assert [a.match_index for a in acks] == [3]
    cluster.crash("s1")
    cluster.restart("s1")
    assert cluster.terms("s1") == [1, 2, 2]


def test_entries_replaced_and_brought_back_while_persisting_are_written_again() -> None:
    """The ABA race: 2@1 is being written, is replaced by 2@2, and 2@1 comes back with a leader of
    term 3. The first write's report must not pass for the third state's."""
    cluster, outstanding = replaced_while_persisting()
    s0, s1, _ = cluster.voters
    cluster.step(
        AppendRequest(
            source=s0,
            target=s1,
            term=3,
            prev_index=1,
            prev_term=1,
            commit_index=0,
            entries=cluster.entries(first=2, terms=[1, 1], mark=b"old"),
        )
    )
    cluster.finish("s1", outstanding)
    ready = cluster.begin("s1")
    assert [(e.index, e.term) for e in ready.entries] == [(2, 1), (3, 1)]
    cluster.finish("s1", ready)
    assert cluster.cores["s1"].state.log.durable_index == 3


def test_a_proposal_at_a_leader_cut_off_is_never_applied_there_alone() -> None:
    """Its own append is not success: only the commit index is."""
    cluster = Cluster(3)
    cluster.elect("s0")
    cluster.isolate("s0")
    cluster.propose("s0", b"x")
    cluster.run()
    assert cluster.commands("s0") == []
    cluster.elect("s1")
    cluster.propose("s1", b"y")
    cluster.run()
    cluster.heal()
    cluster.tick("s1", count=2)
    cluster.run()
    assert cluster.commands("s0") == cluster.commands("s1") == [b"y"]


@pytest.mark.parametrize("room_bytes", range(1, 120, 7))
def test_entries_cut_into_messages_of_any_size_all_arrive(room_bytes: int) -> None:
    cluster = Cluster(3, max_message_bytes=room_bytes)
    cluster.elect("s0")
    cluster.isolate("s1")
    data = [bytes([n]) * (n % 5) for n in range(20)]
    for one in data:
        cluster.propose("s0", one)
    cluster.run()
    cluster.heal()
    cluster.tick("s0")
    cluster.run()
    assert cluster.commands("s1") == data


def test_a_follower_whose_answers_are_lost_is_reached_by_the_next_heartbeat() -> None:
    cluster = Cluster(3, max_inflight_messages=2)
    cluster.elect("s0")
    cluster.isolate("s1")
    for n in range(6):
        cluster.propose("s0", bytes([n]))
        cluster.run()
    assert cluster.cores["s0"].state.leadership is not None
    progress = cluster.cores["s0"].state.leadership.progress[cluster.voters[1]]
    assert progress.is_full
    assert len(progress.inflight) == 2, "the window bounds what is sent"
    cluster.heal()
    cluster.tick("s0")
    cluster.run()
    assert cluster.commands("s1") == [bytes([n]) for n in range(6)]
    assert progress.state is ProgressState.REPLICATE
    assert not progress.inflight


def test_repeated_and_late_answers_never_move_a_follower_back() -> None:
    cluster = Cluster(3)
    cluster.elect("s0")
    kept: list[AppendResponse] = []
    for n in range(5):
        cluster.propose("s0", bytes([n]))
        cluster.give(cluster.take(AppendRequest, target="s1"))
        answers = cluster.take(AppendResponse, source="s1")
        kept += answers
        cluster.give(answers)
        cluster.take()
    assert cluster.cores["s0"].state.leadership is not None
    progress = cluster.cores["s0"].state.leadership.progress[cluster.voters[1]]
    cluster.propose("s0", b"in flight")
    before = (progress.match_index, progress.next_index)
    assert before == (6, 8)
    cluster.give(list(reversed(kept)))
    assert (progress.match_index, progress.next_index) == before
    stale_rejection = AppendResponse(
        source=cluster.voters[1], target=cluster.voters[0], term=1, match_index=4, rejected=True
    )
    cluster.give(stale_rejection)
    assert (progress.match_index, progress.next_index) == before


def test_proposals_are_refused_while_too_much_is_uncommitted_and_taken_again_after() -> None:
    size_bytes = 100 + ENTRY_OVERHEAD_BYTES
    cluster = Cluster(3, max_uncommitted_bytes=3 * size_bytes, max_entry_bytes=200)
    cluster.elect("s0")
    core = cluster.cores["s0"]
    cluster.isolate("s0")
    outcomes = [core.propose(bytes(100)) for _ in range(5)]
    assert [isinstance(o, Refusal) for o in outcomes] == [False, False, False, True, True]
    assert outcomes[-1] is Refusal.UNCOMMITTED_FULL
    assert core.propose(bytes(201)) is Refusal.TOO_LARGE
    assert core.state.leadership is not None
    assert core.state.leadership.uncommitted_bytes <= 3 * size_bytes
    cluster.run()
    cluster.heal()
    cluster.tick("s0")
    cluster.run()
    assert core.state.leadership.uncommitted_bytes == 0
    cluster.propose("s0", bytes(100))


def test_a_new_leader_bounds_what_it_inherits_uncommitted_too() -> None:
    cluster = Cluster(3, max_uncommitted_bytes=100)
    cluster.given("s0", terms=[1, 1, 1, 1, 1])
    cluster.isolate("s0")
    cluster.heal()
    cluster.time_out("s0")
    cluster.deliver_votes("s0")
    assert cluster.role("s0") is Role.LEADER
    assert cluster.cores["s0"].propose(b"x") is Refusal.UNCOMMITTED_FULL


def test_a_replica_whose_disk_went_back_in_time_takes_no_part() -> None:
    cluster = Cluster(3)
    cluster.elect("s0")
    cluster.give(
        HeartbeatRequest(
            source=cluster.voters[0], target=cluster.voters[1], term=1, commit_index=50
        )
    )
    assert not cluster.take(HeartbeatResponse)
    assert cluster.cores["s1"].state.ignored["acknowledged_entries_missing"] == 1


def test_replicas_with_different_states_at_one_index_notice() -> None:
    cluster = Cluster(3)
    cluster.elect("s0")
    cluster.cores["s0"].report_state_hash(1, b"right")
    cluster.cores["s1"].report_state_hash(1, b"right")
    cluster.cores["s2"].report_state_hash(1, b"wrong")
    cluster.tick("s0")
    for message in cluster.take(HeartbeatRequest):
        cluster.step(message)
    assert cluster.cores["s1"].ready().divergence is None
    divergence = cluster.cores["s2"].ready().divergence
    assert divergence is not None
    assert (divergence.index, divergence.own_hash) == (1, b"wrong")


def test_a_state_hash_that_comes_later_than_the_leaders_is_compared_as_well() -> None:
    cluster = Cluster(3)
    cluster.elect("s0")
    cluster.cores["s0"].report_state_hash(1, b"right")
    cluster.tick("s0")
    for message in cluster.take(HeartbeatRequest):
        cluster.step(message)
    assert cluster.cores["s2"].state.divergence is None
    cluster.cores["s2"].report_state_hash(1, b"wrong")
    assert cluster.cores["s2"].state.divergence is not None
