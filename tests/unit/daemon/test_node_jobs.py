"""Jobs of one node against a scripted engine: every kind, every end, every phase of leaving."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from pdd.connector.params import JobKind, SourceNode
from pdd.core.errors import InvalidRequest
from pdd.core.frames import FinishReason, Frame
from pdd.core.identity import RequestId
from pdd.core.sampling import Sampling
from pdd.daemon.held_jobs import HoldLimits
from pdd.daemon.node_jobs import NodeJobs
from pdd.daemon.running_job import JobFailure, JobReports
from pdd.engine.port import Choice, EngineFailed, Job, JobFacts
from tests.unit.daemon.fake_engine import EOS, FakeEngine, Run, ids_of, letter_tokenizer, out

R1 = RequestId("r1")
SOURCE = SourceNode(
    name="prefill-0", uuid="u", boot_epoch=1, control_address="x:1", ucx_addresses=(b"a",)
)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with capture_logs():
        yield


def make_job(
    kind: JobKind = JobKind.LOCAL,
    *,
    key: str = "r1/0",
    emitted: str = "",
    deadline_s: float = 60.0,
    **sampling: Any,
) -> Job:
    return Job(
        key=key,
        kind=kind,
        prompt_token_ids=ids_of("xyz"),
        choices=(Choice(emitted_token_ids=ids_of(emitted)),),
        sampling=Sampling(max_tokens=16, **sampling),
        cache_salt="",
        priority=0,
        deadline_s=deadline_s,
        source=SOURCE if kind is JobKind.DECODE else None,
    )


class Node:
    """NodeJobs with everything that it reports."""

    def __init__(
        self, *, transfer_deadline_s: float = 60.0, hold_limits: HoldLimits | None = None
    ) -> None:
        self.engine = FakeEngine()
        self.now_s = 100.0
        self.jobs = NodeJobs(
            engine=self.engine,
            tokenizer=letter_tokenizer(),
            clock=lambda: self.now_s,
            transfer_deadline_s=transfer_deadline_s,
            hold_limits=hold_limits,
        )
        self.frame_came = asyncio.Event()
        self.frames: list[Frame] = []
        self.generations: list[int] = []
        self.failures: list[tuple[int, JobFailure]] = []
        self.ready: list[tuple[int, JobFacts]] = []
        self.reports = self.make_reports()

    def make_reports(self) -> JobReports:
        return JobReports(
            frame=lambda frame, generation: (
                self.frames.append(frame),
                self.generations.append(generation),
                self.frame_came.set(),
            ),
            failed=lambda _, generation, failure: self.failures.append((generation, failure)),
            ready=lambda _, generation, facts: self.ready.append((generation, facts)),
        )

    async def submit(self, job: Job, *, generation: int = 0) -> Run:
        self.jobs.submit(R1, generation, job, self.reports)
        return await self.engine.job(job.key)

    async def over(self) -> None:
        await asyncio.wait_for(self.jobs.drained(), timeout=10)
        assert self.jobs.count == 0

    @property
    def text(self) -> str:
        return "".join(frame.text for frame in self.frames)


async def test_a_prefill_job_hands_over_after_one_token() -> None:
    node = Node()
    run = await node.submit(make_job(JobKind.PREFILL))
    run.feed(out("a", finish=FinishReason.LENGTH))
    await node.over()
    (frame,) = node.frames
    assert (frame.token_ids, frame.text, frame.first_token_index) == (ids_of("a"), "a", 0)
    assert frame.finish is not None
    assert frame.finish.reason is FinishReason.HANDOVER
    assert run.closed
    assert not node.engine.dropped, "the blocks are still needed"
    assert node.engine.forgotten == ["r1/0"]


@pytest.mark.parametrize(
    ("sampling", "first", "reason", "text"),
    [
        ({}, out(eos=True), None, ""),
        ({"stop_token_ids": (3,)}, out("d", finish=FinishReason.STOP, stop_reason=3), 3, ""),
        ({"stop": ("b",)}, out("b", finish=FinishReason.LENGTH), "b", ""),
    ],
    ids=["the end token", "a stop token", "a stop string"],
)
async def test_a_first_token_that_ends_the_output_needs_no_peer(
    sampling: dict[str, Any], first: Any, reason: int | str | None, text: str
) -> None:
    node = Node()
    run = await node.submit(make_job(JobKind.PREFILL, **sampling))
    run.feed(first)
    await node.over()
    (frame,) = node.frames
    assert frame.finish is not None
    assert (frame.finish.reason, frame.finish.stop_reason) == (FinishReason.STOP, reason)
    assert (frame.text, len(frame.token_ids)) == (text, 1)
    assert "r1/0" in node.engine.dropped


async def test_a_decode_job_goes_on_after_the_first_token() -> None:
    node = Node()
    run = await node.submit(make_job(JobKind.DECODE))
    node.jobs.first_tokens(R1, 0, {0: 0})
    assert run.first_tokens == {0: 0}
    node.engine.ready("r1/0", transferred_bytes=2048, transfer_s=0.5)
    run.feed(out("b"), out("c", eos=True))
    await node.over()
    assert [(frame.first_token_index, frame.text_offset) for frame in node.frames] == [
        (1, 1),
        (2, 2),
    ]
    assert node.text == "bc"
    assert node.frames[-1].token_ids == (2, EOS)
    finish = node.frames[-1].finish
    assert finish is not None
    assert (finish.facts.transferred_bytes, finish.facts.transfer_s) == (2048, 0.5)
    assert [(generation, facts.transferred_bytes) for generation, facts in node.ready] == [
        (0, 2048)
    ]


async def test_a_stop_string_may_span_the_two_nodes() -> None:
    prefill, decode = Node(), Node()
    sampling = {"stop": ("ab",)}
    run = await prefill.submit(make_job(JobKind.PREFILL, **sampling))
    run.feed(out("a", finish=FinishReason.LENGTH))
    await prefill.over()
    assert prefill.text == "", "it could be the beginning of the stop string"
    run = await decode.submit(make_job(JobKind.DECODE, **sampling))
    decode.jobs.first_tokens(R1, 0, {0: 0})
    run.feed(out("b"), out("c"))
    await decode.over()
    (frame,) = decode.frames
    assert frame.finish is not None
    assert (frame.finish.reason, frame.finish.stop_reason) == (FinishReason.STOP, "ab")
    assert (frame.text_offset, frame.text, frame.token_ids) == (0, "", ids_of("b"))
    assert run.closed, "the engine would go on otherwise"


async def test_text_held_back_by_the_prefill_node_is_shown_by_the_decode_node() -> None:
    node = Node()
    run = await node.submit(make_job(JobKind.DECODE, stop=("ab",)))
    node.jobs.first_tokens(R1, 0, {0: 0})
    run.feed(out("c", eos=True))
    await node.over()
    assert (node.frames[0].text_offset, node.text) == (0, "ac")


async def test_a_resumed_job_counts_on_after_what_the_client_has() -> None:
    node = Node()
    run = await node.submit(make_job(emitted="abc", key="r1/1"), generation=1)
    run.feed(out("d"), out("e", finish=FinishReason.LENGTH))
    await node.over()
    assert [(frame.first_token_index, frame.text_offset) for frame in node.frames] == [
        (3, 3),
        (4, 4),
    ]
    assert node.generations == [1, 1]
    finish = node.frames[-1].finish
    assert finish is not None
    assert finish.reason is FinishReason.LENGTH


async def test_times_are_cut_at_scheduling_and_at_the_first_output() -> None:
    node = Node()
    run = await node.submit(make_job())
    node.engine.job_facts["r1/0"] = JobFacts(
        started_s=101.0, cached_tokens=2, computed_prompt_tokens=1
    )
    node.now_s = 103.0
    run.feed(out("a"))
    await asyncio.wait_for(node.frame_came.wait(), timeout=10)
    node.now_s = 107.0
    run.feed(out("b", finish=FinishReason.LENGTH))
    await node.over()
    finish = node.frames[-1].finish
    assert finish is not None
    facts = finish.facts
    assert (facts.queue_s, facts.prefill_s, facts.decode_s) == (1.0, 2.0, 4.0)
    assert (facts.cached_tokens, facts.computed_prompt_tokens) == (2, 1)


class TestLeaving:
    async def test_before_the_engine_has_heard_of_it(self) -> None:
        node = Node()
        node.jobs.submit(R1, 0, make_job(), node.reports)
        node.jobs.cancel(R1)
        await node.over()
        assert not node.engine.runs

    @pytest.mark.parametrize("kind", list(JobKind))
    async def test_while_the_engine_works_for_it(self, kind: JobKind) -> None:
        node = Node()
        run = await node.submit(make_job(kind))
        node.jobs.cancel(R1)
        assert node.jobs.count == 0
        await node.over()
        assert run.closed, "an open generator keeps the blocks"
        assert node.engine.forgotten == ["r1/0"]
        assert (node.frames, node.failures) == ([], [])

    async def test_between_two_tokens(self) -> None:
        node = Node()
        run = await node.submit(make_job())
        run.feed(out("a"))
        await asyncio.wait_for(node.frame_came.wait(), timeout=10)
        node.jobs.cancel(R1)
        run.feed(out("b"))
        await node.over()
        assert node.text == "a"
        assert run.closed

    async def test_after_the_hand_over_the_blocks_are_dropped(self) -> None:
        node = Node()
        run = await node.submit(make_job(JobKind.PREFILL))
        run.feed(out("a", finish=FinishReason.LENGTH))
        await node.over()
        node.jobs.cancel(R1)
        assert "r1/0" in node.engine.dropped
        node.engine.dropped.clear()
        node.jobs.cancel(R1)
        assert not node.engine.dropped, "once"

    async def test_of_something_unknown_does_nothing(self) -> None:
        node = Node()
        node.jobs.cancel(RequestId("never seen"))
        node.jobs.first_tokens(RequestId("never seen"), 0, {0: 1})

    async def test_waiting_for_the_end_includes_what_was_cancelled(self) -> None:
        node = Node()
        run = await node.submit(make_job())
        node.jobs.cancel(R1)
        await asyncio.wait_for(node.jobs.drained(), timeout=10)
        assert run.closed

    async def test_one_schedulers_jobs_end_with_it_and_nobody_elses(self) -> None:
        node = Node()
        mine = await node.submit(make_job())
        others = node.make_reports()
        node.jobs.submit(RequestId("r2"), 0, make_job(key="r2/0"), others)
        theirs = await node.engine.job("r2/0")
        node.jobs.scheduler_lost(node.reports)
        await asyncio.wait_for(mine.ended.wait(), timeout=10)
        assert node.jobs.count == 1
        assert not theirs.closed
        node.jobs.cancel_all()
        await node.over()
        assert theirs.closed

    async def test_between_the_engines_hand_over_and_its_reading_the_blocks_are_dropped(
        self,
    ) -> None:
        node = Node()
        run = await node.submit(make_job(JobKind.PREFILL))
        run.feed(out("a", finish=FinishReason.LENGTH))
        node.jobs.cancel(R1)  # before the job's task has read that output
        await node.over()
        assert not node.frames
        assert "r1/0" in node.engine.dropped, "the engine keeps them for a peer that never comes"

    async def test_blocks_handed_over_for_a_lost_scheduler_are_dropped_too(self) -> None:
        node = Node()
        run = await node.submit(make_job(JobKind.PREFILL))
        run.feed(out("a", finish=FinishReason.LENGTH))
        await node.over()
        node.jobs.scheduler_lost(node.make_reports())
        assert not node.engine.dropped, "another scheduler's loss"
        node.jobs.scheduler_lost(node.reports)
        assert "r1/0" in node.engine.dropped


class TestFailing:
    @pytest.mark.parametrize(
        ("error", "kind"),
        [
            (EngineFailed("the engine died"), "engine"),
            (InvalidRequest("top_k is odd"), "invalid"),
        ],
    )
    async def test_what_the_engine_says_is_told(self, error: Exception, kind: str) -> None:
        node = Node()
        run = await node.submit(make_job())
        run.feed(error)
        await node.over()
        assert node.failures == [(0, JobFailure(kind=kind, message=str(error)))]
        assert node.frames == []

    async def test_an_engine_that_aborts_by_itself_has_failed(self) -> None:
        node = Node()
        run = await node.submit(make_job())
        run.feed(out("a", finish=FinishReason.ABORT))
        await node.over()
        assert [failure.kind for _, failure in node.failures] == ["engine"]
        assert run.closed

    async def test_an_engine_that_stops_without_an_end_has_failed(self) -> None:
        node = Node()
        run = await node.submit(make_job())
        run.feed(out("a"), None)
        await node.over()
        assert [failure.kind for _, failure in node.failures] == ["engine"]
        assert node.text == "a"

    async def test_the_deadline_ends_it(self) -> None:
        node = Node()
        run = await node.submit(make_job(deadline_s=0.01))
        await node.over()
        assert [failure.kind for _, failure in node.failures] == ["deadline"]
        assert run.closed

    async def test_tokens_that_had_ended_elsewhere_are_not_continued(self) -> None:
        node = Node()
        node.jobs.submit(R1, 0, make_job(emitted="ab", stop=("b",)), node.reports)
        await node.over()
        ((_, failure),) = node.failures
        assert failure.kind == "engine"
        assert "had ended" in failure.message
        assert not node.engine.runs

    async def test_a_bug_ends_the_daemon_and_the_request_goes_elsewhere(self) -> None:
        node = Node()
        run = await node.submit(make_job(JobKind.DECODE))
        run.feed(out("b"))  # without a first token: the engine breaks its promise
        await node.over()
        assert [failure.kind for _, failure in node.failures] == ["engine"]
        with pytest.raises(AssertionError, match="without a first token"):
            await asyncio.wait_for(node.jobs.wait_crashed(), timeout=10)


class TestGenerations:
    async def test_a_newer_one_replaces_the_older(self) -> None:
        node = Node()
        old = await node.submit(make_job())
        new = await node.submit(make_job(key="r1/1"), generation=1)
        new.feed(out("a", finish=FinishReason.LENGTH))
        await node.over()
        assert old.closed
        assert node.generations == [1]
        assert node.failures == []

    async def test_an_equal_or_older_one_is_ignored(self) -> None:
        node = Node()
        run = await node.submit(make_job(key="r1/1"), generation=1)
        for generation in (1, 0):
            node.jobs.submit(R1, generation, make_job(key=f"again {generation}"), node.reports)
        run.feed(out("a", finish=FinishReason.LENGTH))
        await node.over()
        assert list(node.engine.runs) == ["r1/1"]

    async def test_a_newer_one_drops_the_blocks_that_an_older_handed_over(self) -> None:
        node = Node()
        run = await node.submit(make_job(JobKind.PREFILL))
        run.feed(out("a", finish=FinishReason.LENGTH))
        await node.over()
        await node.submit(make_job(JobKind.PREFILL, key="r1/1"), generation=1)
        assert "r1/0" in node.engine.dropped
        node.jobs.cancel_all()
        await node.over()

    async def test_a_first_token_of_another_generation_is_ignored(self) -> None:
        node = Node()
        run = await node.submit(make_job(JobKind.DECODE, key="r1/1"), generation=1)
        node.jobs.first_tokens(R1, 0, {0: 5})
        assert run.first_tokens is None
        node.jobs.cancel_all()
        await node.over()


async def test_a_transfer_that_failed_is_reported_as_ready_with_what_arrived() -> None:
    node = Node()
    run = await node.submit(make_job(JobKind.DECODE))
    node.jobs.first_tokens(R1, 0, {0: 0})
    node.engine.ready("r1/0", transferred_bytes=512, load_failed_reason="digest differs")
    assert [(generation, facts.transferred_bytes) for generation, facts in node.ready] == [(0, 512)]
    run.feed(out("b", finish=FinishReason.LENGTH))
    await node.over()
    assert node.failures == []


async def test_blocks_that_do_not_come_are_given_up() -> None:
    node = Node(transfer_deadline_s=0.01)
    run = await node.submit(make_job(JobKind.DECODE))
    node.jobs.first_tokens(R1, 0, {0: 0})
    await asyncio.wait_for(run.ended.wait(), timeout=10)
    await node.over()
    ((_, failure),) = node.failures
    assert failure.kind == "engine"
    assert "0.01 s" in failure.message


async def test_blocks_that_come_in_time_end_that_wait() -> None:
    node = Node(transfer_deadline_s=0.01)
    run = await node.submit(make_job(JobKind.DECODE))
    node.jobs.first_tokens(R1, 0, {0: 0})
    node.engine.ready("r1/0")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(run.ended.wait(), timeout=0.05)
    node.jobs.cancel_all()
    await node.over()
    assert node.failures == []


async def test_ready_after_a_cancellation_is_nobodys() -> None:
    node = Node()
    await node.submit(make_job(JobKind.DECODE))
    node.jobs.cancel(R1)
    node.engine.ready("r1/0")
    await node.over()
    assert node.ready == []


class TestSeveralChoices:
    def job(self, kind: JobKind = JobKind.LOCAL, *, n: int = 3, **sampling: Any) -> Job:
        choices = tuple(Choice(index=index) for index in range(n))
        return replace(make_job(kind, **sampling), choices=choices)

    async def test_each_has_offsets_of_its_own_and_the_last_end_ends_the_job(self) -> None:
        node = Node()
        run = await node.submit(self.job())
        for choice, text in ((0, "a"), (1, "b"), (2, "c"), (0, "d")):
            run.feed(replace(out(text), choice_index=choice))
        for choice in (1, 0, 2):
            run.feed(replace(out(eos=True), choice_index=choice))
        await node.over()
        texts = dict.fromkeys(range(3), "")
        for frame in node.frames:
            assert frame.text_offset == len(texts[frame.choice_index])
            texts[frame.choice_index] += frame.text
        assert texts == {0: "ad", 1: "b", 2: "c"}
        ends = [frame.choice_index for frame in node.frames if frame.finish is not None]
        assert ends == [1, 0, 2]

    async def test_a_stop_string_stops_its_choice_in_the_engine_and_no_other(self) -> None:
        node = Node()
        run = await node.submit(self.job(n=2, stop=("b",)))
        run.feed(replace(out("b"), choice_index=1), replace(out("c"), choice_index=1))
        run.feed(replace(out("a"), choice_index=0), replace(out("b"), choice_index=0))
        await node.over()
        assert run.stopped == [1], "the last one is stopped with its job"
        assert run.closed
        assert [(frame.choice_index, frame.token_ids) for frame in node.frames] == [
            (1, ids_of("b")),
            (0, ids_of("a")),
            (0, ids_of("b")),
        ]

    async def test_a_prefill_job_hands_over_what_has_not_ended(self) -> None:
        node = Node()
        run = await node.submit(self.job(JobKind.PREFILL))
        run.feed(
            replace(out("a", finish=FinishReason.LENGTH), choice_index=0),
            replace(out(eos=True), choice_index=1),
            replace(out("b", finish=FinishReason.LENGTH), choice_index=2),
        )
        await node.over()
        reasons = [frame.finish.reason for frame in node.frames if frame.finish is not None]
        handover = FinishReason.HANDOVER
        assert reasons == [handover, FinishReason.STOP, handover]
        assert not node.engine.dropped, "the blocks are still needed"
        assert node.jobs.handed_over_count == 1

    async def test_where_all_have_ended_the_blocks_are_dropped(self) -> None:
        node = Node()
        run = await node.submit(self.job(JobKind.PREFILL, n=2))
        run.feed(*(replace(out(eos=True), choice_index=choice) for choice in (0, 1)))
        await node.over()
        assert "r1/0" in node.engine.dropped
        assert node.jobs.handed_over_count == 0

    async def test_a_decode_job_goes_on_with_those_that_have_a_first_token(self) -> None:
        node = Node()
        run = await node.submit(self.job(JobKind.DECODE))
        node.jobs.first_tokens(R1, 0, {0: 0, 2: 1})
        assert run.first_tokens == {0: 0, 2: 1}
        run.feed(
            replace(out("c", eos=True), choice_index=2), replace(out(eos=True), choice_index=0)
        )
        await node.over()
        assert [(frame.choice_index, frame.first_token_index) for frame in node.frames] == [
            (2, 1),
            (0, 1),
        ]
