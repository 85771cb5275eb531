"""A scheduler is lost and its next life goes on with what the nodes hold: nothing lost or doubled.

Both schedulers, the nodes and the front door's runs are real and talk over gRPC; engines are
scripted.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from pdd.control.cluster_server import NodeSession
from pdd.core.errors import RequestGone
from pdd.core.frames import FinishReason, token_frame
from pdd.core.identity import NodeName, RequestId
from pdd.core.requests import Ended, Path
from pdd.daemon.held_jobs import HoldLimits
from pdd.daemon.running_job import JobReports
from pdd.engine.port import JobFacts
from pdd.gateway.job import Job
from pdd.gateway.run import RunName
from pdd.gateway.runs import Runs
from pdd.gateway.takeover import with_note
from pdd.rpc.v1 import cluster_pb2
from pdd.scheduler.events import Tick
from tests.builders import make_identity, make_request
from tests.sinks import Collected
from tests.unit.daemon.fake_engine import Run, ids_of, out
from tests.unit.daemon.grpc_cluster import WAIT_S, GrpcCluster, Node, Scheduler, grpc_cluster
from tests.unit.daemon.test_driver_over_grpc import prefilled, text_of, tokens_of
from tests.waiting import until

R1 = RequestId("r1")
NAME = RunName(path="/v1/completions", tenant="default", key="k1", digest=b"d")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with capture_logs():
        yield


class Home:
    """One life of a scheduler, with the part of its front door that outlives clients."""

    def __init__(self, scheduler: Scheduler, **changes: Any) -> None:
        self.scheduler = scheduler
        loop = asyncio.get_running_loop()
        options = {"age_s": 60.0, "linger_s": 60.0, "wait_s": WAIT_S, **changes}
        self.runs = Runs(inference=scheduler.driver, clock=loop.time, **options)
        scheduler.driver.take_over_with(self.runs.adopt)

    def ask(self, *, name: RunName = NAME, **sampling: Any) -> Collected:
        """Send r1, with a client that stays."""
        job = with_note(job_of(**sampling), name)

        async def prepare() -> Job:
            return job

        sink = Collected()
        self.runs.join(name, R1, prepare=prepare).listen(sink)
        return sink

    async def resume(self, request_id: RequestId = R1) -> Collected:
        """A client that comes back and wants to hear all of it."""
        await self.runs.appear(request_id, tenant="default")
        sink = Collected()
        self.runs.find(request_id, tenant="default").listen(sink)
        return sink


def job_of(**sampling: Any) -> Job:
    request = make_request(
        "r1", prompt_token_ids=ids_of("prompt"), **{"max_tokens": 16, **sampling}
    )
    return Job(
        request=request,
        stream=True,
        usage_chunk=True,
        running_usage=False,
        return_token_ids=False,
        tokens_as_ids=False,
        created_s=17,
    )


@asynccontextmanager
async def homes(**settings: Any) -> AsyncIterator[tuple[GrpcCluster, Home]]:
    async with grpc_cluster(**settings) as cluster:
        yield cluster, Home(cluster.scheduler)


async def next_life(
    cluster: GrpcCluster, *, read_silence_s: float = WAIT_S, **changes: Any
) -> Home:
    """The scheduler dies and is started again at the same address."""
    former = cluster.scheduler
    await former.stop()
    for node in cluster.nodes:
        await heard_nobody(node)
    scheduler = Scheduler()
    scheduler.driver._takeovers._read_silence_s = read_silence_s
    home = Home(scheduler, **changes)
    await scheduler.start(former.address)
    cluster.scheduler = scheduler
    return home


async def heard_nobody(node: Node) -> None:
    """The node has noticed that its scheduler is gone."""
    await until(lambda: not node.service._reports, "its scheduler to be gone")


async def told(sink: Collected, count: int) -> None:
    async with asyncio.timeout(WAIT_S):
        while len(tokens_of(list(sink.events))) < count:
            sink.news.clear()
            await sink.news.wait()


async def over(sink: Collected) -> Ended:
    async with asyncio.timeout(WAIT_S):
        while not sink.over:
            sink.news.clear()
            await sink.news.wait()
    assert sink.error is None, sink.error
    end = sink.events[-1]
    assert isinstance(end, Ended)
    return end


async def decoding(cluster: GrpcCluster, home: Home, **sampling: Any) -> tuple[Node, Run]:
    """r1 has its first token, and its decode node goes on."""
    prefill, decode = await cluster.join("prefill-0"), await cluster.join("decode-0")
    sink = home.ask(**sampling)
    prefill.engine.job_facts["r1/0"] = JobFacts(cached_tokens=2, computed_prompt_tokens=4)
    run = await prefilled(prefill, decode)
    decode.engine.ready("r1/0", transferred_bytes=4096)
    run.feed(out("b"))
    await told(sink, 2)
    return decode, run


async def test_the_next_scheduler_tells_all_of_it_and_goes_on() -> None:
    async with homes() as (cluster, home):
        decode, run = await decoding(cluster, home)
        home = await next_life(cluster)
        run.feed(out("c"))  # while there is nobody
        sink = await home.resume()
        run.feed(out("d"), out("e", eos=True))
        end = await over(sink)
        events = list(sink.events)
        assert text_of(events) == "abcde"
        assert tokens_of(events)[:5] == list(ids_of("abcde"))
        usage = end.usage
        assert (usage.completion_tokens, usage.prompt_tokens, usage.cached_tokens) == (6, 6, 2)
        assert (usage.path, usage.prefill_node, usage.decode_node) == (
            Path.DISAGGREGATED,
            "prefill-0",
            "decode-0",
        )
        assert usage.transferred_bytes == 4096
        assert list(decode.engine.runs) == ["r1/0"], "it never ran twice"
        cluster.scheduler.core.check()


async def test_the_same_key_joins_what_a_node_holds() -> None:
    async with homes() as (cluster, home):
        _, run = await decoding(cluster, home)
        home = await next_life(cluster)

        async def never() -> Job:
            raise AssertionError("it is known")

        await home.runs.settle(NAME)
        sink = Collected()
        again = home.runs.join(NAME, RequestId("r2"), prepare=never)
        assert again.request_id == "r1"
        assert (await again.job()).request.prompt_token_ids == ids_of("prompt")
        again.listen(sink)
        run.feed(out("c", eos=True))
        await over(sink)
        assert text_of(list(sink.events)) == "abc"


async def test_what_has_ended_just_before_or_while_nobody_was_there_can_be_had() -> None:
    for before in (True, False):
        async with homes() as (cluster, home):
            decode, run = await decoding(cluster, home)
            if before:
                first = await home.resume()
                run.feed(out("c", eos=True))
                await over(first)
            home = await next_life(cluster)
            if not before:
                run.feed(out("c", eos=True))
                await asyncio.wait_for(run.ended.wait(), timeout=WAIT_S)
            sink = await home.resume()
            end = await over(sink)
            assert text_of(list(sink.events)) == "abc"
            assert end.finish.reason is FinishReason.STOP
            assert (end.usage.completion_tokens, end.usage.cached_tokens) == (4, 2)
            assert cluster.scheduler.core.requests == {}
            assert decode.jobs.count == 0


async def test_what_was_still_computing_its_prompt_is_planned_anew() -> None:
    async with homes() as (cluster, home):
        prefill, decode = await cluster.join("prefill-0"), await cluster.join("decode-0")
        home.ask()
        await prefill.engine.job("r1/0")
        await decode.engine.job("r1/0")
        home = await next_life(cluster)
        sink = await home.resume()
        run = await prefilled(prefill, decode, "r1/1")
        decode.engine.ready("r1/1")
        run.feed(out("b", eos=True))
        await over(sink)
        assert text_of(list(sink.events)) == "ab"


async def test_blocks_that_are_on_their_way_are_not_dropped_with_the_scheduler() -> None:
    async with homes() as (cluster, home):
        prefill, decode = await cluster.join("prefill-0"), await cluster.join("decode-0")
        home.ask()
        run = await prefilled(prefill, decode)
        home = await next_life(cluster)
        assert not prefill.engine.dropped
        sink = await home.resume()
        await told(sink, 1)
        decode.engine.ready("r1/0")
        run.feed(out("b", eos=True))
        await over(sink)
        assert text_of(list(sink.events)) == "ab"


async def test_stop_strings_and_held_text_come_out_as_if_nothing_had_happened() -> None:
    async with homes() as (cluster, home):
        _, run = await decoding(cluster, home, stop=("bcx", "de"))
        home = await next_life(cluster)
        sink = await home.resume()
        await told(sink, 2)
        assert text_of(list(sink.events)) == "", "ab could begin a stop string"
        run.feed(out("c"), out("d"), out("e"))
        end = await over(sink)
        assert text_of(list(sink.events)) == "abc"
        assert end.finish.stop_reason == "de"


async def test_nobody_comes_back_and_the_blocks_do() -> None:
    async with homes() as (cluster, home):
        decode, run = await decoding(cluster, home)
        home = await next_life(cluster, linger_s=0.01)
        await asyncio.wait_for(run.ended.wait(), timeout=WAIT_S)
        await decode.jobs.drained()
        assert (decode.jobs.count, decode.jobs.held_count) == (0, 0)
        with pytest.raises(RequestGone, match="no client came back"):
            await home.resume()
        cluster.scheduler.core.check()
        assert cluster.scheduler.core.requests == {}


async def test_a_scheduler_whose_stream_broke_plans_its_own_requests_anew() -> None:
    async with homes() as (cluster, home):
        decode, run = await decoding(cluster, home)
        session = cluster.scheduler.driver._sessions[decode.identity.name]
        sink = await home.resume()
        session.close("a test cuts it")
        again = await decode.engine.job("r1/1")
        assert again.job.choices[0].emitted_token_ids == ids_of("ab")
        assert run.closed, "the former attempt is over"
        again.feed(out("c", eos=True))
        await over(sink)
        assert text_of(list(sink.events)) == "abc"


async def test_the_second_loss_is_survived_like_the_first() -> None:
    async with homes() as (cluster, home):
        _, run = await decoding(cluster, home)
        for letter in "cd":
            home = await next_life(cluster)
            sink = await home.resume()
            run.feed(out(letter))
            await told(sink, 2 + "cd".index(letter) + 1)
        run.feed(out("e", eos=True))
        await over(sink)
        assert text_of(list(sink.events)) == "abcde"


async def test_a_request_that_cannot_be_continued_ends_with_its_scheduler() -> None:
    async with homes() as (cluster, _):
        prefill, decode = await cluster.join("prefill-0"), await cluster.join("decode-0")
        sink = Collected()
        cluster.scheduler.driver.start(job_of().request, sink)  # no note
        run = await prefilled(prefill, decode)
        await next_life(cluster)
        await asyncio.wait_for(run.ended.wait(), timeout=WAIT_S)
        assert decode.jobs.held_count == 0


async def test_a_note_of_another_version_ends_the_request_and_harms_nobody() -> None:
    async with homes() as (cluster, home):
        prefill, decode = await cluster.join("prefill-0"), await cluster.join("decode-0")
        request = replace(job_of().request, resume=b"\x81\xa7version\x63")
        cluster.scheduler.driver.start(request, Collected())
        run = await prefilled(prefill, decode)
        home = await next_life(cluster)
        await asyncio.wait_for(run.ended.wait(), timeout=WAIT_S)
        await cluster.scheduler.until(lambda: len(cluster.scheduler.states()) == 2)
        assert len(home.runs) == 0


async def test_a_job_stopped_at_its_bound_goes_on_where_it_stopped() -> None:
    async with homes() as (cluster, home):
        decode, run = await decoding(cluster, home)
        decode.jobs._keeper._held._limits = HoldLimits(sequence_tokens_max=1)
        await cluster.scheduler.stop()
        await heard_nobody(decode)
        run.feed(out("c"), out("d"), out("e"))
        await asyncio.wait_for(run.ended.wait(), timeout=WAIT_S)
        home = await next_life(cluster)
        sink = await home.resume()
        again = await decode.engine.job("r1/1")
        assert again.job.choices[0].emitted_token_ids == ids_of("abcd")
        again.feed(out("e", eos=True))
        await over(sink)
        assert text_of(list(sink.events)) == "abcde"


async def test_a_node_that_falls_silent_while_it_is_read_costs_no_request() -> None:
    async with homes() as (cluster, home):
        decode, run = await decoding(cluster, home)
        await cluster.scheduler.stop()
        await heard_nobody(decode)
        run.feed(out("c", eos=True))
        await asyncio.wait_for(run.ended.wait(), timeout=WAIT_S)
        claim = decode.jobs.claim
        decode.jobs.claim = lambda *_, **__: None  # type: ignore[method-assign]
        home = await next_life(cluster)
        sink = await home.resume()
        decode.jobs.claim = claim  # type: ignore[method-assign]
        cluster.scheduler.now_s += 60.0
        cluster.scheduler.driver._step(Tick())
        again = await prefilled(cluster.nodes[0], decode, "r1/1")
        decode.engine.ready("r1/1")
        again.feed(out("b"), out("c", eos=True))
        await over(sink)
        assert text_of(list(sink.events)) == "abc"


async def test_a_node_that_lives_and_never_tells_what_it_was_asked_for_costs_no_request() -> None:
    async with homes() as (cluster, home):
        decode, run = await decoding(cluster, home)
        await cluster.scheduler.stop()
        await heard_nobody(decode)
        run.feed(out("c", eos=True))
        await asyncio.wait_for(run.ended.wait(), timeout=WAIT_S)
        claim = decode.jobs.claim
        decode.jobs.claim = lambda *_, **__: None  # type: ignore[method-assign]
        home = await next_life(cluster, read_silence_s=0.05)
        sink = await home.resume()
        again = await prefilled(cluster.nodes[0], decode, "r1/1")
        decode.jobs.claim = claim  # type: ignore[method-assign]
        decode.engine.ready("r1/1")
        again.feed(out("b"), out("c", eos=True))
        await over(sink)
        assert text_of(list(sink.events)) == "abc"


async def test_what_a_node_tells_with_a_gap_is_computed_anew_from_there() -> None:
    async with homes() as (cluster, home):
        decode, run = await decoding(cluster, home)
        await cluster.scheduler.stop()
        await heard_nobody(decode)
        run.feed(out("c", eos=True))
        await asyncio.wait_for(run.ended.wait(), timeout=WAIT_S)

        def tell_with_a_gap(
            request_id: RequestId, generation: int, reports: JobReports, **_: object
        ) -> None:
            for index, text in ((0, "a"), (2, "c")):
                reports.frame(
                    token_frame(request_id, index, ids_of(text)[0], index, text), generation
                )

        decode.jobs.claim = tell_with_a_gap  # type: ignore[method-assign,assignment]
        home = await next_life(cluster)
        sink = await home.resume()
        again = await decode.engine.job("r1/1")
        assert again.job.choices[0].emitted_token_ids == ids_of("a")
        again.feed(out("b"), out("c", eos=True))
        await over(sink)
        assert text_of(list(sink.events)) == "abc"


async def test_a_failure_that_another_node_or_attempt_tells_of_ends_no_reading() -> None:
    async with homes() as (cluster, home):
        decode, run = await decoding(cluster, home)
        await cluster.scheduler.stop()
        await heard_nobody(decode)
        run.feed(out("c", eos=True))
        await asyncio.wait_for(run.ended.wait(), timeout=WAIT_S)
        claims: list[tuple[Any, ...]] = []
        claim = decode.jobs.claim
        decode.jobs.claim = lambda *args, **_: claims.append(args)  # type: ignore[method-assign]
        home = await next_life(cluster)
        sink = await home.resume()
        driver = cluster.scheduler.driver
        await cluster.scheduler.until(lambda: len(driver._sessions) == 2)
        for name, generation in (("prefill-0", 0), ("decode-0", 7)):
            failed = cluster_pb2.NodeRequestFailed(
                request_id=R1, generation=generation, kind="stopped"
            )
            session = driver._sessions[NodeName(name)]
            driver.node_said(session, cluster_pb2.NodeMessage(failed=failed))
        async with asyncio.timeout(WAIT_S):
            while not claims:  # noqa: ASYNC110 - a patched method has no event
                await asyncio.sleep(0.001)
        claim(*claims[0], first_token_index=0)
        await over(sink)
        assert text_of(list(sink.events)) == "abc"
        assert list(decode.engine.runs) == ["r1/0"], "it was read, not computed anew"


async def test_a_node_that_never_tells_what_it_holds_joins_without() -> None:
    async with homes() as (cluster, home):
        decode, _ = await decoding(cluster, home)
        await cluster.scheduler.stop()
        await heard_nobody(decode)
        decode.service._offer = lambda _: None  # type: ignore[method-assign]
        scheduler = Scheduler()
        scheduler.driver._takeovers._tell_within_s = 0.05
        await scheduler.start(cluster.scheduler.address)
        cluster.scheduler = scheduler
        await scheduler.until(lambda: len(scheduler.driver._sessions) == 2)
        async with asyncio.timeout(WAIT_S):
            while "decode-0" not in scheduler.states():  # noqa: ASYNC110 - it is a timer
                await asyncio.sleep(0.001)
        late = cluster_pb2.HeldRequests(complete=True)
        session = scheduler.driver._sessions[decode.identity.name]
        scheduler.driver.node_said(session, cluster_pb2.NodeMessage(held=late))
        assert scheduler.states() == {"prefill-0": "ready", "decode-0": "ready"}
        scheduler.core.check()


async def test_what_a_node_tells_beyond_the_bound_is_cancelled_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def one(name: str) -> cluster_pb2.HeldRequest:
        return cluster_pb2.HeldRequest(submit=cluster_pb2.Submit(request_id=name))

    monkeypatch.setattr("pdd.daemon.takeovers.TOLD_SIZE_BYTES_MAX", 2 * one("r1").ByteSize())
    takeovers = Scheduler().driver._takeovers
    session = NodeSession(make_identity("decode-0"), cluster_pb2.Hello())
    takeovers.expect(session)
    told = cluster_pb2.HeldRequests(requests=[one("r1"), one("r2"), one("r3")], complete=True)
    assert takeovers.tell(session, told)
    (message,) = await session.outbox.take()
    assert list(message.cancels.request_ids) == ["r3"]
    assert [held.submit.request_id for held in takeovers._told_by(session)] == ["r1", "r2"]


async def first_token_shown(cluster: GrpcCluster, home: Home) -> tuple[Node, Node]:
    """The client of r1 has its first token; the word of it did not reach the decode node."""
    prefill, decode = await cluster.join("prefill-0"), await cluster.join("decode-0")
    sink = home.ask()
    hear = decode.jobs.first_tokens

    def mishear(request_id: RequestId, generation: int, *rest: Any, **more: Any) -> None:
        if generation > 0:
            hear(request_id, generation, *rest, **more)

    decode.jobs.first_tokens = mishear  # type: ignore[method-assign]
    await decode.engine.job("r1/0")
    (await prefill.engine.job("r1/0")).feed(out("a", finish=FinishReason.LENGTH))
    await told(sink, 1)
    return prefill, decode


async def test_a_first_token_that_a_client_has_is_not_sampled_again() -> None:
    async with homes() as (cluster, home):
        prefill, decode = await first_token_shown(cluster, home)
        home = await next_life(cluster)
        sink = await home.resume()
        run = await decode.engine.job("r1/1")
        assert run.job.choices[0].emitted_token_ids == ids_of("a")
        assert "r1/1" not in prefill.engine.runs
        assert prefill.engine.dropped == {"r1/0": "the scheduler needs it no longer"}
        run.feed(out("b", eos=True))
        await over(sink)
        assert text_of(list(sink.events)) == "ab"
        cluster.scheduler.core.check()


async def test_without_its_decode_node_the_prefill_nodes_word_is_enough() -> None:
    async with homes() as (cluster, home):
        await first_token_shown(cluster, home)
        await cluster.scheduler.stop()
        for node in cluster.nodes:
            await heard_nobody(node)
        cluster.nodes[1].jobs.cancel_all()
        home = await next_life(cluster)
        sink = await home.resume()
        run = await cluster.nodes[1].engine.job("r1/1")
        assert run.job.choices[0].emitted_token_ids == ids_of("a")
        run.feed(out("b", eos=True))
        await over(sink)
        assert text_of(list(sink.events)) == "ab"


async def test_without_its_prefill_node_it_is_computed_anew_after_a_while() -> None:
    async with homes() as (cluster, home):
        prefill, decode = await first_token_shown(cluster, home)
        await cluster.scheduler.stop()
        for node in cluster.nodes:
            await heard_nobody(node)
        prefill.jobs.cancel_all()
        home = await next_life(cluster)
        sink = await home.resume()
        run = await prefilled(prefill, decode, "r1/1")
        decode.engine.ready("r1/1")
        run.feed(out("b", eos=True))
        await over(sink)
        assert text_of(list(sink.events)) == "ab"
