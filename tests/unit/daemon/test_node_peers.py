"""Nodes that hear of each other through a scheduler, over real gRPC; only engines are scripted."""

from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from structlog.testing import capture_logs

from pdd.config.sections import Config, NodeSection, TransferSection, TransferTransport
from pdd.core.identity import NodeName, Role
from pdd.daemon import node_peers
from pdd.daemon.node_peers import join_settings
from pdd.daemon.running_job import JobReports
from pdd.daemon.scheduler_metrics import ClusterMetrics
from pdd.rpc.v1 import cluster_pb2
from pdd.transfer.peer_book import JoinSettings
from tests.unit.daemon.grpc_cluster import GrpcCluster, Node, grpc_cluster
from tests.waiting import until

MIB = 1 << 20


@pytest.fixture(autouse=True)
def logs() -> Iterator[list[Any]]:
    with capture_logs() as captured:
        yield captured


def linked(node: Node) -> list[tuple[str, int]]:
    """Peers that the node's engine was told to connect to, and in which life."""
    links = node.engine.linked.values()
    return sorted((link.peer.identity.name, link.peer.identity.boot_epoch) for link in links)


def info_of(cluster: GrpcCluster, name: str) -> cluster_pb2.NodeInfo:
    return next(n for n in cluster.scheduler.driver.list_nodes() if n.identity.name == name)


def heartbeat(node: Node) -> None:
    """As the daemon's loop does every second."""
    node.peers.look()
    node.health.look()
    node.service.send_status(node.link)


async def test_every_pair_of_the_two_pools_is_connected_before_a_request_comes() -> None:
    async with grpc_cluster() as cluster:
        names = ("prefill-0", "decode-0", "decode-1", "prefill-1")
        p0, d0, d1, p1 = [await cluster.join(name) for name in names]
        await until(lambda: all(len(linked(node)) == 2 for node in (p0, p1, d0, d1)))
        assert linked(p0) == linked(p1) == [("decode-0", 1), ("decode-1", 1)]
        assert linked(d0) == linked(d1) == [("prefill-0", 1), ("prefill-1", 1)]
        (link,) = [link for link in d0.engine.linked.values() if "prefill-0" in str(link)]
        assert link.peer.control_address == "prefill-0:1"
        assert link.peer.ucx_address == b"ucx"


async def test_a_peer_that_leaves_is_disconnected_and_its_next_life_connected() -> None:
    async with grpc_cluster() as cluster:
        decode, prefill = await cluster.join("decode-0"), await cluster.join("prefill-0")
        await until(lambda: linked(decode) == [("prefill-0", 1)])
        await prefill.kill()
        await until(lambda: linked(decode) == [])
        await cluster.join("prefill-0", boot_epoch=2)
        await until(lambda: linked(decode) == [("prefill-0", 2)])


async def test_connections_outlive_the_scheduler() -> None:
    async with grpc_cluster() as cluster:
        decode = await cluster.join("decode-0")
        await cluster.join("prefill-0")
        await until(lambda: linked(decode) == [("prefill-0", 1)])
        await cluster.scheduler.stop()
        heartbeat(decode)
        assert linked(decode) == [("prefill-0", 1)]
        assert decode.peers.degraded_reason == ""
        await cluster.scheduler.start()  # elsewhere: nobody comes back


async def test_a_slow_peer_makes_a_node_degraded_and_a_fast_one_ready_again(
    logs: list[Any],
) -> None:
    async with grpc_cluster() as cluster:
        await cluster.join("prefill-0")
        decode = await cluster.join("decode-0", join=JoinSettings(floor_bytes_per_s=1e9))
        await until(lambda: linked(decode) == [("prefill-0", 1)])
        decode.engine.received_bytes, decode.engine.bytes_per_s = 64 * MIB, 0.25e9
        for _ in range(3):
            heartbeat(decode)
        states = cluster.scheduler.states
        await cluster.scheduler.until(lambda: states()["decode-0"] == "degraded")
        info = info_of(cluster, "decode-0")
        assert "prefill-0 sends 0.25 GB/s, below the floor of 1.00 GB/s" in info.state_reason
        assert cluster.scheduler.driver.ready_counts() == (1, 1), "it still serves"
        decode.engine.received_bytes, decode.engine.bytes_per_s = 192 * MIB, 0.6e9
        heartbeat(decode)
        await cluster.scheduler.until(lambda: states()["decode-0"] == "ready")
        assert info_of(cluster, "decode-0").state_reason == ""
        told = [one["event"] for one in logs if one["event"] in ("node_degraded", "node_recovered")]
        assert told == ["node_degraded", "node_recovered"], "each once"


async def test_connections_are_listed_and_measured_by_peer_and_transport() -> None:
    async with grpc_cluster() as cluster:
        await cluster.join("prefill-0")
        decode = await cluster.join("decode-0")
        await until(lambda: linked(decode) == [("prefill-0", 1)])
        decode.engine.lanes = ("tcp/eth0", "rc_mlx5/mlx5_0:1")
        decode.engine.received_bytes, decode.engine.bytes_per_s = 4096, 2e9
        heartbeat(decode)
        await cluster.scheduler.until(lambda: len(info_of(cluster, "decode-0").links) == 1)
        await cluster.scheduler.until(
            lambda: info_of(cluster, "decode-0").links[0].transport == "rc_mlx5"
        )
        (link,) = info_of(cluster, "decode-0").links
        assert list(link.lanes) == ["tcp/eth0", "rc_mlx5/mlx5_0:1"]
        registry = CollectorRegistry()
        ClusterMetrics(cluster.scheduler.driver, registry=registry)
        lines = generate_latest(registry).decode().splitlines()
        labels = '{node="decode-0",peer="prefill-0",transport="rc_mlx5"}'
        for line in (
            f"pdd_transfer_peer_connected{labels} 1.0",
            f"pdd_transfer_peer_bandwidth_bytes_per_second{labels} 2e+09",
            f"pdd_transfer_peer_received_bytes_total{labels} 4096.0",
            'pdd_node_degraded{node="decode-0"} 0.0',
        ):
            assert line in lines


async def test_a_node_that_is_gone_leaves_no_link_behind() -> None:
    async with grpc_cluster() as cluster:
        prefill, decode = await cluster.join("prefill-0"), await cluster.join("decode-0")
        await until(lambda: linked(decode) == [("prefill-0", 1)])
        heartbeat(decode)
        await cluster.scheduler.until(lambda: bool(info_of(cluster, "decode-0").links))
        await decode.kill()
        await cluster.scheduler.until(lambda: cluster.scheduler.states()["decode-0"] == "lost")
        assert not info_of(cluster, "decode-0").links
        await until(lambda: linked(prefill) == [])


async def test_links_to_nodes_that_nobody_knows_are_not_kept() -> None:
    async with grpc_cluster() as cluster:
        decode = await cluster.join("decode-0")
        driver = cluster.scheduler.driver
        status = cluster_pb2.NodeStatus(links=[cluster_pb2.PeerLink(peer="invented")])
        session = driver._sessions[NodeName("decode-0")]
        driver.node_said(session, cluster_pb2.NodeMessage(status=status))
        assert not info_of(cluster, "decode-0").links
        assert linked(decode) == []


async def test_a_peer_that_a_node_refuses_is_named_and_its_blocks_are_not_taken() -> None:
    async with grpc_cluster() as cluster:
        decode = await cluster.join("decode-0")
        (session,) = cluster.scheduler.driver._sessions.values()
        peer = cluster_pb2.PeerNode(
            identity=cluster_pb2.NodeIdentity(name="prefill-9", uuid="u9", boot_epoch=1),
            ucx_worker_addresses=[b"ucx"],
            fingerprint={"kv_dtype": "float16"},
        )
        session.introduce([peer], complete=False)
        await until(lambda: decode.peers.refusal("u9") != "")
        assert "kv_dtype is bfloat16 here and float16 at prefill-9" in decode.peers.degraded_reason
        submit = cluster_pb2.Submit(request_id="r1", kind="decode", prompt_token_ids=[1])
        submit.source.CopyFrom(peer)
        failures: list[str] = []
        decode.service._reports[decode.link] = JobReports(
            frame=lambda frame, generation: None,
            failed=lambda request_id, generation, failure: failures.append(failure.message),
            ready=lambda request_id, generation, facts: None,
        )
        decode.service.scheduler_said(
            decode.link,
            cluster_pb2.SchedulerMessage(submits=cluster_pb2.SubmitBatch(submits=[submit])),
        )
        assert ["prefill-9" in text and "float16" in text for text in failures] == [True]
        assert decode.engine.runs == {}


def config_of(**transfer: Any) -> Config:
    return Config(
        node=NodeSection(name="decode-0", role=Role.DECODE), transfer=TransferSection(**transfer)
    )


def test_a_node_that_expects_rdma_and_cannot_have_it_is_degraded_from_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def fault(environment: Any) -> str:
        asked.append(environment.get("RAPIDS_LIBUCX_PREFER_SYSTEM_LIBRARY", ""))
        return "no verbs"

    monkeypatch.setattr(node_peers, "rdma_fault", fault)
    rdma = config_of(transport=TransferTransport.RDMA, expect_rdma=True, floor_gb_per_s=2.5)
    settings = join_settings(rdma, {})
    assert "transfer.expect_rdma" in settings.standing_reason
    assert "no verbs" in settings.standing_reason
    assert settings.rdma_expected
    assert settings.floor_bytes_per_s == 2.5e9
    assert asked == ["true"], "as the engine's process will have it"
    assert join_settings(config_of(), {}).standing_reason == ""
    assert len(asked) == 1, "nobody looks for RDMA where none is expected"
