"""How much a node holds of lost schedulers' requests, how long, and what goes first."""

import asyncio
from dataclasses import replace

import pytest

from pdd.connector.params import JobKind
from pdd.core.frames import FinishReason, Frame, Logprob, TokenLogprobs
from pdd.core.identity import RequestId
from pdd.daemon.held_jobs import HeldJobs, HoldLimits
from pdd.daemon.running_job import JobReports
from pdd.rpc.v1 import cluster_pb2
from tests.unit.daemon.fake_engine import Run, ids_of, out
from tests.unit.daemon.test_node_jobs import R1, Node, make_job, quiet
from tests.waiting import until

__all__ = ["quiet"]

A, B, C = map(RequestId, "abc")
SUBMIT = cluster_pb2.Submit(request_id="r1", resume=b"note")


def book(dropped: list[RequestId] | None = None, **limits: float) -> HeldJobs[str]:
    drop = (lambda _: None) if dropped is None else dropped.append
    return HeldJobs(HoldLimits(**limits), drop=drop)  # type: ignore[arg-type]


def hold(held: HeldJobs[str], name: RequestId, *, prompt: int = 1, ended: bool = False) -> None:
    held.hold(name, name, has_ended=ended, prompt_token_count=prompt, output_size=1)


async def test_a_sequence_may_say_so_much_for_nobody_and_no_more() -> None:
    held = book(sequence_tokens_max=3)
    hold(held, A)
    assert held.grew(A, 3, size=3)
    assert not held.grew(A, 1, size=1)
    assert held.get(A) == A, "it is held on"


async def test_at_the_bound_on_all_the_oldest_ended_ones_go_first_and_nobody_else() -> None:
    held = book(tokens_max=10)
    hold(held, A)
    hold(held, B, prompt=3, ended=True)
    hold(held, C, prompt=2, ended=True)
    assert held.size == 9
    assert held.grew(A, 2, size=2)
    assert [held.get(name) for name in (A, B, C)] == [A, None, C]
    assert held.grew(A, 4, size=4)
    assert held.get(C) is None
    assert not held.grew(A, 3, size=3), "none is left that has ended"
    assert held.get(A) == A


async def test_what_is_forgotten_counts_no_more_and_is_not_dropped_later() -> None:
    dropped: list[RequestId] = []
    held = book(dropped, grace_s=0.01)
    hold(held, A)
    held.forget(A)
    held.forget(A)
    assert (len(held), held.size) == (0, 0)
    hold(held, B)
    await until(lambda: dropped, "the other job to be dropped")
    assert dropped == [B]


async def held_node(*, kind: JobKind = JobKind.LOCAL, **limits: float) -> tuple[Node, Run]:
    """A job that has said "ab" when its scheduler was lost."""
    node = Node(hold_limits=HoldLimits(**limits))  # type: ignore[arg-type]
    node.jobs.submit(R1, 0, make_job(kind), node.reports, keep=SUBMIT)
    run = await node.engine.job("r1/0")
    run.feed(out("a"), out("b"))
    async with asyncio.timeout(10):
        while len(node.frames) < 2:
            node.frame_came.clear()
            await node.frame_came.wait()
    node.jobs.scheduler_lost(node.reports)
    node.frames.clear()
    return node, run


def claim(node: Node, reports: JobReports | None = None, *, first: int = 0) -> None:
    node.jobs.claim(R1, 0, reports or node.reports, first_token_index=first)


async def test_a_claim_gives_one_frame_for_each_token_and_then_what_is_new() -> None:
    node, run = await held_node()
    run.feed(out("cd"))
    claim(node)
    run.feed(out("e", eos=True))
    await node.over()
    assert [frame.first_token_index for frame in node.frames] == [0, 1, 2, 3, 4]
    assert node.text == "abcde"
    assert node.frames[-1].finish is not None
    assert node.jobs.held_count == 1, "its end is held"
    node.jobs.cancel_all()
    assert node.jobs.held_count == 0


async def test_a_claim_may_begin_at_a_later_token() -> None:
    node, run = await held_node()
    claim(node, first=1)
    run.feed(out("c", finish=FinishReason.LENGTH))
    await node.over()
    assert [(frame.first_token_index, frame.text_offset) for frame in node.frames] == [
        (1, 1),
        (2, 2),
    ]
    node.jobs.cancel_all()


async def test_of_two_claims_the_first_counts() -> None:
    node, run = await held_node()
    others: list[Frame] = []
    reports = JobReports(
        frame=lambda frame, _: others.append(frame),
        failed=lambda *_: None,
        ready=lambda *_: None,
    )
    claim(node, reports)
    claim(node)
    ((_, failure),) = node.failures
    assert failure.kind == "stopped", "it is nobody's any more"
    run.feed(out("c", eos=True))
    await node.over()
    assert "".join(frame.text for frame in others) == "abc"
    node.jobs.cancel_all()


async def test_a_claim_of_nothing_is_given_back() -> None:
    node = Node()
    claim(node)
    ((_, failure),) = node.failures
    assert failure.kind == "stopped"


async def test_nobody_claims_it_and_it_is_cancelled() -> None:
    node, run = await held_node(grace_s=0.01)
    await asyncio.wait_for(run.ended.wait(), timeout=10)
    await node.over()
    assert (node.jobs.held_count, node.failures) == (0, [])


async def test_at_its_bound_it_stops_and_a_claim_gives_what_there_is_and_gives_it_back() -> None:
    node, run = await held_node(sequence_tokens_max=1)
    run.feed(out("c"), out("d"), out("e"))
    await asyncio.wait_for(run.ended.wait(), timeout=10)
    await node.over()
    assert [job.is_running for job in node.jobs.held()] == [False]
    claim(node)
    await node.over()
    assert node.text == "abcd"
    ((_, failure),) = node.failures
    assert failure.kind == "stopped"
    assert node.jobs.held_count == 0


async def test_an_engine_that_fails_while_nobody_listens_leaves_what_was_said() -> None:
    node, run = await held_node()
    run.feed(None)
    await node.over()
    claim(node)
    await node.over()
    assert node.text == "ab"
    assert [failure.kind for _, failure in node.failures] == ["stopped"]


async def test_without_a_first_token_only_the_request_is_held() -> None:
    node = Node()
    node.jobs.submit(R1, 0, make_job(JobKind.DECODE), node.reports, keep=SUBMIT)
    run = await node.engine.job("r1/0")
    node.jobs.scheduler_lost(node.reports)
    await asyncio.wait_for(run.ended.wait(), timeout=10)
    await node.over()
    (held,) = node.jobs.held()
    assert (held.is_running, held.output_token_count) == (False, 0)
    node.jobs.cancel(R1)
    assert node.jobs.held_count == 0


async def test_a_prefill_job_ends_with_its_scheduler_and_its_handed_over_blocks_wait() -> None:
    node = Node(hold_limits=HoldLimits(grace_s=0.01))
    node.jobs.submit(R1, 0, make_job(JobKind.PREFILL), node.reports, keep=SUBMIT)
    (await node.engine.job("r1/0")).feed(out("a", finish=FinishReason.LENGTH))
    await node.over()
    node.jobs.scheduler_lost(node.reports)
    assert not node.engine.dropped, "a decode node may be fetching them"
    await until(lambda: node.engine.dropped, "the blocks to be dropped")


@pytest.mark.parametrize("emitted", ["", "ab"])
async def test_tokens_of_an_earlier_node_are_given_too(emitted: str) -> None:
    node = Node()
    node.jobs.submit(R1, 0, make_job(emitted=emitted), node.reports, keep=SUBMIT)
    run = await node.engine.job("r1/0")
    run.feed(out("c"))
    async with asyncio.timeout(10):
        await node.frame_came.wait()
    node.jobs.scheduler_lost(node.reports)
    node.frames.clear()
    claim(node)
    run.feed(out("d", eos=True))
    await node.over()
    assert node.text == f"{emitted}cd"
    assert node.frames[0].token_ids == ids_of((emitted + "c")[0])
    node.jobs.cancel_all()


async def test_log_probabilities_count_as_what_they_weigh() -> None:
    likely = Logprob(token_id=1, logprob=-1.0, rank=1, text="c", token_bytes=b"c")
    node, run = await held_node(tokens_max=24)
    run.feed(replace(out("c"), logprobs=(TokenLogprobs(chosen=likely, top=(likely,) * 20),)))
    await asyncio.wait_for(run.ended.wait(), timeout=10)
    await node.over()
    assert [job.is_running for job in node.jobs.held()] == [False], "one token, and 21 of them"
    node.jobs.cancel_all()


async def test_an_ended_job_is_told_in_turns_and_not_on_to_a_scheduler_that_is_lost() -> None:
    node, run = await held_node()
    run.feed(*[out("c")] * 500, out("d", eos=True))
    await asyncio.wait_for(run.ended.wait(), timeout=10)
    await node.over()
    told: list[Frame] = []

    async def at_once() -> None:
        """A stream that has broken keeps nobody waiting."""

    lost = JobReports(
        frame=lambda frame, _: told.append(frame),
        failed=lambda *_: None,
        ready=lambda *_: None,
        sent=at_once,
    )
    claim(node, lost)
    while not told:  # noqa: ASYNC110 - each turn of the loop is what this is about
        await asyncio.sleep(0)
    assert len(told) == 64
    node.jobs.scheduler_lost(lost)
    await node.over()
    assert len(told) == 64
    claim(node)
    await node.over()
    assert node.text == "ab" + "c" * 500 + "d"
    node.jobs.cancel_all()
