"""The jobs of one node: from a scheduler's submit to its last frame.

One task per job. The same code serves every engine and every kind of job; kinds differ only in
where the first token comes from and in whether another node goes on afterwards. Each job ends
with exactly one of: a frame with a finish, a failure, or silence after a cancellation.

A job whose scheduler is lost goes on if another one could take it over (``keep``): see
``job_keeper``. What a running job does is in ``job_runner``.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence

import structlog
from tokenizers import Tokenizer

from pdd.connector.params import JobKind
from pdd.core.errors import InvalidRequest
from pdd.core.frames import TokenLogprobs
from pdd.core.identity import RequestId
from pdd.core.ports import Clock
from pdd.daemon.held_jobs import HoldLimits
from pdd.daemon.job_keeper import HeldJob, JobKeeper
from pdd.daemon.job_runner import JobRunner
from pdd.daemon.running_job import JobFailure, JobReports, RunningJob
from pdd.engine.port import Engine, EngineFailed, Job, JobFacts
from pdd.rpc.v1 import cluster_pb2

log = structlog.get_logger(__name__)

_HANDED_OVER_MAX = 8192
"""Prefill jobs whose blocks may still be held for a peer: from the handover until the scheduler
cancels them, which it does when the decode node is ready or gone. Beyond the bound the oldest are
forgotten here, and their blocks come back by the transfer's own deadline."""


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
        self._clock = clock
        self._transfer_deadline_s = transfer_deadline_s
        self._running: dict[RequestId, RunningJob] = {}
        self._by_key: dict[str, RunningJob] = {}
        self._handed_over: OrderedDict[RequestId, RunningJob] = OrderedDict()
        self._runner = JobRunner(
            engine=engine, tokenizer=tokenizer, clock=clock, prefilled=self._on_prefilled
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._keeper = JobKeeper(
            clock=clock,
            limits=hold_limits or HoldLimits(),
            running=self._running,
            handed_over=self._handed_over,
            make_stream=self._runner.make_stream,
            cancel=self.cancel,
            end=self._end,
            tasks=self._tasks,
            crashed=self._note_crash,
        )
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
        return len(self._keeper)

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
        running = RunningJob(
            request_id=request_id,
            generation=generation,
            job=job,
            open={
                choice.index: self._runner.make_stream(request_id, job, choice.index)
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
        self._keeper.forget_cancelled(request_id)
        running = self._running.get(request_id)
        if running is None:
            return
        running.cancelled = True
        self._end(running)

    def cancel_all(self) -> None:
        """Forget everything."""
        for request_id in (*self._running, *self._handed_over, *self._keeper.request_ids()):
            self.cancel(request_id)

    def scheduler_lost(self, reports: JobReports) -> None:
        """Hold what another scheduler can take over, forget the rest of what this one had asked
        for. Blocks that a peer may be fetching stay as long."""
        self._keeper.scheduler_lost(reports)

    def home_of(self, request_id: RequestId) -> str | None:
        """Which scheduler has the request's output; None: nothing of it is here."""
        running = self._running.get(request_id) or self._keeper.get(request_id)
        return None if running is None else running.home

    def orphan_count(self, homes: Collection[str]) -> int:
        """Held requests of schedulers that are not among ``homes``."""
        return self._keeper.orphan_count(homes)

    def held(self) -> list[HeldJob]:
        """What can be claimed, oldest first."""
        return self._keeper.held()

    def claim(
        self, request_id: RequestId, generation: int, reports: JobReports, *, first_token_index: int
    ) -> None:
        """See ``JobKeeper.claim``."""
        self._keeper.claim(request_id, generation, reports, first_token_index=first_token_index)

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

    async def _run(self, running: RunningJob) -> None:
        job = running.job
        failure: JobFailure | None = None
        try:
            async with asyncio.timeout(job.deadline_s):
                await self._runner.generate(running)
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
            self._note_crash(error)
        finally:
            self._remove(running)
            is_stopped = running.stop_reason and running.request_id not in self._handed_over
            if job.kind is JobKind.PREFILL and (running.cancelled or is_stopped):
                # The engine may have handed it over just before, in an output that nobody read.
                self._engine.drop_source(job.key, "the scheduler needs it no longer")
            self._engine.forget(job.key)
        if running.keep is not None and running.output.last is not None and not running.cancelled:
            self._keeper.hold(running)  # its scheduler may be lost before its client has the end
        if failure is not None and running.giving:
            running.stop_reason = failure.message
        elif failure is not None and not running.cancelled:
            log.warning(
                "job_failed", request_id=running.request_id, kind=failure.kind, why=failure.message
            )
            running.reports.failed(running.request_id, running.generation, failure)

    def _on_prefilled(self, running: RunningJob) -> None:
        """The first tokens of all choices are there: a peer fetches the blocks, or nobody does."""
        if not running.kept_count:
            self._engine.drop_source(running.job.key, "the first token ended the output")
            return
        self._handed_over[running.request_id] = running
        while len(self._handed_over) > _HANDED_OVER_MAX:
            self._handed_over.popitem(last=False)

    def _on_overdue(self, running: RunningJob) -> None:
        """The blocks did not come: the scheduler plans the request anew, without a transfer."""
        if running.cancelled or self._running.get(running.request_id) is not running:
            return
        why = f"blocks are missing {self._transfer_deadline_s:g} s after the first token"
        if self._keeper.get(running.request_id) is running:
            self._keeper.stop(running, why)
            return
        self.cancel(running.request_id)
        log.warning("kv_transfer_overdue", request_id=running.request_id, why=why)
        running.reports.failed(
            running.request_id, running.generation, JobFailure(kind="engine", message=why)
        )

    def _note_crash(self, error: Exception) -> None:
        self._crash = error
        self._crashed.set()

    def _end(self, running: RunningJob) -> None:
        self._remove(running)
        assert running.task is not None
        running.task.cancel()

    def _remove(self, running: RunningJob) -> None:
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
