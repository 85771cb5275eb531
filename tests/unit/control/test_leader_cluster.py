"""An operator's question to a scheduler that does not lead is answered by the one that does."""

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest

from pdd.control.cluster_ports import MAY_BE_OLD
from pdd.control.cluster_server import ClusterServicer
from pdd.control.leader_cluster import LeaderCluster
from pdd.control.versions import CHANNEL_OPTIONS, SERVER_OPTIONS
from pdd.rpc.v1 import cluster_pb2, cluster_pb2_grpc
from tests.unit.daemon.grpc_cluster import WAIT_S, GrpcCluster, Scheduler

DRAIN = cluster_pb2.GetDrainStateRequest(node="decode-0")


@contextlib.asynccontextmanager
async def serving(
    scheduler: Scheduler,
    leader: Callable[[], str],
    *,
    name: str = "",
    addresses: dict[str, str] | None = None,
) -> AsyncIterator[str]:
    others = LeaderCluster(leader, name=name, addresses=addresses)
    servicer = ClusterServicer(scheduler.driver, leader=others)
    server = grpc.aio.server(options=SERVER_OPTIONS)
    cluster_pb2_grpc.add_ClusterServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(grace=None)


async def ask(address: str, method: str, request: Any) -> Any:
    async with grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
        return await getattr(cluster_pb2_grpc.ClusterStub(channel), method)(request, timeout=WAIT_S)


async def test_the_leader_answers_and_refuses_and_without_it_everyone_for_himself() -> None:
    leader = Scheduler()
    await leader.start()
    cluster = GrpcCluster(leader)
    known = leader.address
    try:
        node = await cluster.join("decode-0")
        async with serving(Scheduler(), lambda: known) as follower:
            drain = cluster_pb2.CordonNodeRequest(node="decode-0", is_drain=True)
            assert (await ask(follower, "CordonNode", drain)).is_changed
            assert leader.states() == {"decode-0": "cordoned"}
            assert (await ask(follower, "GetDrainState", DRAIN)).state.is_drained
            assert not (await ask(follower, "GetDrainState", DRAIN)).stale_reason
            with pytest.raises(grpc.aio.AioRpcError, match="no node 'x'; there are decode-0") as no:
                await ask(follower, "GetDrainState", cluster_pb2.GetDrainStateRequest(node="x"))
            assert MAY_BE_OLD not in str(no.value.details())
            await node.kill()
            await leader.stop()
            silent = "the scheduler that leads does not answer: this is what the asked one knows"
            with pytest.raises(grpc.aio.AioRpcError, match="no node 'decode-0'; there") as told:
                await ask(follower, "GetDrainState", DRAIN)
            assert silent in str(told.value.details())
            roles = await ask(follower, "GetRoles", cluster_pb2.GetRolesRequest())
            assert silent in roles.stale_reason
    finally:
        for one in cluster.nodes:
            await one.kill()


async def test_two_that_take_each_other_for_the_leader_pass_a_question_on_once() -> None:
    addresses: list[str] = []
    async with (
        serving(Scheduler(), lambda: addresses[1]) as one,
        serving(Scheduler(), lambda: addresses[0]) as other,
    ):
        addresses += [one, other]
        with pytest.raises(grpc.aio.AioRpcError, match="there are none"):
            await ask(one, "GetDrainState", DRAIN)


def decided(scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch, *ages_s: float) -> None:
    """It has decided about r-1 so long ago."""
    decisions = [cluster_pb2.Decision(request_id="r-1", age_s=age_s) for age_s in ages_s]
    monkeypatch.setattr(
        scheduler.driver.operator, "decisions", lambda name: decisions if name == "r-1" else []
    )


async def test_how_a_request_was_placed_is_told_by_whoever_remembers_it_at_any_scheduler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    addresses: dict[str, str] = {"c": "127.0.0.1:1"}
    schedulers = {name: Scheduler() for name in "ab"}
    decided(schedulers["a"], monkeypatch, 9.0, 7.0)
    decided(schedulers["b"], monkeypatch, 8.0)
    async with (
        serving(schedulers["a"], lambda: "", name="a", addresses=addresses) as a,
        serving(schedulers["b"], lambda: "", name="b", addresses=addresses) as b,
    ):
        addresses |= {"a": a, "b": b}
        request = cluster_pb2.ListDecisionsRequest(request_id="r-1")
        for address in (a, b):
            told = await ask(address, "ListDecisions", request)
            assert [(one.scheduler, one.age_s) for one in told.decisions] == [
                ("a", 9.0),
                ("b", 8.0),
                ("a", 7.0),
            ]
            assert told.stale_reason == "what c decided is not shown: no answer"
        decided(schedulers["a"], monkeypatch)
        told = await ask(a, "ListDecisions", request)
        assert [one.scheduler for one in told.decisions] == ["b"]
        unknown = cluster_pb2.ListDecisionsRequest(request_id="r-2")
        with pytest.raises(grpc.aio.AioRpcError, match=r"c did not answer\): it is too long ago"):
            await ask(a, "ListDecisions", unknown)
