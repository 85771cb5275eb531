"""Scripts about snapshots racing the log."""

from __future__ import annotations

from pdd.raft.messages import AppendRequest, AppendResponse, InstallSnapshot
from pdd.raft.progress import Progress, ProgressState
from pdd.raft.values import SnapshotMeta
from tests.simulation.raft.harness import Cluster


def progress_of(cluster: Cluster, leader: str, peer: str) -> Progress:
    leadership = cluster.cores[leader].state.leadership
    assert leadership is not None
    return next(p for name, p in leadership.progress.items() if name == peer)


def lagging_behind_a_snapshot(**config: int) -> Cluster:
    """s2 has only the leader's first entry; the leader has compacted the rest."""
    cluster = Cluster(3, **config)
    cluster.elect("s0")
    cluster.isolate("s2")
    for n in range(5):
        cluster.propose("s0", bytes([n]))
        cluster.run()
    cluster.snapshot("s0")
    cluster.heal()
    return cluster


def test_a_follower_behind_the_log_gets_the_snapshot_and_then_the_entries_after_it() -> None:
    cluster = lagging_behind_a_snapshot()
    cluster.propose("s0", b"after")
    cluster.run()
    cluster.tick("s0")
    cluster.run()
    assert cluster.cores["s2"].state.log.snapshot == SnapshotMeta(index=6, term=1)
    assert cluster.commands("s2") == cluster.commands("s0")
    assert progress_of(cluster, "s0", "s2").state is ProgressState.REPLICATE


def test_a_snapshot_that_arrives_after_the_entries_it_covers_drops_nothing() -> None:
    cluster = lagging_behind_a_snapshot()
    cluster.tick("s0")
    cluster.run_without(InstallSnapshot)
    snapshot = cluster.take(InstallSnapshot)
    assert snapshot
    # Meanwhile s1 leads and brings s2 the whole log, and more.
    cluster.elect("s1")
    cluster.propose("s1", b"after")
    cluster.run()
    assert cluster.commands("s2") == cluster.commands("s1")
    before = cluster.terms("s2")
    late = [_of_term(m, cluster.term("s1"), source="s1") for m in snapshot]
    cluster.give(late)
    assert cluster.terms("s2") == before
    assert cluster.cores["s2"].state.log.snapshot.index == 0
    answer = cluster.take(AppendResponse, source="s2")
    assert answer[0].match_index == cluster.commit("s2")


def _of_term(message: InstallSnapshot, term: int, *, source: str) -> InstallSnapshot:
    return InstallSnapshot(
        source=type(message.source)(source),
        target=message.target,
        term=term,
        meta=message.meta,
        data=message.data,
    )


def test_a_snapshot_whose_last_entry_the_log_holds_commits_it_and_keeps_the_suffix() -> None:
    """The entries are there, only not known to be committed."""
    cluster = Cluster(3)
    cluster.given("s0", terms=[1, 1, 1, 1], commit_index=3)
    cluster.given("s1", terms=[1, 1, 1, 1])
    cluster.given("s2", terms=[1, 1, 1, 1])
    cluster.give(
        InstallSnapshot(
            source=cluster.voters[0],
            target=cluster.voters[1],
            term=2,
            meta=SnapshotMeta(index=3, term=1),
            data=b"state",
        )
    )
    assert cluster.commit("s1") == 3
    assert cluster.terms("s1") == [1, 1, 1, 1]
    assert cluster.take(AppendResponse)[0].match_index == 3


def test_a_snapshot_replaces_a_log_that_conflicts_with_it() -> None:
    cluster = Cluster(3)
    cluster.given("s0", terms=[1, 2, 2], commit_index=3)
    cluster.given("s2", terms=[1, 2, 2])
    cluster.given("s1", terms=[1, 1, 1, 1])
    cluster.settle("s0")
    cluster.snapshot("s0")
    cluster.elect("s0")
    cluster.run()
    cluster.tick("s0", count=2)
    cluster.run()
    assert cluster.cores["s1"].state.log.snapshot == SnapshotMeta(index=3, term=2)
    assert cluster.terms("s1") == [3]
    assert cluster.commit("s1") == cluster.commit("s0")


def test_an_installed_snapshot_is_acknowledged_only_when_durable() -> None:
    cluster = lagging_behind_a_snapshot()
    cluster.tick("s0")
    cluster.run_without(InstallSnapshot)
    cluster.step(cluster.take(InstallSnapshot)[0])
    ready = cluster.begin("s2")
    assert ready.snapshot is not None
    assert ready.must_sync
    assert not cluster.take(AppendResponse, source="s2")
    cluster.crash("s2")
    cluster.restart("s2")
    assert cluster.cores["s2"].state.log.snapshot.index == 0, "all or nothing"
    for _ in range(250):
        cluster.tick("s0")
        cluster.run()
    assert cluster.commands("s2") == cluster.commands("s0")


def test_a_lost_snapshot_is_sent_again_when_the_transport_says_so() -> None:
    cluster = lagging_behind_a_snapshot()
    cluster.tick("s0")
    cluster.run_without(InstallSnapshot)
    assert cluster.take(InstallSnapshot)
    cluster.cores["s0"].report_snapshot(cluster.voters[2], delivered=False)
    cluster.observe("s0")
    cluster.tick("s0")
    cluster.run()
    assert cluster.commands("s2") == cluster.commands("s0")


def test_a_lost_snapshot_is_sent_again_after_a_while_if_nobody_says_anything() -> None:
    cluster = lagging_behind_a_snapshot(snapshot_ticks=15)
    cluster.tick("s0")
    cluster.run_without(InstallSnapshot)
    assert cluster.take(InstallSnapshot)
    for _ in range(14):
        cluster.tick("s0")
        cluster.run()
    assert progress_of(cluster, "s0", "s2").state is ProgressState.SNAPSHOT
    for _ in range(3):
        cluster.tick("s0")
        cluster.run()
    assert cluster.commands("s2") == cluster.commands("s0")


def test_a_silent_follower_is_sent_no_snapshot() -> None:
    cluster = lagging_behind_a_snapshot()
    cluster.isolate("s2")
    for _ in range(30):
        cluster.tick("s0", "s1")
        cluster.settle()
        assert not cluster.take(InstallSnapshot)
        cluster.run()
    assert not cluster.cores["s0"].has_ready(), "and the driver is not kept spinning"


def test_compaction_leaves_entries_for_a_follower_that_lags_a_little() -> None:
    cluster = Cluster(3)
    cluster.elect("s0")
    cluster.isolate("s2")
    for n in range(5):
        cluster.propose("s0", bytes([n]))
        cluster.run()
    cluster.snapshot("s0", keep_entries=5)
    cluster.heal()
    cluster.tick("s0")
    cluster.settle()
    cluster.run()
    assert cluster.cores["s2"].state.log.snapshot.index == 0
    assert cluster.commands("s2") == cluster.commands("s0")


def test_a_replica_restarts_from_its_snapshot_and_the_log_after_it() -> None:
    cluster = Cluster(3)
    cluster.elect("s0")
    cluster.propose("s0", b"covered")
    cluster.run()
    cluster.snapshot("s1")
    cluster.propose("s0", b"after")
    cluster.run()
    cluster.crash("s1")
    cluster.restart("s1")
    log = cluster.cores["s1"].state.log
    assert (log.snapshot.index, log.last_index, log.applied_index) == (2, 3, 2)
    cluster.tick("s0", count=2)
    cluster.run()
    assert cluster.commands("s1") == [b"covered", b"after"]


def test_appends_sent_before_the_snapshot_and_arriving_after_it_are_harmless() -> None:
    cluster = Cluster(3)
    cluster.elect("s0")
    cluster.propose("s0", b"1")
    early = cluster.take(AppendRequest, target="s2")
    cluster.run()
    for n in range(3):
        cluster.isolate("s2")
        cluster.propose("s0", bytes([n]))
        cluster.run()
    cluster.heal()
    cluster.snapshot("s0")
    for _ in range(3):
        cluster.tick("s0")
        cluster.run()
    commit = cluster.commit("s2")
    assert commit == cluster.commit("s0")
    cluster.give(early)
    assert cluster.commit("s2") == commit
    assert cluster.take(AppendResponse, source="s2")[0].match_index == commit
