"""A client comes back to another scheduler than the one that is gone, which seeks what it is after.

Two schedulers, the nodes of both and both front doors' runs, over gRPC; engines are scripted.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from structlog.testing import capture_logs

from pdd.control.group_convert import told_to_proto
from pdd.control.leader_server import HolderSession
from pdd.control.scheduler_client import SchedulerLink
from pdd.core.errors import UnknownRequest
from pdd.core.identity import RequestId
from pdd.gateway.job import Job
from pdd.rpc.v1 import cluster_pb2, decisions_pb2
from pdd.tls.security import PLAIN
from tests.sinks import Collected
from tests.unit.daemon.fake_engine import Run, ids_of, out
from tests.unit.daemon.grpc_cluster import WAIT_S, GrpcCluster, Node, Scheduler
from tests.unit.daemon.test_driver_over_grpc import text_of
from tests.unit.daemon.test_takeover import (
    NAME,
    Home,
    decoding,
    first_token_shown,
    homes,
    over,
    told,
)
from tests.waiting import until


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with capture_logs():
        yield


@asynccontextmanager
async def two_schedulers() -> AsyncIterator[tuple[GrpcCluster, Home, Node, Run]]:
    """r1 is being decoded for a client of the first; the nodes are attached to both. Gives the
    second one's front door."""
    async with homes() as (cluster, home):
        node, run = await decoding(cluster, home)
        async with attached_to_another(cluster) as second:
            yield cluster, second, node, run


@asynccontextmanager
async def attached_to_another(cluster: GrpcCluster) -> AsyncIterator[Home]:
    """The nodes are attached to a second scheduler too; its front door."""
    other = Scheduler()
    second = Home(other, seek=other.driver.seek, wait_s=2.0)
    await other.start()
    links = []
    for one in cluster.nodes:
        one.service._offers_held = False
        link = SchedulerLink(address=other.address, handler=one.service)
        links.append(asyncio.create_task(link.run()))
    await other.until(lambda: len(other.states()) == 2)
    await attached_to(2, cluster)
    try:
        yield second
    finally:
        for task in links:
            task.cancel()
        await asyncio.wait(links)
        await other.stop()


async def lost(cluster: GrpcCluster) -> None:
    await cluster.scheduler.stop()
    await attached_to(1, cluster)


async def attached_to(count: int, cluster: GrpcCluster) -> None:
    """Every node has so many schedulers."""
    for node in cluster.nodes:
        await until(lambda: len(node.service._reports) == count, f"{count} schedulers")  # noqa: B023


async def test_a_stream_is_sought_by_its_id_and_goes_on_where_it_runs() -> None:
    async with two_schedulers() as (cluster, second, node, run):
        await lost(cluster)
        run.feed(out("c"))
        sink = await second.resume()
        run.feed(out("d"), out("e", eos=True))
        await over(sink)
        assert text_of(list(sink.events)) == "abcde"
        assert list(node.engine.runs) == ["r1/0"], "it never ran twice"
        second.scheduler.core.check()
        assert not second.scheduler.core.requests


async def test_a_first_token_that_never_reached_the_decode_node_is_found_where_it_was_made() -> (
    None
):
    async with homes() as (cluster, home):
        _, decode = await first_token_shown(cluster, home)
        async with attached_to_another(cluster) as second:
            await lost(cluster)
            sink = await second.resume()
            run = await decode.engine.job("r1/1")
            assert run.job.choices[0].emitted_token_ids == ids_of("a")
            run.feed(out("b", eos=True))
            await over(sink)
            assert text_of(list(sink.events)) == "ab"
            second.scheduler.core.check()


async def test_a_request_that_is_sent_again_is_sought_by_its_key() -> None:
    async with two_schedulers() as (cluster, second, _, run):
        await lost(cluster)
        await second.scheduler.until(
            lambda: 1 in second.scheduler.driver._book.held_counts.values()
        )

        async def never() -> Job:
            raise AssertionError("it is known")

        await second.runs.settle(NAME)
        again = second.runs.join(NAME, RequestId("r2"), prepare=never)
        assert again.request_id == "r1"
        sink = Collected()
        again.listen(sink)
        run.feed(out("c", eos=True))
        await over(sink)
        assert text_of(list(sink.events)) == "abc"


async def test_a_scheduler_that_stood_still_does_not_end_what_another_one_took_over() -> None:
    async with two_schedulers() as (cluster, second, node, run):
        await lost(cluster)
        sink = await second.resume()
        await told(sink, 2)
        former = SchedulerLink(address="former", handler=node.service)
        node.service.scheduler_attached(former, cluster_pb2.Welcome(life="former"))
        cancels = cluster_pb2.CancelBatch(request_ids=["r1"])
        submit = cluster_pb2.Submit(request_id="r1", generation=1, kind="local")
        for message in (
            cluster_pb2.SchedulerMessage(cancels=cancels),
            cluster_pb2.SchedulerMessage(submits=cluster_pb2.SubmitBatch(submits=[submit])),
        ):
            node.service.scheduler_said(former, message)
        run.feed(out("c", eos=True))
        await over(sink)
        assert text_of(list(sink.events)) == "abc"
        assert list(node.engine.runs) == ["r1/0"]
        node.service.scheduler_lost(former, "over")


async def test_what_has_ended_meanwhile_is_found_too() -> None:
    async with two_schedulers() as (cluster, second, _, run):
        await lost(cluster)
        run.feed(out("c", eos=True))
        sink = await second.resume()
        await over(sink)
        assert text_of(list(sink.events)) == "abc"


async def test_what_a_scheduler_that_is_there_holds_is_not_given_to_another_one() -> None:
    async with two_schedulers() as (_, second, _, run):
        with pytest.raises(UnknownRequest):
            await second.resume()
        run.feed(out("c", eos=True))
        await second.scheduler.until(lambda: second.scheduler.states() != {})
        assert not any(second.scheduler.driver._book.held_counts.values()), "its end is held for it"
        with pytest.raises(UnknownRequest):
            await second.resume()


async def test_what_one_scheduler_was_told_of_is_not_told_to_another_at_the_same_time() -> None:
    async with two_schedulers() as (cluster, second, node, run):
        await lost(cluster)
        third = SchedulerLink(address="third", handler=node.service)
        node.service.scheduler_attached(third, cluster_pb2.Welcome(life="third"))
        sink = await second.resume()
        seek = cluster_pb2.SchedulerMessage(seek=cluster_pb2.Seek(request_id="r1"))
        with capture_logs() as logs:
            node.service.scheduler_said(third, seek)
        assert not [one for one in logs if one["event"] == "held_job_found"]
        run.feed(out("c", eos=True))
        await over(sink)
        assert text_of(list(sink.events)) == "abc"
        node.service.scheduler_lost(third, "over")


async def test_a_new_life_takes_nothing_that_nobody_asks_it_for() -> None:
    async with two_schedulers() as (cluster, second, node, run):
        await lost(cluster)
        assert not node.service.hello().holds_requests
        assert not second.scheduler.core.requests
        run.feed(out("c"))
        assert node.jobs.held_count == 1


async def test_a_leader_that_was_told_of_it_by_the_lost_scheduler_tells_its_end_all_the_same() -> (
    None
):
    async with two_schedulers() as (cluster, second, _, run):
        driver = second.scheduler.driver
        desk = driver.join_group(
            name="s1",
            addresses={"s0": "", "s1": ""},
            security=PLAIN,
            say=lambda operation: None,
        )
        desk.leader_is("s1")
        session = HolderSession("s0")
        desk.holder_attached(session)
        request = cluster.scheduler.core.requests[RequestId("r1")]
        item = told_to_proto(request, output_token_count=2, now_s=driver._clock())
        desk.holder_said(session, item)
        desk.holder_said(session, decisions_pb2.HolderItem(all_told=decisions_pb2.AllTold()))
        assert second.scheduler.core.leads
        assert second.scheduler.core.requests[RequestId("r1")].holder == "s0"
        desk.holder_detached(session, "killed")
        await lost(cluster)
        run.feed(out("c", eos=True))
        await asyncio.wait_for(run.ended.wait(), timeout=WAIT_S)
        sink = await second.resume()
        await over(sink)
        assert text_of(list(sink.events)) == "abc"
        second.scheduler.core.check()
        assert not second.scheduler.core.requests
        await desk.close()
