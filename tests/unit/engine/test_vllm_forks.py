"""How several choices of one job become engine requests, against a scripted engine."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from pdd.connector.params import JobKind
from pdd.core.frames import FinishReason
from pdd.engine.port import Choice, EngineFailed, Job, StepOutput
from pdd.engine.vllm_forks import Forks
from tests.unit.engine.synthetic_jobs import make_job


@dataclass
class Run:
    job: Job
    outputs: asyncio.Queue[StepOutput | Exception | None] = field(default_factory=asyncio.Queue)
    closed: bool = False


class Engine:
    """Every run waits for what the test feeds."""

    def __init__(self, job: Job, first_tokens: dict[int, int] | None = None) -> None:
        self.runs: dict[str, Run] = {}
        self.news = asyncio.Event()
        self.forks = Forks(job, run=self.run, first_tokens=lambda: first_tokens or {})
        self.outputs = self.forks.outputs()

    async def run(self, job: Job) -> AsyncGenerator[StepOutput, None]:
        run = self.runs[job.key] = Run(job=job)
        self.news.set()
        try:
            while (output := await run.outputs.get()) is not None:
                if isinstance(output, Exception):
                    raise output
                yield output
        finally:
            run.closed = True

    async def begun(self, key: str) -> Run:
        async with asyncio.timeout(10):
            while key not in self.runs:
                self.news.clear()
                await self.news.wait()
        return self.runs[key]

    async def next(self) -> StepOutput:
        async with asyncio.timeout(10):
            return await anext(self.outputs)


def job_of(kind: JobKind = JobKind.LOCAL, *, n: int = 3, **fields: Any) -> Job:
    choices = tuple(Choice(index=index) for index in range(n))
    return make_job([1, 2, 3], kind=kind, choices=choices, temperature=0.8, **fields)


def out(choice: int, token: int, finish: FinishReason | None = None) -> StepOutput:
    return StepOutput(
        token_ids=(token,),
        logprobs=(),
        finish_reason=finish,
        stop_reason=None,
        choice_index=choice,
    )


async def test_the_others_begin_when_the_prompt_is_in_the_cache() -> None:
    engine = Engine(job_of())
    first = asyncio.create_task(engine.next())
    trunk = await engine.begun("r/0")
    assert list(engine.runs) == ["r/0"], "two computed the prompt"
    trunk.outputs.put_nowait(out(0, 7))
    assert await first == out(0, 7)
    one, two = await engine.begun("r/0#1"), await engine.begun("r/0#2")
    assert (one.job.kind, one.job.choices) == (JobKind.LOCAL, (Choice(index=1),))
    for run, choice in ((two, 2), (trunk, 0), (one, 1)):
        run.outputs.put_nowait(out(choice, 9, FinishReason.LENGTH))
    assert [one.choice_index for one in [await engine.next() for _ in range(3)]] == [2, 0, 1]
    with pytest.raises(StopAsyncIteration):
        await engine.next()


async def test_forks_of_a_decode_job_go_on_after_their_first_tokens() -> None:
    engine = Engine(job_of(JobKind.DECODE), {0: 70, 2: 72})
    first = asyncio.create_task(engine.next())
    (await engine.begun("r/0")).outputs.put_nowait(out(0, 7))
    await first
    fork = await engine.begun("r/0#2")
    assert fork.job.choices == (Choice(index=2, emitted_token_ids=(72,)),)
    assert fork.job.source is None
    assert "r/0#1" not in engine.runs, "it has ended with its first token"
    await engine.outputs.aclose()


async def test_a_trunk_whose_own_choice_has_ended_says_nothing_and_ends() -> None:
    engine = Engine(job_of(JobKind.DECODE), {1: 71})
    first = asyncio.create_task(engine.next())
    trunk = await engine.begun("r/0")
    trunk.outputs.put_nowait(out(0, 7))
    fork = await engine.begun("r/0#1")
    fork.outputs.put_nowait(out(1, 8, FinishReason.STOP))
    assert await first == out(1, 8, FinishReason.STOP)
    assert trunk.closed
    with pytest.raises(StopAsyncIteration):
        await engine.next()


async def test_first_tokens_of_a_prefill_job_are_one_token_each() -> None:
    engine = Engine(job_of(JobKind.PREFILL, max_tokens=50, min_tokens=5))
    first = asyncio.create_task(engine.next())
    (await engine.begun("r/0")).outputs.put_nowait(out(0, 7, FinishReason.LENGTH))
    await first
    fork = await engine.begun("r/0#1")
    assert (fork.job.kind, fork.job.sampling.max_tokens) == (JobKind.LOCAL, 1)
    await engine.outputs.aclose()
    assert all(run.closed for run in engine.runs.values())


async def test_greedy_first_tokens_are_all_the_trunk_s() -> None:
    job = job_of(JobKind.PREFILL)
    engine = Engine(replace(job, sampling=replace(job.sampling, temperature=0.0)))
    first = asyncio.create_task(engine.next())
    (await engine.begun("r/0")).outputs.put_nowait(out(0, 7, FinishReason.LENGTH))
    firsts = [await first, await engine.next(), await engine.next()]
    assert firsts == [out(choice, 7, FinishReason.LENGTH) for choice in range(3)]
    assert list(engine.runs) == ["r/0"]


async def test_a_choice_that_is_stopped_ends_its_request_and_no_other() -> None:
    engine = Engine(job_of(n=2))
    first = asyncio.create_task(engine.next())
    trunk = await engine.begun("r/0")
    trunk.outputs.put_nowait(out(0, 7))
    await first
    fork = await engine.begun("r/0#1")
    engine.forks.stop(0)
    fork.outputs.put_nowait(out(1, 8, FinishReason.LENGTH))
    assert await engine.next() == out(1, 8, FinishReason.LENGTH)
    assert trunk.closed
    with pytest.raises(StopAsyncIteration):
        await engine.next()


@pytest.mark.parametrize("fault", [EngineFailed("it died"), None])
async def test_what_fails_one_choice_fails_the_job(fault: Exception | None) -> None:
    engine = Engine(job_of(n=2))
    first = asyncio.create_task(engine.next())
    trunk = await engine.begun("r/0")
    trunk.outputs.put_nowait(out(0, 7))
    await first
    (await engine.begun("r/0#1")).outputs.put_nowait(fault)
    with pytest.raises(EngineFailed, match="it died" if fault else "without saying why"):
        await engine.next()
    assert trunk.closed
