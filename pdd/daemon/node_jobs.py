"""The jobs of one node: from a scheduler's submit to its last frame.

One task per job. The same code serves every engine and every kind of job; kinds differ only in
where the first token comes from and in whether another node goes on afterwards. Each job ends
with exactly one of: a frame with a finish, a failure, or silence after a cancellation.

A job whose scheduler is lost goes on if another one could take it over (``keep``): see
``held_jobs`` for how long, and ``claim`` for how it is given.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import structlog
from tokenizers import Tokenizer

from pdd.connector.params import JobKind
from pdd.core.errors import InvalidRequest
from pdd.core.frames import EngineFacts, Finish, FinishReason, Frame, TokenLogprobs
from pdd.core.identity import RequestId
from pdd.core.ports import Clock
from pdd.daemon.held_jobs import HeldJobs, HoldLimits
from pdd.daemon.held_output import HeldOutput, size_of
from pdd.engine.output_stream import OutputStream
from pdd.engine.port import Engine, EngineFailed, Job, JobFacts, StepOutput
from pdd.rpc.v1 import cluster_pb2

log = structlog.get_logger(__name__)

_HANDED_OVER_MAX = 8192
"""Prefill jobs whose blocks may still be held for a peer: from the handover until the scheduler
cancels them, which it does when the decode node is ready or gone. Beyond the bound the oldest are
forgotten here, and their blocks come back by the transfer's own deadline."""

_GIVEN_AT_ONCE_COUNT = 64
"""Frames of one held job that are made and sent before others have a turn."""
_GIVE_COUNT_MAX = 8
"""Held jobs that are given at once; others wait, so that what is to be sent stays little."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFailure:
    """``kind``: invalid (the client's fault), engine, deadline, or stopped (given back through no
    fault)."""

    kind: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReports:
    """Where a job's news go. Called on the event loop, never blocking.

    ``home``: names the scheduler, and which life of it. ``sent``: waits until what was said is on
    its way; for who has much to say at once.
    """

    frame: Callable[[Frame, int], None]
    failed: Callable[[RequestId, int, JobFailure], None]
    ready: Callable[[RequestId, int, JobFacts], None]
    home: str = ""
    sent: Callable[[], Awaitable[None]] = lambda: asyncio.sleep(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldJob:
    """A job whose scheduler is gone. ``home``: that scheduler. Ages in seconds; None: not yet."""

    submit: cluster_pb2.Submit
    first_token: cluster_pb2.FirstToken | None
    home: str
    is_running: bool
    output_token_count: int
    age_s: float
    first_token_age_s: float | None
    ready_age_s: float | None
    ended_age_s: float | None


@dataclass(slots=True)
class _Running:
    """``open``: choices that have not ended here, each with its output. ``kept_count``: a prefill
    job's choices that another node goes on with.

    ``keep``: what another scheduler needs to take it over; None: it ends with its own.
    ``is_recorded``: what it says is kept in ``output`` for that; of several choices only the
    request is, and all is computed anew. ``giving``: a claim is being obeyed; what is new is in
    ``output`` and is given in its turn. ``stop_reason``: why it does not run any more, though it
    has not ended.
    """

    request_id: RequestId
    generation: int
    job: Job
    open: dict[int, OutputStream]
    reports: JobReports
    submitted_s: float
    task: asyncio.Task[None] | None = None
    first_tokens: dict[int, int] | None = None
    kept_count: int = 0
    first_output_s: float | None = None
    ready_timer: asyncio.TimerHandle | None = None
    cancelled: bool = field(default=False)
    home: str = ""
    keep: cluster_pb2.Submit | None = None
    is_recorded: bool = False
    first_token: cluster_pb2.FirstToken | None = None
    output: HeldOutput = field(default_factory=HeldOutput)
    first_token_s: float | None = None
    ready_s: float | None = None
    ended_s: float | None = None
    giving: bool = False
    stop_reason: str = ""


class NodeJobs:
    """All jobs that run on this node, for every scheduler."""

    def __init__(
        self,
        *,
        engine: Engine,
        tokenizer: Tokenizer,
        clock: Clock,
        transfer_deadline_s: float,
        hold_limits: HoldLimits | None = None,
    ) -> None:
        """``transfer_deadline_s``: how long after the first token blocks may still be missing."""
        self._engine = engine
        self._tokenizer = tokenizer
        self._clock = clock
        self._transfer_deadline_s = transfer_deadline_s
        self._running: dict[RequestId, _Running] = {}
        self._by_key: dict[str, _Running] = {}
        self._handed_over: OrderedDict[RequestId, _Running] = OrderedDict()
        self._hold_limits = hold_limits or HoldLimits()
        self._held: HeldJobs[_Running] = HeldJobs(self._hold_limits, drop=self._held_too_long)
        self._nobody = JobReports(
            frame=self._on_held_frame, failed=self._on_held_failed, ready=lambda *_: None
        )
        self._give_slots = asyncio.Semaphore(_GIVE_COUNT_MAX)
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

    @property
    def held_count(self) -> int:
        """Jobs whose scheduler is gone, and those that have just ended."""
        return len(self._held)

    def submit(
        self,
        request_id: RequestId,
        generation: int,
        job: Job,
        reports: JobReports,
        *,
        keep: cluster_pb2.Submit | None = None,
        emitted_logprobs: Sequence[TokenLogprobs] = (),
    ) -> None:
        """Start a job. A generation that is not newer than the running one is ignored.

        ``keep``: the job may be taken over by another scheduler, which is told this.
        """
        former = self._running.get(request_id)
        if former is not None and former.generation >= generation:
            return
        self.cancel(request_id)  # what an older generation runs or has handed over
        running = _Running(
            request_id=request_id,
            generation=generation,
            job=job,
            open={
                choice.index: self._make_stream(request_id, job, choice.index)
                for choice in job.choices
            },
            reports=reports,
            submitted_s=self._clock(),
            home=reports.home,
            keep=keep,
            is_recorded=keep is not None and not keep.choices,
        )
        if running.is_recorded:
            running.output.add(job.choices[0].emitted_token_ids, emitted_logprobs)
        self._running[request_id] = running
        self._by_key[job.key] = running
        running.task = asyncio.create_task(self._run(running), name=f"job {job.key}")
        self._tasks.add(running.task)
        running.task.add_done_callback(self._tasks.discard)

    def first_tokens(
        self,
        request_id: RequestId,
        generation: int,
        token_ids: Mapping[int, int],
        *,
        keep: cluster_pb2.FirstToken | None = None,
        logprobs: Sequence[TokenLogprobs] = (),
    ) -> None:
        """Output token 0 of a decode job's choices; those left out have ended. Ignored if the job
        is gone.

        ``keep``: as in ``submit``. ``logprobs``: of the token of an only choice.
        """
        running = self._running.get(request_id)
        if running is None or running.generation != generation:
            return
        running.first_tokens = dict(token_ids)
        running.open = {index: one for index, one in running.open.items() if index in token_ids}
        running.first_token, running.first_token_s = keep, self._clock()
        if running.is_recorded:
            running.output.add([*token_ids.values()], logprobs)
        self._engine.first_tokens(running.job.key, token_ids)
        running.ready_timer = asyncio.get_running_loop().call_later(
            self._transfer_deadline_s, self._on_overdue, running
        )

    def cancel(self, request_id: RequestId) -> None:
        """Forget a request in whatever phase it is. Idempotent; its blocks follow at once."""
        source = self._handed_over.pop(request_id, None)
        if source is not None:
            self._engine.drop_source(source.job.key, "the scheduler needs it no longer")
        held = self._held.get(request_id)
        if held is not None:
            held.cancelled = True
            self._held.forget(request_id)
        running = self._running.get(request_id)
        if running is None:
            return
        running.cancelled = True
        self._remove(running)
        assert running.task is not None
        running.task.cancel()

    def cancel_all(self) -> None:
        """Forget everything."""
        held = [running.request_id for running in self._held.jobs()]
        for request_id in (*self._running, *self._handed_over, *held):
            self.cancel(request_id)

    # --- when a scheduler is lost --------------------------------------------------------------

    def scheduler_lost(self, reports: JobReports) -> None:
        """Hold what another scheduler can take over, forget the rest of what this one had asked
        for. Blocks that a peer may be fetching stay as long."""
        sources = [running for running in self._handed_over.values() if running.reports is reports]
        for running in self._held.jobs():
            if running.reports is reports:  # it has ended, and perhaps was being told
                running.reports, running.giving = self._nobody, False
        for running in [one for one in self._running.values() if one.reports is reports]:
            if running.keep is None or running.job.kind is JobKind.PREFILL:
                self.cancel(running.request_id)
                continue
            running.reports, running.giving = self._nobody, False
            self._hold(running)
            if not running.is_recorded:
                self._stop_held(running, "several choices are computed anew")
            elif running.job.kind is JobKind.DECODE and running.first_tokens is None:
                self._stop_held(running, "its first token never came")
        for running in sources:
            if running.keep is None:
                self.cancel(running.request_id)
        kept = [running for running in sources if running.keep is not None]
        if kept:
            asyncio.get_running_loop().call_later(
                self._hold_limits.grace_s, self._forget_sources, kept
            )

    def home_of(self, request_id: RequestId) -> str | None:
        """Which scheduler has the request's output; None: nothing of it is here."""
        running = self._running.get(request_id) or self._held.get(request_id)
        return None if running is None else running.home

    def orphan_count(self, homes: Collection[str]) -> int:
        """Held requests of schedulers that are not among ``homes``."""
        return sum(running.home not in homes for running in self._held.jobs())

    def held(self) -> list[HeldJob]:
        """What can be claimed, oldest first."""
        now_s = self._clock()

        def age_s(since_s: float | None) -> float | None:
            return None if since_s is None else max(now_s - since_s, 0.0)

        return [
            HeldJob(
                submit=running.keep,
                first_token=running.first_token,
                home=running.home,
                is_running=self._running.get(running.request_id) is running,
                output_token_count=len(running.output.token_ids),
                age_s=max(now_s - running.submitted_s, 0.0),
                first_token_age_s=age_s(running.first_token_s),
                ready_age_s=age_s(running.ready_s),
                ended_age_s=age_s(running.ended_s),
            )
            for running in self._held.jobs()
            if running.keep is not None
        ]

    def claim(
        self, request_id: RequestId, generation: int, reports: JobReports, *, first_token_index: int
    ) -> None:
        """Give a held job's output from a token on, one token per frame, then go on for these
        reports. A job that is not held (any more) ends with a failure."""
        running = self._held.get(request_id)
        if running is None or running.generation != generation or running.cancelled:
            failure = JobFailure(kind="stopped", message="this node does not hold it any more")
            reports.failed(request_id, generation, failure)
            return
        if self._running.get(request_id) is running:
            self._held.forget(request_id)
        else:  # what it has said is held until it has been told, and then as long as before
            self._hold(running)
        running.reports, running.home, running.giving = reports, reports.home, True
        give = asyncio.create_task(self._give(running, reports, first_token_index))
        self._tasks.add(give)
        give.add_done_callback(self._gave)

    async def drained(self) -> None:
        """Wait until every task has ended, cancelled ones included."""
        if self._tasks:
            await asyncio.wait(list(self._tasks))

    async def wait_crashed(self) -> None:
        """Raises what a bug raised inside a job; the daemon ends with it."""
        await self._crashed.wait()
        assert self._crash is not None
        raise self._crash

    def _make_stream(self, request_id: RequestId, job: Job, choice_index: int = 0) -> OutputStream:
        return OutputStream(
            request_id=request_id,
            prompt_token_ids=job.prompt_token_ids,
            sampling=job.sampling,
            tokenizer=self._tokenizer,
            choice_index=choice_index,
        )

    def _hold(self, running: _Running) -> None:
        self._held.hold(
            running.request_id,
            running,
            has_ended=running.output.last is not None,
            prompt_token_count=len(running.job.prompt_token_ids),
            output_size=running.output.size,
        )

    def _on_held_frame(self, frame: Frame, _generation: int) -> None:
        """Nobody is there to be told; it is in the job's output already."""
        running = self._held.get(frame.request_id)
        if running is None or frame.finish is not None:
            return
        size = size_of(frame.token_ids, frame.logprobs)
        if not self._held.grew(frame.request_id, len(frame.token_ids), size=size):
            self._stop_held(running, "it has said all that this node holds for nobody")

    def _on_held_failed(self, request_id: RequestId, _generation: int, failure: JobFailure) -> None:
        running = self._held.get(request_id)
        if running is not None:
            running.stop_reason = failure.message

    def _stop_held(self, running: _Running, why: str) -> None:
        """End the job; what it has said is held on."""
        log.warning("held_job_stopped", request_id=running.request_id, why=why)
        running.stop_reason = why
        self._remove(running)
        assert running.task is not None
        running.task.cancel()

    def _held_too_long(self, request_id: RequestId) -> None:
        if request_id in self._running:
            log.warning(
                "held_job_cancelled",
                request_id=request_id,
                why=f"no scheduler has claimed it within {self._hold_limits.grace_s:g} s",
            )
            self.cancel(request_id)
        else:
            self._held.forget(request_id)

    def _forget_sources(self, sources: list[_Running]) -> None:
        for running in sources:
            if self._handed_over.get(running.request_id) is running:
                self.cancel(running.request_id)

    async def _give(self, running: _Running, reports: JobReports, first_token_index: int) -> None:
        async with self._give_slots:
            await self._tell_all(running, reports, first_token_index)

    async def _tell_all(
        self, running: _Running, reports: JobReports, first_token_index: int
    ) -> None:
        for count, frame in enumerate(
            running.output.frames(lambda: self._make_stream(running.request_id, running.job)),
            start=1,
        ):
            if running.cancelled or running.reports is not reports:
                return  # cancelled, or claimed once more
            if frame.first_token_index >= first_token_index or frame.finish is not None:
                reports.frame(frame, running.generation)
            if count % _GIVEN_AT_ONCE_COUNT == 0:
                await reports.sent()
                await asyncio.sleep(0)  # a stream that has broken keeps nobody waiting
        if running.cancelled or running.reports is not reports:
            return
        running.giving = False
        if self._running.get(running.request_id) is running or running.output.last is not None:
            return  # it goes on, or has told its end
        self._held.forget(running.request_id)
        failure = JobFailure(kind="stopped", message=running.stop_reason)
        reports.failed(running.request_id, running.generation, failure)

    def _gave(self, give: asyncio.Task[None]) -> None:
        self._tasks.discard(give)
        if not give.cancelled() and (error := give.exception()) is not None:
            assert isinstance(error, Exception)
            self._crash = error
            self._crashed.set()

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
        if running.keep is not None and running.output.last is not None and not running.cancelled:
            self._hold(running)  # its scheduler may be lost before its client has the end
        if failure is not None and running.giving:
            running.stop_reason = failure.message
        elif failure is not None and not running.cancelled:
            log.warning(
                "job_failed", request_id=running.request_id, kind=failure.kind, why=failure.message
            )
            running.reports.failed(running.request_id, running.generation, failure)

    async def _generate(self, running: _Running) -> None:
        job = running.job
        for choice in job.choices:
            self._replay(running.open[choice.index], choice.emitted_token_ids)
        outputs = self._engine.run(job)
        try:
            async for output in outputs:
                if running.stop_reason or self._show(running, output):
                    return
            raise EngineFailed("the engine gave up the request without saying why")
        finally:
            await outputs.aclose()

    def _replay(self, stream: OutputStream, token_ids: tuple[int, ...]) -> None:
        try:
            stream.replay(token_ids)
        except ValueError as error:  # another process's word, so no bug of this one
            raise EngineFailed(str(error)) from error

    def _show(self, running: _Running, output: StepOutput) -> bool:
        """Send a step's frame; True when the job is over."""
        now_s = self._clock()
        stream = running.open.get(output.choice_index)
        if stream is None:
            return False  # a step further than the stop string that ended it
        if running.first_output_s is None:
            running.first_output_s = now_s
            if running.first_token_s is None:
                running.first_token_s = now_s
        if running.job.kind is JobKind.DECODE:
            assert running.first_tokens is not None, "decode went on without a first token"
            first_token_id = running.first_tokens.pop(output.choice_index, None)
            if first_token_id is not None:
                self._replay(stream, (first_token_id,))
        frame = stream.push(output.token_ids, output.logprobs, self._engine_finish(running, output))
        finish = frame.finish
        if finish is None and running.job.kind is JobKind.PREFILL:
            finish = Finish(reason=FinishReason.HANDOVER)
            running.kept_count += 1
        if finish is not None:
            del running.open[output.choice_index]
            if stream.must_abort and running.open:  # else the whole job is closed
                self._engine.stop_choice(running.job.key, output.choice_index)
            if running.job.kind is JobKind.PREFILL and not running.open:
                self._end_prefill(running)
            facts = self._facts(running, now_s)
            frame = replace(frame, finish=replace(finish, facts=facts))
        if running.is_recorded:
            running.output.add(frame.token_ids, frame.logprobs)
            if finish is not None and running.job.kind is not JobKind.PREFILL:
                running.output.last, running.ended_s = frame, now_s
        if not running.cancelled and not running.giving:
            running.reports.frame(frame, running.generation)
        return not running.open

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
            forked_prompt_tokens=counted.forked_prompt_tokens,
            transferred_bytes=counted.transferred_bytes,
            queue_s=max(started_s - running.submitted_s, 0.0),
            prefill_s=max(first_s - started_s, 0.0),
            transfer_s=counted.transfer_s,
            decode_s=max(now_s - first_s, 0.0),
        )

    def _end_prefill(self, running: _Running) -> None:
        """The first tokens of all choices are there: a peer fetches the blocks, or nobody does."""
        if not running.kept_count:
            self._engine.drop_source(running.job.key, "the first token ended the output")
            return
        self._handed_over[running.request_id] = running
        while len(self._handed_over) > _HANDED_OVER_MAX:
            self._handed_over.popitem(last=False)

    def _on_overdue(self, running: _Running) -> None:
        """The blocks did not come: the scheduler plans the request anew, without a transfer."""
        if running.cancelled or self._running.get(running.request_id) is not running:
            return
        why = f"blocks are missing {self._transfer_deadline_s:g} s after the first token"
        if self._held.get(running.request_id) is running:
            self._stop_held(running, why)
            return
        self.cancel(running.request_id)
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
        running.ready_s = self._clock()
        if facts.load_failed_reason:
            log.warning(
                "kv_transfer_failed",
                request_id=running.request_id,
                reason=facts.load_failed_reason,
                action="this node computes the missing part of the prompt itself",
            )
        running.reports.ready(running.request_id, running.generation, facts)
