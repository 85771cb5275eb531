"""What a scrape shows of nodes and their transfers."""

from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from structlog.testing import capture_logs

from pdd.core.identity import NodeName
from pdd.daemon.scheduler_metrics import ClusterMetrics
from pdd.daemon.transfer_metrics import known_counters
from pdd.rpc.v1 import cluster_pb2
from pdd.scheduler.events import Tick
from tests.unit.daemon.grpc_cluster import GrpcCluster, grpc_cluster

COUNTERS = {
    "sent_bytes": 4096.0,
    "source_open": 2.0,
    "thread_cpu_s": 0.5,
    "transfers_completed": 3.0,
    "moving_s": 0.25,
    "refused_expired": 3.0,
    "refused_by_mood": 1.0,
    "invented": 9.0,
}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with capture_logs():
        yield


def scrape(cluster: GrpcCluster) -> list[str]:
    registry = CollectorRegistry()
    ClusterMetrics(cluster.scheduler.driver, registry=registry)
    lines = generate_latest(registry).decode().splitlines()
    return [line for line in lines if not line.startswith("#")]


async def test_the_transfer_counters_of_every_node_are_metrics() -> None:
    async with grpc_cluster() as cluster:
        node = cluster.add("prefill-0")
        node.engine.transfer_counters = COUNTERS
        node.start()
        driver = cluster.scheduler.driver
        await cluster.scheduler.until(lambda: bool(driver.transfer_counters()))
        lines = scrape(cluster)
        for line in (
            'pdd_kv_transfer_sent_bytes_total{node="prefill-0"} 4096.0',
            'pdd_kv_transfer_open_sources{node="prefill-0"} 2.0',
            'pdd_kv_transfer_thread_cpu_seconds_total{node="prefill-0"} 0.5',
            'pdd_kv_transfer_received_transfers_total{node="prefill-0"} 3.0',
            'pdd_kv_transfer_received_moving_seconds_total{node="prefill-0"} 0.25',
            'pdd_kv_transfer_refusals_total{node="prefill-0",reason="expired"} 3.0',
        ):
            assert line in lines
        assert not any("invented" in line or "mood" in line for line in lines)


async def test_a_forgotten_node_leaves_no_label() -> None:
    async with grpc_cluster() as cluster:
        node = cluster.add("prefill-0")
        node.engine.transfer_counters = COUNTERS
        node.start()
        driver = cluster.scheduler.driver
        await cluster.scheduler.until(lambda: bool(driver.transfer_counters()))
        await node.kill()
        await cluster.scheduler.until(lambda: cluster.scheduler.states()["prefill-0"] == "lost")
        cluster.scheduler.core.nodes[NodeName("prefill-0")].seen_s -= 600.0
        driver._step(Tick())
        assert not any("prefill-0" in line for line in scrape(cluster))


async def test_what_was_decided_is_counted() -> None:
    async with grpc_cluster() as cluster:
        counts = cluster.scheduler.driver.decision_counts
        counts.rejected_deadline, counts.false_rejects, counts.given_back = 5, 1, 2
        lines = scrape(cluster)
        assert 'pdd_scheduler_rejected_requests_total{reason="deadline"} 5.0' in lines
        assert 'pdd_scheduler_rejected_requests_total{reason="full"} 0.0' in lines
        assert "pdd_scheduler_false_rejects_total 1.0" in lines
        assert "pdd_scheduler_given_back_total 2.0" in lines
        assert "pdd_scheduler_placements_total 0.0" in lines


async def test_what_the_block_directory_holds_and_what_went_wrong_is_told() -> None:
    async with grpc_cluster() as cluster:
        await cluster.join("decode-0")
        directory = cluster.scheduler.directory
        (session,) = cluster.scheduler.driver._sessions.values()
        delta = cluster_pb2.CacheDelta(first_sequence=1, last_sequence=1, stored=bytes(range(32)))
        directory.said(session, cluster_pb2.NodeMessage(cache_delta=delta))
        directory._apply()
        assert "pdd_directory_blocks 2.0" in scrape(cluster)
        assert "pdd_directory_unrecorded_blocks 0.0" in scrape(cluster)
        delta.stored = b"no whole key"
        directory.said(session, cluster_pb2.NodeMessage(cache_delta=delta))
        directory._ask()
        lines = scrape(cluster)
        assert "pdd_directory_refused_messages_total 1.0" in lines
        assert "pdd_directory_asked_snapshots_total 1.0" in lines


def test_what_has_no_metric_is_not_kept() -> None:
    assert sorted(known_counters(COUNTERS)) == [
        "moving_s",
        "refused_expired",
        "sent_bytes",
        "source_open",
        "thread_cpu_s",
        "transfers_completed",
    ]
