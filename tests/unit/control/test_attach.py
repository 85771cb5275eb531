"""A node's stream to a scheduler, both real, over gRPC on loopback."""

import asyncio
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from structlog.testing import capture_logs

from pdd.control import cluster_server, outbox, scheduler_client, versions
from pdd.control.cluster_server import ClusterServicer
from pdd.control.node_session import NodeSession
from pdd.control.scheduler_client import SchedulerLink
from pdd.control.versions import CHANNEL_OPTIONS
from pdd.core.identity import NodeName
from pdd.rpc.v1 import cluster_pb2, cluster_pb2_grpc
from pdd.scheduler.events import Tick
from tests.sinks import generate
from tests.unit.daemon.fake_engine import out
from tests.unit.daemon.grpc_cluster import (
    WAIT_S,
    Client,
    GrpcCluster,
    Node,
    Scheduler,
    grpc_cluster,
)
from tests.unit.daemon.test_driver_over_grpc import text_of, text_request


def submits(**fields: Any) -> cluster_pb2.SchedulerMessage:
    return cluster_pb2.SchedulerMessage(
        submits=cluster_pb2.SubmitBatch(submits=[cluster_pb2.Submit(**fields)])
    )


@pytest.fixture(autouse=True)
def logs() -> Iterator[list[Any]]:
    with capture_logs() as captured:
        yield captured


def hello_of(node: Node, **changes: Any) -> cluster_pb2.Hello:
    hello = node.service.hello()
    for name, value in changes.items():
        if name == "fingerprint":
            hello.fingerprint.clear()
            hello.fingerprint.update(value)
        else:
            setattr(hello, name, value)
    return hello


async def answer_to(cluster: GrpcCluster, message: cluster_pb2.NodeMessage) -> Any:
    """What a scheduler says to a first message: its answer, or the error."""
    address = cluster.scheduler.address
    async with grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
        call = cluster_pb2_grpc.ClusterStub(channel).Attach()
        await call.write(message)
        try:
            return await asyncio.wait_for(call.read(), timeout=WAIT_S)
        except grpc.aio.AioRpcError as error:
            return error
        finally:
            call.cancel()


async def refusal(cluster: GrpcCluster, hello: cluster_pb2.Hello) -> str:
    error = await answer_to(cluster, cluster_pb2.NodeMessage(hello=hello))
    assert isinstance(error, grpc.aio.AioRpcError), error
    assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
    return str(error.details())


async def test_a_welcomed_node_is_listed_with_what_it_said() -> None:
    async with grpc_cluster() as cluster:
        await cluster.join("decode-0")
        await cluster.join("prefill-0")
        async with grpc.aio.insecure_channel(cluster.scheduler.address) as channel:
            stub = cluster_pb2_grpc.ClusterStub(channel)
            listed = await stub.ListNodes(cluster_pb2.ListNodesRequest(), timeout=WAIT_S)
        assert [(node.identity.name, node.role, node.state) for node in listed.nodes] == [
            ("decode-0", "decode", "ready"),
            ("prefill-0", "prefill", "ready"),
        ]
        node = listed.nodes[0]
        assert (node.identity.boot_epoch, node.address, node.model) == (1, "decode-0:1", "tiny")
        assert node.block_count == 101
        assert node.pid > 0


async def test_a_nodes_first_status_is_what_its_engine_counts() -> None:
    async with grpc_cluster() as cluster:
        await cluster.join("decode-0")
        node = cluster.scheduler.core.nodes[NodeName("decode-0")]
        await cluster.scheduler.until(lambda: node.waiting_sequence_count == 2)
        assert (node.free_block_count, node.running_sequence_count) == (99, 1)


class TestRefusedJoins:
    async def test_another_model_is_named(self) -> None:
        async with grpc_cluster() as cluster:
            node = cluster.add("decode-0")
            text = await refusal(cluster, hello_of(node, model="huge"))
            assert "'huge'" in text
            assert "'tiny'" in text

    async def test_a_fingerprint_that_differs_is_named_with_both_values(self) -> None:
        async with grpc_cluster() as cluster:
            await cluster.join("prefill-0")
            node = cluster.add("decode-0")
            text = await refusal(cluster, hello_of(node, fingerprint={"kv_dtype": "float16"}))
            for word in ("decode-0", "kv_dtype", "float16", "prefill-0", "bfloat16"):
                assert word in text

    async def test_a_fingerprint_key_that_only_one_knows_is_a_difference(self) -> None:
        async with grpc_cluster() as cluster:
            await cluster.join("prefill-0")
            known = dict(cluster.nodes[0].engine.info.fingerprint)
            hello = hello_of(cluster.add("decode-0"), fingerprint={**known, "kv_packing": "amx"})
            assert (
                "kv_packing is amx at node decode-0 and unknown at node prefill-0"
                in await refusal(cluster, hello)
            )

    async def test_a_lost_nodes_fingerprint_binds_nobody(self) -> None:
        async with grpc_cluster() as cluster:
            former = await cluster.join("prefill-0")
            await former.kill()
            states = cluster.scheduler.states
            await cluster.scheduler.until(lambda: states() == {"prefill-0": "lost"})
            node = cluster.add("decode-0")
            hello = hello_of(node, fingerprint={"kv_dtype": "float16"})
            welcome = await answer_to(cluster, cluster_pb2.NodeMessage(hello=hello))
            assert welcome.WhichOneof("message") == "welcome"

    async def test_another_protocol_version_is_named_with_both(self) -> None:
        async with grpc_cluster() as cluster:
            text = await refusal(cluster, hello_of(cluster.add("decode-0"), protocol_version=7))
            assert "version 7" in text
            assert "scheduler takes 2 and 3" in text

    async def test_the_version_before_is_taken_and_no_other(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(
            cluster_server, "ACCEPTED_PROTOCOL_VERSIONS", versions.accepted_versions(7)
        )
        async with grpc_cluster() as cluster:
            for version in (5, 8):
                hello = hello_of(cluster.add(f"decode-{version}"), protocol_version=version)
                text = await refusal(cluster, hello)
                assert f"version {version}" in text
                assert "takes 6 and 7" in text
            for version in (6, 7):
                hello = hello_of(cluster.add(f"decode-{version}"), protocol_version=version)
                welcome = await answer_to(cluster, cluster_pb2.NodeMessage(hello=hello))
                assert welcome.WhichOneof("message") == "welcome"

    async def test_a_hello_without_a_version_is_refused(self) -> None:
        assert versions.accepted_versions(1) == (1,)
        async with grpc_cluster() as cluster:
            assert "version 0" in await refusal(
                cluster, hello_of(cluster.add("decode-0"), protocol_version=0)
            )

    async def test_a_scheduler_is_no_node(self) -> None:
        async with grpc_cluster() as cluster:
            node = cluster.add("decode-0")
            assert "'scheduler'" in await refusal(cluster, hello_of(node, role="scheduler"))

    async def test_the_first_message_must_be_hello(self) -> None:
        async with grpc_cluster() as cluster:
            message = cluster_pb2.NodeMessage(status=cluster_pb2.NodeStatus())
            error = await answer_to(cluster, message)
            assert isinstance(error, grpc.aio.AioRpcError)
            assert "hello" in str(error.details())

    @pytest.mark.parametrize(("field", "value"), [("block_size", 0), ("block_count", 1)])
    async def test_a_pool_that_can_hold_nothing_is_named(self, field: str, value: int) -> None:
        async with grpc_cluster() as cluster:
            text = await refusal(cluster, hello_of(cluster.add("decode-0"), **{field: value}))
            assert f"{field} = {value}" in text

    async def test_a_name_in_use_by_another_node_is_named(self) -> None:
        async with grpc_cluster() as cluster:
            await cluster.join("decode-0")
            text = await refusal(cluster, hello_of(cluster.add("decode-0", uuid="another")))
            assert "decode-0" in text
            assert "in use" in text
            assert cluster.scheduler.states() == {"decode-0": "ready"}

    async def test_a_former_life_cannot_push_out_the_present_one(self) -> None:
        async with grpc_cluster() as cluster:
            await cluster.join("decode-0", boot_epoch=3)
            text = await refusal(cluster, hello_of(cluster.add("decode-0", boot_epoch=2)))
            assert "boot 2" in text
            assert "boot 3" in text

    async def test_the_node_says_why_and_tries_again_later(
        self, logs: list[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(scheduler_client, "_REFUSED_BACKOFF_S", 0.01)
        async with grpc_cluster() as cluster:
            await cluster.join("decode-0", uuid="first")
            second = cluster.add("decode-0", uuid="second")
            second.start()
            await cluster.nodes[0].kill()
            await cluster.scheduler.until(
                lambda: (
                    cluster.scheduler.core.nodes[NodeName("decode-0")].identity == second.identity
                )
            )
        refusals = [entry for entry in logs if entry["event"] == "join_refused"]
        assert all("in use" in entry["reason"] for entry in refusals)


class RecordingHandler:
    """A node that only listens, and not to what is said of peers."""

    def __init__(self, hello: cluster_pb2.Hello) -> None:
        self._hello = hello
        self.said: list[cluster_pb2.SchedulerMessage] = []
        self.came = asyncio.Event()

    def hello(self) -> cluster_pb2.Hello:
        return self._hello

    def scheduler_attached(self, link: SchedulerLink, welcome: cluster_pb2.Welcome) -> None:
        self.came.set()

    def scheduler_said(self, link: SchedulerLink, message: cluster_pb2.SchedulerMessage) -> None:
        if message.WhichOneof("message") != "peers_joined":
            self.said.append(message)
        self.came.set()

    def scheduler_lost(self, link: SchedulerLink, reason: str) -> None:
        pass


async def test_submits_and_cancels_keep_their_order_and_share_messages() -> None:
    async with grpc_cluster() as cluster:
        handler = RecordingHandler(cluster.add("decode-0").service.hello())
        link = SchedulerLink(address=cluster.scheduler.address, handler=handler)
        task = asyncio.create_task(link.run())
        await cluster.scheduler.until(lambda: "decode-0" in cluster.scheduler.states())
        session = cluster.scheduler.driver._sessions[NodeName("decode-0")]
        session.submit(submits(request_id="a"))
        session.submit(submits(request_id="b"))
        session.cancel("a")
        session.cancel("b")
        session.submit(submits(request_id="a", generation=1))
        session.first_token("a", 1, {0: 9}, has_choices=False)
        async with asyncio.timeout(WAIT_S):
            while len(handler.said) < 4:
                handler.came.clear()
                await handler.came.wait()
        task.cancel()
        await asyncio.wait([task])
        first, second, third, fourth = handler.said
        assert [one.request_id for one in first.submits.submits] == ["a", "b"]
        assert list(second.cancels.request_ids) == ["a", "b"]
        assert [one.generation for one in third.submits.submits] == [1]
        assert (fourth.first_token.request_id, fourth.first_token.token_id) == ("a", 9)


async def test_frames_of_one_loop_turn_travel_together() -> None:
    async with grpc_cluster() as cluster:
        decode = await cluster.join("decode-0")
        driver = cluster.scheduler.driver
        clients = [Client(generate(driver, text_request(f"r{index}"))) for index in range(8)]
        runs = [await decode.engine.job(f"r{index}/0") for index in range(8)]
        for run in runs:
            run.feed(out("a", eos=True))
        for client in clients:
            assert text_of(await client.all()) == "a"
        assert sum(driver.batches) == 8
        assert len(driver.batches) <= 4, driver.batches


class TestBrokenStreams:
    async def test_a_broken_channel_is_a_lost_node(self) -> None:
        async with grpc_cluster() as cluster:
            node = await cluster.join("decode-0")
            await node.kill()
            await cluster.scheduler.until(
                lambda: cluster.scheduler.states() == {"decode-0": "lost"}
            )

    async def test_a_node_attaches_again_by_itself(self) -> None:
        async with grpc_cluster() as cluster:
            node = await cluster.join("decode-0")
            cluster.scheduler.driver._sessions[NodeName("decode-0")].close("a test")
            await cluster.scheduler.until(lambda: len(cluster.scheduler.driver.detached) == 1)
            await cluster.scheduler.until(
                lambda: cluster.scheduler.states() == {"decode-0": "ready"}
            )
            assert node.identity.boot_epoch == 1

    async def test_a_restarted_scheduler_gets_its_nodes_back_and_their_old_jobs_end(self) -> None:
        async with grpc_cluster() as cluster:
            node = await cluster.join("decode-0")
            client = Client(generate(cluster.scheduler.driver, text_request()))
            run = await node.engine.job("r1/0")
            former, address = cluster.scheduler, cluster.scheduler.address
            await former.stop()
            await client.leave()
            await asyncio.wait_for(run.ended.wait(), timeout=WAIT_S)
            cluster.scheduler = Scheduler()
            await cluster.scheduler.start(address)
            await cluster.scheduler.until(
                lambda: cluster.scheduler.states() == {"decode-0": "ready"}
            )
            client = Client(generate(cluster.scheduler.driver, text_request("r2")))
            (await node.engine.job("r2/0")).feed(out("a", eos=True))
            assert text_of(await client.all()) == "a"

    async def test_a_newer_life_closes_the_former(self) -> None:
        async with grpc_cluster() as cluster:
            former = await cluster.join("decode-0")
            client = Client(generate(cluster.scheduler.driver, text_request()))
            old = await former.engine.job("r1/0")
            present = await cluster.join("decode-0", boot_epoch=2)
            (await present.engine.job("r1/1")).feed(out("a", eos=True))
            assert text_of(await client.all()) == "a"
            await asyncio.wait_for(old.ended.wait(), timeout=WAIT_S)
            ((identity, reason), *_) = cluster.scheduler.driver.detached
            assert identity == former.identity
            assert "newer life" in reason
            assert cluster.scheduler.states() == {"decode-0": "ready"}

    async def test_the_same_life_on_a_new_stream_takes_over_and_stays(self) -> None:
        # The node's side has broken; the scheduler has not noticed yet.
        async with grpc_cluster() as cluster:
            node = await cluster.join("decode-0")
            second = SchedulerLink(address=cluster.scheduler.address, handler=node.service)
            task = asyncio.create_task(second.run())
            await cluster.scheduler.until(lambda: len(cluster.scheduler.driver.detached) == 1)
            assert cluster.scheduler.states() == {"decode-0": "ready"}
            client = Client(generate(cluster.scheduler.driver, text_request()))
            (await node.engine.job("r1/0")).feed(out("a", eos=True))
            assert text_of(await client.all()) == "a"
            task.cancel()
            await asyncio.wait([task])

    @pytest.mark.parametrize("turns", range(6))
    async def test_a_node_that_is_stopped_while_it_is_welcomed_stops(self, turns: int) -> None:
        async with grpc_cluster() as cluster:
            node = await cluster.join("decode-0")
            for _ in range(turns):
                await asyncio.sleep(0)
            await asyncio.wait_for(node.kill(), timeout=WAIT_S)
            await cluster.scheduler.until(
                lambda: cluster.scheduler.states() == {"decode-0": "lost"}
            )

    async def test_a_node_that_never_came_back_is_forgotten(self) -> None:
        async with grpc_cluster(lost_node_memory_s=600.0) as cluster:
            node = await cluster.join("decode-0")
            await cluster.join("decode-1")
            await node.kill()
            await cluster.scheduler.until(lambda: cluster.scheduler.states()["decode-0"] == "lost")
            driver = cluster.scheduler.driver
            assert [info.identity.name for info in driver.list_nodes()] == ["decode-0", "decode-1"]
            cluster.scheduler.core.nodes[NodeName("decode-0")].seen_s -= 600.0
            driver._step(Tick())
            assert [info.identity.name for info in driver.list_nodes()] == ["decode-1"]
            assert list(driver._book.hellos) == ["decode-1"]

    async def test_a_silent_node_is_lost_by_the_clock_and_cut_off(self) -> None:
        async with grpc_cluster(node_silence_s=5.0) as cluster:
            await cluster.join("decode-0")
            cluster.scheduler.now_s += 5.5
            cluster.scheduler.driver._step(Tick())
            assert cluster.scheduler.states() == {"decode-0": "lost"}
            await cluster.scheduler.until(lambda: len(cluster.scheduler.driver.detached) == 1)
            assert "silent for 5.5 s" in cluster.scheduler.driver.detached[0][1]

    async def test_a_kind_of_work_that_this_node_does_not_know_fails_that_request_only(
        self,
    ) -> None:
        async with grpc_cluster() as cluster:
            node = await cluster.join("decode-0")
            client = Client(generate(cluster.scheduler.driver, text_request()))
            await node.engine.job("r1/0")
            session = cluster.scheduler.driver._sessions[NodeName("decode-0")]
            session.submit(submits(request_id="odd", kind="speculate"))
            session.submit(submits(request_id="r1", generation=1, kind="speculate"))
            (await node.engine.job("r1/0")).feed(out("a", eos=True))
            assert text_of(await client.all()) == "a"
            assert cluster.scheduler.states() == {"decode-0": "ready"}


class FakeContext:
    """A stream whose peer has said hello; ``write`` does what the test says."""

    def __init__(self, hello: cluster_pb2.Hello, *, writes: list[str]) -> None:
        self._messages = [cluster_pb2.NodeMessage(hello=hello)]
        self._writes = writes
        self.hangs = asyncio.Event()

    async def read(self) -> cluster_pb2.NodeMessage:
        if self._messages:
            return self._messages.pop()
        await asyncio.Event().wait()
        raise AssertionError

    async def write(self, message: cluster_pb2.SchedulerMessage) -> None:
        match self._writes.pop(0) if self._writes else "hang":
            case "break":
                raise grpc.aio.UsageError("the peer is gone")
            case "hang":
                self.hangs.set()
                await asyncio.Event().wait()

    async def abort(self, code: grpc.StatusCode, details: str) -> None:
        raise grpc.aio.AbortError(details)


async def test_a_node_that_vanishes_before_its_welcome_is_lost() -> None:
    async with grpc_cluster() as cluster:
        driver = cluster.scheduler.driver
        context = FakeContext(cluster.add("decode-0").service.hello(), writes=["break"])
        with pytest.raises(grpc.aio.UsageError):
            await ClusterServicer(driver).Attach(None, context)
        assert cluster.scheduler.states() == {"decode-0": "lost"}


async def test_a_node_that_does_not_read_is_lost_at_the_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outbox, "OUTBOX_LENGTH_MAX", 5)
    async with grpc_cluster() as cluster:
        driver = cluster.scheduler.driver
        context = FakeContext(cluster.add("decode-0").service.hello(), writes=["ok", "hang"])
        stream = asyncio.create_task(ClusterServicer(driver).Attach(None, context))
        await cluster.scheduler.until(lambda: bool(driver._sessions))
        session: NodeSession = driver._sessions[NodeName("decode-0")]
        session.cancel("first")  # the writer hangs on this one
        await asyncio.wait_for(context.hangs.wait(), timeout=WAIT_S)
        for index in range(6):
            session.cancel(f"r{index}")
        await asyncio.wait_for(asyncio.wait([stream]), timeout=WAIT_S)
        assert cluster.scheduler.states() == {"decode-0": "lost"}
        assert "5 messages" in driver.detached[0][1]
