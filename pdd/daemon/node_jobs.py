"""The jobs of one node: from a scheduler's submit to its last frame.

One task per job. The same code serves every engine and every kind of job; kinds differ only in
where the first token comes from and in whether another node goes on afterwards. Each job ends
with exactly one of: a frame with a finish, a failure, or silence after a cancellation.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import structlog
from tokenizers import Tokenizer

from pdd.connector.params import JobKind
from pdd.core.errors import InvalidRequest
from pdd.core.frames import EngineFacts, Finish, FinishReason, Frame
from pdd.core.identity import RequestId
from pdd.core.ports import Clock
from pdd.engine.output_stream import OutputStream
from pdd.engine.port import Engine, EngineFailed, Job, JobFacts, StepOutput

log = structlog.get_logger(__name__)

_HANDED_OVER_MAX = 8192
"""Prefill jobs whose blocks may still be held for a peer: from the handover until the scheduler
cancels them, which it does when the decode node is ready or gone. Beyond the bound the oldest are
forgotten here, and their blocks come back by the transfer's own deadline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFailure:
    """``kind``: invalid (the client's fault), engine, or deadline."""

    kind: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReports:
    """Where a job's news go. Called on the event loop, never blocking."""

    frame: Callable[[Frame, int], None]
    failed: Callable[[RequestId, int, JobFailure], None]
    ready: Callable[[RequestId, int, JobFacts], None]


@dataclass(slots=True)
class _Running:
    request_id: RequestId
    generation: int
    job: Job
    stream: OutputStream
    reports: JobReports
    submitted_s: float
    task: asyncio.Task[None] | None = None
    first_token_id: int | None = None
    first_output_s: float | None = None
    ready_timer: asyncio.TimerHandle | None = None
    cancelled: bool = field(default=False)


class NodeJobs:
    """All jobs that run on this node, for every scheduler."""

    def __init__(
        self, *, engine: Engine, tokenizer: Tokenizer, clock: Clock, transfer_deadline_s: float
    ) -> None:
        """``transfer_deadline_s``: how long after the first token blocks may still be missing."""
        self._engine = engine
        self._tokenizer = tokenizer
        self._clock = clock
        self._transfer_deadline_s = transfer_deadline_s
        self._running: dict[RequestId, _Running] = {}
        self._by_key: dict[str, _Running] = {}
        self._handed_over: OrderedDict[RequestId, tuple[str, JobReports]] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()
        self._crash: Exception | None = None
        self._crashed = asyncio.Event()
        engine.on_ready(self._on_ready)

    @property
    def count(self) -> int:
        """Jobs that have not ended."""
        return len(self._running)

    @property
    def handed_over_count(self) -> int:
        """Prefill jobs that have ended and whose blocks a peer may still fetch."""
        return len(self._handed_over)

    def submit(self, request_id: RequestId, generation: int, job: Job, reports: JobReports) -> None:
        """Start a job. A generation that is not newer than the running one is ignored."""
        former = self._running.get(request_id)
        if former is not None and former.generation >= generation:
            return
        self.cancel(request_id)  # what an older generation runs or has handed over
        running = _Running(
            request_id=request_id,
            generation=generation,
            job=job,
            stream=OutputStream(
                request_id=request_id,
                prompt_token_ids=job.prompt_token_ids,
                sampling=job.sampling,
                tokenizer=self._tokenizer,
            ),
            reports=reports,
            submitted_s=self._clock(),
        )
        self._running[request_id] = running
        self._by_key[job.key] = running
        running.task = asyncio.create_task(self._run(running), name=f"job {job.key}")
        self._tasks.add(running.task)
        running.task.add_done_callback(self._tasks.discard)

    def first_token(self, request_id: RequestId, generation: int, token_id: int) -> None:
        """Output token 0 of a decode job. Ignored if the job is gone."""
        running = self._running.get(request_id)
        if running is None or running.generation != generation:
            return
        running.first_token_id = token_id
        self._engine.first_token(running.job.key, token_id)
        running.ready_timer = asyncio.get_running_loop().call_later(
            self._transfer_deadline_s, self._on_overdue, running
        )

    def cancel(self, request_id: RequestId) -> None:
        """Forget a request in whatever phase it is. Idempotent; its blocks follow at once."""
        key, _ = self._handed_over.pop(request_id, (None, None))
        if key is not None:
            self._engine.drop_source(key, "the scheduler needs it no longer")
        running = self._running.get(request_id)
        if running is None:
            return
        running.cancelled = True
        self._remove(running)
        assert running.task is not None
        running.task.cancel()

    def cancel_all(self, reports: JobReports | None = None) -> None:
        """Forget everything, or everything that one scheduler had asked for."""
        theirs = {request_id: running.reports for request_id, running in self._running.items()}
        theirs |= {request_id: owner for request_id, (_, owner) in self._handed_over.items()}
        for request_id, owner in theirs.items():
            if reports is None or owner is reports:
                self.cancel(request_id)

    async def drained(self) -> None:
        """Wait until every task has ended, cancelled ones included."""
        if self._tasks:
            await asyncio.wait(list(self._tasks))

    async def wait_crashed(self) -> None:
        """Raises what a bug raised inside a job; the daemon ends with it."""
        await self._crashed.wait()
        assert self._crash is not None
        raise self._crash

    # --- one job -----------------------------------------------------------------------------

    async def _run(self, running: _Running) -> None:
        job = running.job
        failure: JobFailure | None = None
        try:
            async with asyncio.timeout(job.deadline_s):
                await self._generate(running)
        except InvalidRequest as error:
            failure = JobFailure(kind="invalid", message=str(error))
        except EngineFailed as error:
            failure = JobFailure(kind="engine", message=str(error))
        except TimeoutError:
            failure = JobFailure(
                kind="deadline", message=f"not finished within {job.deadline_s:.1f} s"
            )
        except Exception as error:
            # A bug: another node may do better, this one ends (see wait_crashed).
            log.exception("job_crashed", request_id=running.request_id)
            failure = JobFailure(kind="engine", message=f"{type(error).__name__}: {error}")
            self._crash = error
            self._crashed.set()
        finally:
            self._remove(running)
            if running.cancelled and job.kind is JobKind.PREFILL:
                # The engine may have handed it over just before, in an output that nobody read.
                self._engine.drop_source(job.key, "the scheduler needs it no longer")
            self._engine.forget(job.key)
        if failure is not None and not running.cancelled:
            log.warning(
                "job_failed", request_id=running.request_id, kind=failure.kind, why=failure.message
            )
            running.reports.failed(running.request_id, running.generation, failure)

    async def _generate(self, running: _Running) -> None:
        job = running.job
        if job.emitted_token_ids:
            try:
                running.stream.replay(job.emitted_token_ids)
            except ValueError as error:  # another process's word, so no bug of this one
                raise EngineFailed(str(error)) from error
        outputs = self._engine.run(job)
        try:
            async for output in outputs:
                if self._show(running, output):
                    return
            raise EngineFailed("the engine gave up the request without saying why")
        finally:
            await outputs.aclose()

    def _show(self, running: _Running, output: StepOutput) -> bool:
        """Send a step's frame; True when the job is over."""
        now_s = self._clock()
        if running.first_output_s is None:
            running.first_output_s = now_s
            if running.job.kind is JobKind.DECODE:
                assert running.first_token_id is not None, "decode went on without a first token"
                running.stream.replay([running.first_token_id])
        frame = running.stream.push(
            output.token_ids, output.logprobs, self._engine_finish(running, output)
        )
        finish = frame.finish
        if finish is None and running.job.kind is JobKind.PREFILL:
            finish = Finish(reason=FinishReason.HANDOVER)
            self._remember_source(running)
        elif finish is not None and running.job.kind is JobKind.PREFILL:
            self._engine.drop_source(running.job.key, "the first token ended the output")
        if finish is not None:
            facts = self._facts(running, now_s)
            frame = replace(frame, finish=replace(finish, facts=facts))
        if not running.cancelled:
            running.reports.frame(frame, running.generation)
        return finish is not None

    def _engine_finish(self, running: _Running, output: StepOutput) -> Finish | None:
        """The engine's own end, unless it only ended because it was asked for one token."""
        if output.finish_reason is None:
            return None
        if output.finish_reason is FinishReason.ABORT:
            raise EngineFailed("the engine aborted the request by itself")
        if running.job.kind is JobKind.PREFILL and output.finish_reason is FinishReason.LENGTH:
            return None
        return Finish(reason=output.finish_reason, stop_reason=output.stop_reason)

    def _facts(self, running: _Running, now_s: float) -> EngineFacts:
        counted = self._engine.facts(running.job.key)
        first_s = running.first_output_s if running.first_output_s is not None else now_s
        started_s = counted.started_s if counted.started_s is not None else first_s
        return EngineFacts(
            cached_tokens=counted.cached_tokens,
            computed_prompt_tokens=counted.computed_prompt_tokens,
            transferred_bytes=counted.transferred_bytes,
            queue_s=max(started_s - running.submitted_s, 0.0),
            prefill_s=max(first_s - started_s, 0.0),
            transfer_s=counted.transfer_s,
            decode_s=max(now_s - first_s, 0.0),
        )

    def _remember_source(self, running: _Running) -> None:
        self._handed_over[running.request_id] = (running.job.key, running.reports)
        while len(self._handed_over) > _HANDED_OVER_MAX:
            self._handed_over.popitem(last=False)

    def _on_overdue(self, running: _Running) -> None:
        """The blocks did not come: the scheduler plans the request anew, without a transfer."""
        if running.cancelled or self._running.get(running.request_id) is not running:
            return
        self.cancel(running.request_id)
        why = f"blocks are missing {self._transfer_deadline_s:g} s after the first token"
        log.warning("kv_transfer_overdue", request_id=running.request_id, why=why)
        running.reports.failed(
            running.request_id, running.generation, JobFailure(kind="engine", message=why)
        )

    def _remove(self, running: _Running) -> None:
        if running.ready_timer is not None:
            running.ready_timer.cancel()
        if self._running.get(running.request_id) is running:
            del self._running[running.request_id]
        self._by_key.pop(running.job.key, None)

    def _on_ready(self, key: str, facts: JobFacts) -> None:
        running = self._by_key.get(key)
        if running is None or running.cancelled:
            return
        if running.ready_timer is not None:
            running.ready_timer.cancel()
        if facts.load_failed_reason:
            log.warning(
                "kv_transfer_failed",
                request_id=running.request_id,
                reason=facts.load_failed_reason,
                action="this node computes the missing part of the prompt itself",
            )
        running.reports.ready(running.request_id, running.generation, facts)
