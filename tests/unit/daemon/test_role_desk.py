"""Roles as operators, logs and autoscalers see them; real gRPC, scripted engines."""

from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from structlog.testing import capture_logs

from pdd.core.identity import NodeName, Role
from pdd.daemon.scheduler_metrics import ClusterMetrics
from pdd.rpc.v1 import cluster_pb2, cluster_pb2_grpc
from pdd.scheduler.events import NodeLost, Tick
from pdd.scheduler.roles.settings import RoleMode, RoleSettings
from tests import sinks
from tests.unit.daemon.grpc_cluster import WAIT_S, Client, GrpcCluster, grpc_cluster
from tests.unit.daemon.test_driver_over_grpc import text_request


@pytest.fixture(autouse=True)
def logs() -> Iterator[list[Any]]:
    with capture_logs() as captured:
        yield captured


async def set_role(cluster: GrpcCluster, node: str, role: str) -> Any:
    """The answer, or the error's code and text."""
    async with grpc.aio.insecure_channel(cluster.scheduler.address) as channel:
        stub = cluster_pb2_grpc.ClusterStub(channel)
        request = cluster_pb2.SetNodeRoleRequest(node=node, role=role, message="trial")
        try:
            return await stub.SetNodeRole(request, timeout=WAIT_S)
        except grpc.aio.AioRpcError as error:
            return error.code(), str(error.details())


async def get_roles(cluster: GrpcCluster) -> cluster_pb2.GetRolesResponse:
    async with grpc.aio.insecure_channel(cluster.scheduler.address) as channel:
        stub = cluster_pb2_grpc.ClusterStub(channel)
        return await stub.GetRoles(cluster_pb2.GetRolesRequest(), timeout=WAIT_S)


def scrape(cluster: GrpcCluster) -> dict[str, float]:
    registry = CollectorRegistry()
    ClusterMetrics(cluster.scheduler.driver, registry=registry)
    lines = generate_latest(registry).decode().splitlines()
    found = [line.rpartition(" ") for line in lines if line.startswith("pdd_role_")]
    return {name: float(value) for name, _, value in found}


async def test_a_role_is_set_told_logged_counted_and_given_back(logs: list[Any]) -> None:
    async with grpc_cluster() as cluster:
        for name in ("prefill-0", "decode-0", "decode-1"):
            await cluster.join(name)
        answer = await set_role(cluster, "decode-1", "prefill")
        assert (answer.is_changed, answer.role.role) == (True, "prefill")
        assert (answer.role.decided_by, answer.role.reason) == ("operator", "trial")
        assert not (await set_role(cluster, "decode-1", "prefill")).is_changed
        told = await get_roles(cluster)
        assert told.mode == "off"
        assert [(one.node, one.source, one.target, one.stage) for one in told.switches] == [
            ("decode-1", "decode", "prefill", "begun"),
            ("decode-1", "decode", "prefill", "done"),
        ]
        metrics = scrape(cluster)
        assert metrics['pdd_role_replicas{role="prefill"}'] == 2
        assert metrics['pdd_role_wanted_replicas{role="prefill"}'] == 1
        done = 'pdd_role_switches_total{by="operator",stage="done",target="prefill"}'
        assert metrics[done] == 1
        changed = [one for one in logs if one["event"] == "node_role_changed"]
        assert [(one["node"], one["stage"], one["why"]) for one in changed] == [
            ("decode-1", "begun", "trial"),
            ("decode-1", "done", "trial"),
        ]
        answer = await set_role(cluster, "decode-1", "auto")
        assert (answer.is_changed, answer.role.role) == (True, "decode")


async def test_what_cannot_be_is_refused_by_name() -> None:
    async with grpc_cluster() as cluster:
        await cluster.join("decode-0")
        code, text = await set_role(cluster, "decode-0", "prefill")
        assert code is grpc.StatusCode.FAILED_PRECONDITION
        assert text.startswith("decode-0 is the last decode node that takes work")
        code, text = await set_role(cluster, "decode-0", "both")
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert text == "role is 'both'; a node can be prefill, decode or auto"
        code, text = await set_role(cluster, "decode-7", "prefill")
        assert code is grpc.StatusCode.NOT_FOUND
        cluster.scheduler.driver._step(
            NodeLost(identity=cluster.nodes[0].identity, reason="made up")
        )
        answer = await set_role(cluster, "decode-0", "prefill")
        assert (answer.is_changed, answer.role.role) == (True, "decode"), "when it comes back"


async def test_a_node_says_that_its_role_is_pinned() -> None:
    async with grpc_cluster() as cluster:
        node = cluster.add("decode-0")
        node.service._is_role_pinned = True
        node.start()
        await cluster.scheduler.until(lambda: "decode-0" in cluster.scheduler.core.nodes)
        code, text = await set_role(cluster, "decode-0", "prefill")
        assert code is grpc.StatusCode.FAILED_PRECONDITION
        assert "pinned to decode by node.pin_role" in text


async def test_advice_is_logged_and_load_is_a_metric(logs: list[Any]) -> None:
    roles = RoleSettings(mode=RoleMode.ADVISE, window_s=1.0, sustain_s=0.0)
    async with grpc_cluster(roles=roles) as cluster:
        for name in ("prefill-0", "prefill-1", "decode-0"):
            await cluster.join(name)
        scheduler = cluster.scheduler
        node = scheduler.core.nodes[NodeName("decode-0")]
        node.max_num_seqs = 1
        scheduler.core.nodes[NodeName("prefill-0")].max_num_seqs = 1
        client = Client(sinks.generate(scheduler.driver, text_request(presence_penalty=0.5)))
        await cluster.nodes[2].engine.job("r1/0")
        for _ in range(40):
            scheduler.now_s += 0.25
            for one in scheduler.core.nodes.values():
                one.seen_s = scheduler.now_s
            scheduler.driver._step(Tick())
        metrics = scrape(cluster)
        assert metrics['pdd_role_load_nodes{role="decode"}'] == pytest.approx(1.0, abs=0.01)
        assert metrics['pdd_role_wanted_replicas{role="decode"}'] == 2
        assert metrics['pdd_role_pressure{role="decode"}'] > 1.0
        (advice,) = [one for one in logs if one["event"] == "node_role_changed"]
        assert (advice["stage"], advice["target"]) == ("advised", Role.DECODE)
        assert "decode pressure" in advice["why"]
        assert scheduler.core.nodes[NodeName(advice["node"])].role is Role.PREFILL
        await client.leave()
