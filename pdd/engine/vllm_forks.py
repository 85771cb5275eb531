"""Several choices of one job on vLLM: engine requests of their own, one after the other and then
side by side.

::

    trunk    the job's first choice: computes the prompt, or has its blocks filled by a peer
               │ its first output: the prompt's full blocks are in vLLM's prefix cache
    forks    the other choices: prompt and what each has already; full blocks from the cache

vLLM shares full blocks only. So each fork computes the rest of the prompt anew, less than a block
(all of it where the cache is off, or has evicted it), and says so in the job's facts. On a prefill
node a fork's first token is drawn from that last position; greedy ones are all the trunk's own.

A decode job's trunk is given before it is known which choices go on. If its own does not, it only
brings the blocks in, and ends with its first output, which nobody gets.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import replace

from pdd.connector.params import JobKind
from pdd.engine.port import Choice, EngineFailed, Job, StepOutput

Run = Callable[[Job], AsyncGenerator[StepOutput, None]]


def fork_key(key: str, choice_index: int) -> str:
    """The name of a fork's own engine request."""
    return f"{key}#{choice_index}"


class Forks:
    """The choices of one job. One reader. Bound: an entry per output token that waits for it."""

    def __init__(
        self, job: Job, *, run: Run, first_tokens: Callable[[], Mapping[int, int]]
    ) -> None:
        """``run``: a job of one choice. ``first_tokens``: of a decode job, by choice; asked for
        when the trunk has gone on, so that they are there."""
        self.job = job
        self._run = run
        self._first_tokens = first_tokens
        self._trunk = job.choices[0]
        self._open = {choice.index for choice in job.choices}
        self._has_forked = False
        self._news: asyncio.Queue[StepOutput | Exception | None] = asyncio.Queue()
        self._readers: dict[int, asyncio.Task[None]] = {}

    async def outputs(self) -> AsyncGenerator[StepOutput, None]:
        """Of all choices, as they come, until each has ended or was stopped."""
        job = self.job
        self._read(replace(job, choices=(self._trunk,)))
        try:
            while self._open:
                news = await self._news.get()
                if isinstance(news, Exception):
                    raise news
                if news is None or news.choice_index not in self._open:
                    continue
                if news.finish_reason is not None:
                    self._open.discard(news.choice_index)
                yield news
        finally:
            readers = list(self._readers.values())
            for reader in readers:
                reader.cancel()
            if readers:
                await asyncio.wait(readers)

    def stop(self, choice_index: int) -> None:
        """Nobody wants more of a choice."""
        self._open.discard(choice_index)
        reader = self._readers.get(choice_index)
        if reader is not None:
            reader.cancel()
        self._news.put_nowait(None)

    def _read(self, job: Job) -> None:
        (choice,) = job.choices
        self._readers[choice.index] = asyncio.create_task(self._take(job, choice.index))

    async def _take(self, job: Job, choice_index: int) -> None:
        outputs = self._run(job)
        has_ended = False
        try:
            async for output in outputs:
                self._news.put_nowait(output)
                has_ended = output.finish_reason is not None
                if not self._has_forked:
                    self._fork(output)
                if choice_index not in self._open:
                    return
            if not has_ended:
                why = f"the engine gave up choice {choice_index} without saying why"
                self._news.put_nowait(EngineFailed(why))
        except Exception as error:  # for the reader, in whose hands the job is
            self._news.put_nowait(error)
        finally:
            await outputs.aclose()

    def _fork(self, first: StepOutput) -> None:
        """The trunk has its first output: the others begin."""
        self._has_forked = True
        job = self.job
        others = job.choices[1:]
        if job.kind is JobKind.DECODE:
            going_on = self._first_tokens()
            self._open &= going_on.keys()
            others = tuple(
                Choice(index=one.index, emitted_token_ids=(going_on[one.index],))
                for one in others
                if one.index in going_on
            )
            self._news.put_nowait(None)  # perhaps none is open any more
        elif job.kind is JobKind.PREFILL and job.sampling.greedy:
            for one in others:
                self._news.put_nowait(replace(first, choice_index=one.index))
            return
        sampling = job.sampling
        if job.kind is JobKind.PREFILL:
            sampling = replace(sampling, max_tokens=1, min_tokens=min(sampling.min_tokens, 1))
        for one in others:
            self._read(
                replace(
                    job,
                    key=fork_key(job.key, one.index),
                    kind=JobKind.LOCAL,
                    choices=(one,),
                    sampling=sampling,
                    source=None,
                    pull=None,
                    lends=False,
                )
            )
