"""Requests through the whole control path: driver, streams, nodes' jobs; scripted engines."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from pdd.control.convert import frame_to_proto
from pdd.core.errors import InvalidRequest, NodeUnavailable, RequestFailed
from pdd.core.frames import FinishReason, Frame
from pdd.core.identity import NodeName, RequestId
from pdd.core.requests import Ended, GenerateRequest, Path, Plan
from pdd.engine.port import EngineFailed, JobFacts
from pdd.rpc.v1 import cluster_pb2
from tests import sinks
from tests.builders import make_finish, make_frame, make_request
from tests.sinks import Collected, Delta, GenerationEvent, Planned
from tests.unit.daemon.fake_engine import Run, ids_of, out
from tests.unit.daemon.grpc_cluster import WAIT_S, Client, GrpcCluster, Node, grpc_cluster
from tests.waiting import until


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with capture_logs():
        yield


def text_request(request_id: str = "r1", **fields: Any) -> GenerateRequest:
    return make_request(request_id, prompt_token_ids=ids_of("prompt"), **fields)


def generate(cluster: GrpcCluster, request: GenerateRequest) -> Client:
    return Client(sinks.generate(cluster.scheduler.driver, request))


def tokens_of(events: list[GenerationEvent]) -> list[int]:
    return [
        token for event in events if isinstance(event, Delta) for token in event.frame.token_ids
    ]


def text_of(events: list[GenerationEvent]) -> str:
    return "".join(event.frame.text for event in events if isinstance(event, Delta))


async def closed(run: Run) -> None:
    await asyncio.wait_for(run.ended.wait(), timeout=WAIT_S)


async def token_given(run: Run) -> None:
    await until(lambda: run.first_tokens is not None, "the first token to be given")


async def prefilled(prefill: Node, decode: Node, key: str = "r1/0") -> Run:
    """The first token is there and the decode node may go on; its run."""
    (await prefill.engine.job(key)).feed(out("a", finish=FinishReason.LENGTH))
    run = await decode.engine.job(key)
    await token_given(run)
    return run


async def test_a_disaggregated_request_from_plan_to_usage() -> None:
    async with grpc_cluster() as cluster:
        prefill, decode = await cluster.join("prefill-0"), await cluster.join("decode-0")
        client = generate(cluster, text_request())
        prefill.engine.job_facts["r1/0"] = JobFacts(cached_tokens=2, computed_prompt_tokens=4)
        run = await prefilled(prefill, decode)
        assert run.job.source is not None
        assert run.job.source.name == "prefill-0"
        assert run.job.source.control_address == "prefill-0:1"
        assert run.job.source.ucx_addresses == (b"ucx",)
        assert run.first_tokens == {0: 0}
        decode.engine.ready("r1/0", transferred_bytes=4096, computed_prompt_tokens=1)
        run.feed(out("b"), out("cd"), out("e", eos=True))
        events = await client.all()

        assert isinstance(events[0], Planned)
        assert events[0].plan.path is Path.DISAGGREGATED
        assert text_of(events) == "abcde"
        assert tokens_of(events) == [0, 1, 2, 3, 4, 26]
        ended = events[-1]
        assert isinstance(ended, Ended)
        assert ended.finish.reason is FinishReason.STOP
        assert ended.usage.prompt_tokens == 6
        assert ended.usage.completion_tokens == 6
        assert ended.usage.cached_tokens == 2
        assert ended.usage.transferred_bytes == 4096
        assert ended.usage.decode_computed_prompt_tokens == 1
        assert not cluster.scheduler.core.requests
        assert cluster.scheduler.driver.running_request_count == 0


async def test_the_client_has_the_first_token_before_the_decode_node_is_ready() -> None:
    async with grpc_cluster() as cluster:
        prefill, decode = await cluster.join("prefill-0"), await cluster.join("decode-0")
        client = generate(cluster, text_request())
        await prefilled(prefill, decode)
        assert text_of(await client.seen(2)) == "a"
        await client.leave()


async def test_the_prefill_node_forgets_a_job_when_the_decode_node_is_ready() -> None:
    async with grpc_cluster() as cluster:
        prefill, decode = await cluster.join("prefill-0"), await cluster.join("decode-0")
        client = generate(cluster, text_request())
        run = await prefilled(prefill, decode)
        assert prefill.jobs.handed_over_count == 1
        decode.engine.ready("r1/0", transferred_bytes=4096)
        await until(lambda: not prefill.jobs.handed_over_count, "the job to be forgotten")
        prefill.engine.dropped.clear()
        await prefill.kill()
        assert prefill.engine.dropped == {}, "nothing was left to give back"
        run.feed(out("b", eos=True))
        assert text_of(await client.all()) == "ab"


async def test_everything_that_was_asked_for_reaches_the_engines() -> None:
    async with grpc_cluster() as cluster:
        prefill, decode = await cluster.join("prefill-0"), await cluster.join("decode-0")
        request = text_request(
            temperature=0.5,
            seed=2**63 - 1,
            top_k=5,
            stop=("zz",),
            logit_bias=((3, 1.5),),
            allowed_token_ids=(1, 2),
            logprobs=0,
            skip_special_tokens=False,
        )
        client = generate(cluster, request)
        for node in (prefill, decode):
            job = (await node.engine.job("r1/0")).job
            assert job.sampling == request.sampling
            assert job.prompt_token_ids == request.prompt_token_ids
        await client.leave()


class TestAPrefillNodeDies:
    async def test_before_the_first_token_another_computes_the_prompt(self) -> None:
        async with grpc_cluster() as cluster:
            first, decode = await cluster.join("prefill-0"), await cluster.join("decode-0")
            client = generate(cluster, text_request())
            await first.engine.job("r1/0")
            second = await cluster.join("prefill-1")
            waiting = await decode.engine.job("r1/0")
            await first.kill()
            run = await prefilled(second, decode, "r1/1")
            assert waiting.closed
            assert run.job.source is not None
            assert run.job.source.name == "prefill-1"
            decode.engine.ready("r1/1")
            run.feed(out("b", eos=True))
            assert text_of(await client.all()) == "ab"

    async def test_after_the_first_token_the_decode_node_computes_the_prompt(self) -> None:
        async with grpc_cluster() as cluster:
            prefill, decode = await cluster.join("prefill-0"), await cluster.join("decode-0")
            client = generate(cluster, text_request())
            await prefilled(prefill, decode)
            await client.seen(2)
            await prefill.kill()
            run = await decode.engine.job("r1/1")
            assert run.job.choices[0].emitted_token_ids == ids_of("a")
            run.feed(out("b", eos=True))
            events = await client.all()
            assert text_of(events) == "ab"
            assert tokens_of(events) == [0, 1, 26]
            assert isinstance(events[-1], Ended)
            assert events[-1].usage.path is Path.LOCAL


class TestADecodeNodeDies:
    async def test_mid_stream_another_goes_on_and_each_token_is_seen_once(self) -> None:
        async with grpc_cluster() as cluster:
            prefill, decode = await cluster.join("prefill-0"), await cluster.join("decode-0")
            client = generate(cluster, text_request())
            run = await prefilled(prefill, decode)
            decode.engine.ready("r1/0")
            run.feed(out("b"), out("c"))
            await client.seen(4)
            other = await cluster.join("decode-1")
            await decode.kill()
            run = await other.engine.job("r1/1")
            assert run.job.choices[0].emitted_token_ids == ids_of("abc")
            run.feed(out("d"), out("e", eos=True))
            events = await client.all()
            assert text_of(events) == "abcde"
            assert tokens_of(events) == [0, 1, 2, 3, 4, 26]
            assert sum(isinstance(event, Planned) for event in events) == 1

    async def test_and_comes_back_the_request_goes_on_there(self) -> None:
        async with grpc_cluster() as cluster:
            decode = await cluster.join("decode-0")
            client = generate(cluster, text_request())
            (await decode.engine.job("r1/0")).feed(out("ab"))
            await client.seen(2)
            await decode.kill()
            again = await cluster.join("decode-0", boot_epoch=2)
            run = await again.engine.job("r1/1")
            assert run.job.choices[0].emitted_token_ids == ids_of("ab")
            run.feed(out("c", eos=True))
            assert text_of(await client.all()) == "abc"

    async def test_output_that_looks_back_is_ended_with_an_error(self) -> None:
        async with grpc_cluster() as cluster:
            decode = await cluster.join("decode-0")
            client = generate(cluster, text_request(presence_penalty=0.5))
            await decode.engine.job("r1/0")  # before there is another one
            await cluster.join("decode-1")
            (await decode.engine.job("r1/0")).feed(out("a"))
            await client.seen(2)
            await decode.kill()
            with pytest.raises(RequestFailed, match="presence_penalty"):
                await client.all()

    async def test_its_engine_alone_another_goes_on(self) -> None:
        async with grpc_cluster() as cluster:
            decode = await cluster.join("decode-0")
            client = generate(cluster, text_request())
            await decode.engine.job("r1/0")  # before there is another one
            other = await cluster.join("decode-1")
            run = await decode.engine.job("r1/0")
            run.feed(out("a"), EngineFailed("the engine died"))
            run = await other.engine.job("r1/1")
            assert run.job.choices[0].emitted_token_ids == ids_of("a")
            run.feed(out("b", eos=True))
            assert text_of(await client.all()) == "ab"


def say(cluster: GrpcCluster, node: str, message: cluster_pb2.NodeMessage) -> None:
    """What a node of another make might say."""
    driver = cluster.scheduler.driver
    driver.node_said(driver._sessions[NodeName(node)], message)


def say_frame(
    cluster: GrpcCluster, node: str, frame: Frame, *, generation: int = 0, reason: str = ""
) -> None:
    message = frame_to_proto(frame, generation=generation)
    if reason:
        message.finish.reason = reason
    say(
        cluster,
        node,
        cluster_pb2.NodeMessage(frames=cluster_pb2.FrameBatch(frames=[message])),
    )


class TestFramesOutOfPlace:
    @pytest.mark.parametrize(
        "frame",
        [
            make_frame(ids_of("ab"), text="ab", finish=make_finish(FinishReason.HANDOVER)),
            make_frame((), finish=make_finish(FinishReason.HANDOVER)),
            make_frame(ids_of("a"), text="a"),
            make_frame(ids_of("a"), text="a", finish=make_finish(FinishReason.ABORT)),
        ],
        ids=["two tokens", "no token", "no end", "given up"],
    )
    async def test_of_a_prefill_node_nothing_is_shown_and_the_prompt_starts_anew(
        self, frame: Frame
    ) -> None:
        async with grpc_cluster() as cluster:
            prefill, decode = await cluster.join("prefill-0"), await cluster.join("decode-0")
            client = generate(cluster, text_request())
            await prefill.engine.job("r1/0")
            say_frame(cluster, "prefill-0", frame)
            run = await decode.engine.job("r1/1")
            assert run.job.choices[0].emitted_token_ids == ()
            run.feed(out("x", eos=True))
            assert text_of(await client.all()) == "x"

    async def test_of_a_decode_node_before_the_first_token_nothing_is_shown(self) -> None:
        async with grpc_cluster() as cluster:
            prefill, decode = await cluster.join("prefill-0"), await cluster.join("decode-0")
            client = generate(cluster, text_request())
            await decode.engine.job("r1/0")  # before there is another one
            other = await cluster.join("decode-1")
            await decode.engine.job("r1/0")
            say_frame(cluster, "decode-0", make_frame(ids_of("z"), text="z"))
            run = await prefilled(prefill, other, "r1/1")
            other.engine.ready("r1/1")
            run.feed(out("b", eos=True))
            assert text_of(await client.all()) == "ab"

    async def test_of_a_node_that_has_no_part_in_it_changes_nothing(self) -> None:
        async with grpc_cluster() as cluster:
            decode = await cluster.join("decode-0")
            client = generate(cluster, text_request())
            await decode.engine.job("r1/0")  # before there is another one
            await cluster.join("decode-1")
            run = await decode.engine.job("r1/0")
            say_frame(cluster, "decode-1", make_frame(ids_of("z"), text="z"))
            run.feed(out("a", eos=True))
            assert text_of(await client.all()) == "a"

    async def test_a_handover_to_nobody_goes_on_elsewhere_after_what_was_shown(self) -> None:
        async with grpc_cluster() as cluster:
            decode = await cluster.join("decode-0")
            client = generate(cluster, text_request())
            await decode.engine.job("r1/0")  # before there is another one
            other = await cluster.join("decode-1")
            (await decode.engine.job("r1/0")).feed(out("a"))
            await client.seen(2)
            handover = make_frame((), finish=make_finish(FinishReason.HANDOVER))
            say_frame(cluster, "decode-0", handover)
            run = await other.engine.job("r1/1")
            assert run.job.choices[0].emitted_token_ids == ids_of("a")
            run.feed(out("b", eos=True))
            assert text_of(await client.all()) == "ab"


class TestWordsOfANewerNode:
    async def test_an_unknown_finish_reason_is_tried_elsewhere_and_ends_no_stream(self) -> None:
        async with grpc_cluster() as cluster:
            decode = await cluster.join("decode-0")
            client = generate(cluster, text_request())
            await decode.engine.job("r1/0")  # before there is another one
            other = await cluster.join("decode-1")
            (await decode.engine.job("r1/0")).feed(out("a"))
            await client.seen(2)
            odd = make_frame(ids_of("b"), first_token_index=1, finish=make_finish())
            say_frame(cluster, "decode-0", odd, reason="speculated")
            run = await other.engine.job("r1/1")
            assert run.job.choices[0].emitted_token_ids == ids_of("a")
            run.feed(out("b", eos=True))
            assert text_of(await client.all()) == "ab"
            assert set(cluster.scheduler.states().values()) == {"ready"}

    async def test_an_unknown_kind_of_failure_is_tried_elsewhere(self) -> None:
        async with grpc_cluster() as cluster:
            decode = await cluster.join("decode-0")
            client = generate(cluster, text_request())
            await decode.engine.job("r1/0")  # before there is another one
            other = await cluster.join("decode-1")
            await decode.engine.job("r1/0")
            failed = cluster_pb2.NodeRequestFailed(request_id="r1", kind="tired", message="no")
            say(cluster, "decode-0", cluster_pb2.NodeMessage(failed=failed))
            (await other.engine.job("r1/1")).feed(out("a", eos=True))
            assert text_of(await client.all()) == "a"


async def test_a_failed_load_is_told_as_the_path_that_was_really_taken() -> None:
    async with grpc_cluster() as cluster:
        prefill, decode = await cluster.join("prefill-0"), await cluster.join("decode-0")
        client = generate(cluster, text_request())
        run = await prefilled(prefill, decode)
        decode.engine.ready("r1/0", computed_prompt_tokens=6, load_failed_reason="lost")
        run.feed(out("b", eos=True))
        planned, *_, ended = await client.all()
        assert isinstance(planned, Planned)
        assert planned.plan.path is Path.DISAGGREGATED
        assert isinstance(ended, Ended)
        assert ended.usage.path is Path.LOCAL
        assert ended.usage.decode_computed_prompt_tokens == 6


class TestAClientLeaves:
    async def test_while_the_prompt_is_computed(self) -> None:
        async with grpc_cluster() as cluster:
            prefill, decode = await cluster.join("prefill-0"), await cluster.join("decode-0")
            client = generate(cluster, text_request())
            runs = [await node.engine.job("r1/0") for node in (prefill, decode)]
            await client.leave()
            for run in runs:
                await closed(run)
            assert not cluster.scheduler.core.requests

    async def test_during_the_transfer(self) -> None:
        async with grpc_cluster() as cluster:
            prefill, decode = await cluster.join("prefill-0"), await cluster.join("decode-0")
            client = generate(cluster, text_request())
            run = await prefilled(prefill, decode)
            await client.leave()
            await closed(run)
            await until(lambda: "r1/0" in prefill.engine.dropped, "the source to be dropped")

    @pytest.mark.parametrize("when", ["planned", "tokens"])
    async def test_in_the_middle_of_being_told_its_nodes_are_freed(self, when: str) -> None:
        """The front door may cancel from within a call: a client had no room for a token."""
        async with grpc_cluster() as cluster:
            decode = await cluster.join("decode-0")
            driver = cluster.scheduler.driver

            class Leaving(Collected):
                def planned(self, plan: Plan) -> None:
                    super().planned(plan)
                    if when == "planned":
                        driver.cancel(RequestId("r1"))

                def tokens(self, frame: Frame) -> None:
                    super().tokens(frame)
                    driver.cancel(RequestId("r1"))

            sink = Leaving()
            driver.start(text_request(), sink)
            if when == "tokens":
                run = await decode.engine.job("r1/0")
                run.feed(out("a"), out("b"))
                await closed(run)
            assert not cluster.scheduler.core.requests
            assert driver.running_request_count == 0
            assert not sink.over
            assert len(sink.events) == (1 if when == "planned" else 2)
            # The core is whole: the next request is served.
            client = generate(cluster, text_request("r2"))
            (await decode.engine.job("r2/0")).feed(out("a", eos=True))
            assert text_of(await client.all()) == "a"


async def test_a_long_output_is_given_more_room_while_it_runs() -> None:
    """Tokens that simply go on are not checked one by one; this is the mark they must not pass."""
    async with grpc_cluster() as cluster:
        decode = await cluster.join("decode-0")
        client = generate(cluster, text_request(max_tokens=1200))
        run = await decode.engine.job("r1/0")
        request = cluster.scheduler.core.requests[RequestId("r1")]
        granted = request.granted_tokens
        assert granted < 1200, "the test is about leases that grow"
        for count in range(1, granted + 1):
            run.feed(out("a"))
            await client.seen(count + 1)  # the plan, and so many tokens
        assert request.granted_tokens > granted
        await client.leave()


class TestErrors:
    async def test_no_node_is_a_refusal_before_the_plan(self) -> None:
        async with grpc_cluster() as cluster:
            client = generate(cluster, text_request())
            with pytest.raises(NodeUnavailable, match="no decode node"):
                await client.all()
            assert client.events == []

    async def test_what_the_engine_refuses_is_the_clients_fault(self) -> None:
        async with grpc_cluster() as cluster:
            decode = await cluster.join("decode-0")
            client = generate(cluster, text_request())
            (await decode.engine.job("r1/0")).feed(InvalidRequest("min_p is odd"))
            with pytest.raises(InvalidRequest, match="min_p is odd"):
                await client.all()

    async def test_a_bug_in_a_decision_ends_the_daemon(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with grpc_cluster() as cluster:
            decode = await cluster.join("decode-0")
            client = generate(cluster, text_request())
            run = await decode.engine.job("r1/0")
            crashed = asyncio.create_task(cluster.scheduler.driver.wait_crashed())

            def broken(event: Any, *, now_s: float) -> list[Any]:
                raise AssertionError("an invariant does not hold")

            monkeypatch.setattr(cluster.scheduler.core, "step", broken)
            run.feed(out("a"))
            with pytest.raises(AssertionError, match="invariant"):
                await asyncio.wait_for(crashed, timeout=WAIT_S)
            monkeypatch.undo()
            await client.leave()

    async def test_a_prefill_node_that_hands_over_nothing_is_not_believed(self) -> None:
        async with grpc_cluster() as cluster:
            prefill, decode = await cluster.join("prefill-0"), await cluster.join("decode-0")
            client = generate(cluster, text_request())
            (await prefill.engine.job("r1/0")).feed(out("", finish=FinishReason.LENGTH))
            run = await decode.engine.job("r1/1")
            run.feed(out("a", eos=True))
            assert text_of(await client.all()) == "a"
            assert cluster.scheduler.states() == {"prefill-0": "ready", "decode-0": "ready"}
