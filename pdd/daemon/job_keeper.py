"""Jobs whose scheduler is gone, kept for the one that takes them over.

``held_jobs`` says how long and how much of them; here they are put there, shown, and given to
whoever claims them: what they have said first, one token per frame, then what is new.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import structlog

from pdd.connector.params import JobKind
from pdd.core.frames import Frame
from pdd.core.identity import RequestId
from pdd.core.ports import Clock
from pdd.daemon.held_jobs import HeldJobs, HoldLimits
from pdd.daemon.held_output import size_of
from pdd.daemon.running_job import JobFailure, JobReports, RunningJob
from pdd.engine.output_stream import OutputStream
from pdd.engine.port import Job
from pdd.rpc.v1 import cluster_pb2

log = structlog.get_logger(__name__)

_GIVEN_AT_ONCE_COUNT = 64
"""Frames of one held job that are made and sent before others have a turn."""
_GIVE_COUNT_MAX = 8
"""Held jobs that are given at once; others wait, so that what is to be sent stays little."""


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


class JobKeeper:
    """Beside ``NodeJobs``, which owns the jobs and ends them. All calls on the event loop."""

    def __init__(
        self,
        *,
        clock: Clock,
        limits: HoldLimits,
        running: Mapping[RequestId, RunningJob],
        handed_over: Mapping[RequestId, RunningJob],
        make_stream: Callable[[RequestId, Job], OutputStream],
        cancel: Callable[[RequestId], None],
        end: Callable[[RunningJob], None],
        tasks: set[asyncio.Task[None]],
        crashed: Callable[[Exception], None],
    ) -> None:
        """
        Args:
            running: jobs that have not ended.
            handed_over: prefill jobs whose blocks a peer may still fetch.
            make_stream: of an only choice.
            cancel: forget a request in whatever phase it is.
            end: let a job run no more, without a word.
            tasks: what the node waits for before it leaves.
            crashed: told what a bug raised.
        """
        self._clock = clock
        self._limits = limits
        self._running = running
        self._handed_over = handed_over
        self._make_stream = make_stream
        self._cancel = cancel
        self._end = end
        self._tasks = tasks
        self._crashed = crashed
        self._held: HeldJobs[RunningJob] = HeldJobs(limits, drop=self._held_too_long)
        self._nobody = JobReports(
            frame=self._on_held_frame, failed=self._on_held_failed, ready=lambda *_: None
        )
        self._give_slots = asyncio.Semaphore(_GIVE_COUNT_MAX)

    def __len__(self) -> int:
        return len(self._held)

    def request_ids(self) -> list[RequestId]:
        """Of all that is held, oldest first."""
        return [running.request_id for running in self._held.jobs()]

    def get(self, request_id: RequestId) -> RunningJob | None:
        """The job that is held for a request."""
        return self._held.get(request_id)

    def forget_cancelled(self, request_id: RequestId) -> None:
        """Nobody wants it any more. Idempotent."""
        held = self._held.get(request_id)
        if held is not None:
            held.cancelled = True
            self._held.forget(request_id)

    def scheduler_lost(self, reports: JobReports) -> None:
        """Hold what another scheduler can take over, forget the rest of what this one had asked
        for. Blocks that a peer may be fetching stay as long, and so does a first token that the
        client may have: the decode node may never have heard it."""
        sources = [running for running in self._handed_over.values() if running.reports is reports]
        for running in self._held.jobs():
            if running.reports is reports:  # it has ended, and perhaps was being told
                running.reports, running.giving = self._nobody, False
        for running in [one for one in self._running.values() if one.reports is reports]:
            is_prefill = running.job.kind is JobKind.PREFILL
            if self._handed_over.get(running.request_id) is running:
                continue  # it is about to end: one of the sources
            if running.keep is None or (is_prefill and not running.is_recorded):
                self._cancel(running.request_id)
                continue
            running.reports, running.giving = self._nobody, False
            self.hold(running)
            if not running.is_recorded:
                self.stop(running, "several choices are computed anew")
            elif is_prefill:
                self.stop(running, "its prompt is computed anew")
            elif running.job.kind is JobKind.DECODE and running.first_tokens is None:
                self.stop(running, "its first token never came")
        for running in sources:
            if running.keep is None:
                self._cancel(running.request_id)
            elif running.is_recorded:
                running.reports, running.giving = self._nobody, False
                running.stop_reason = "another node was to go on after the first token"
                self.hold(running)
        kept = [running for running in sources if running.keep is not None]
        if kept:
            asyncio.get_running_loop().call_later(self._limits.grace_s, self._forget_sources, kept)

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
            self.hold(running)
        running.reports, running.home, running.giving = reports, reports.home, True
        give = asyncio.create_task(self._give(running, reports, first_token_index))
        self._tasks.add(give)
        give.add_done_callback(self._gave)

    def hold(self, running: RunningJob) -> None:
        """From now on, as long as the limits allow."""
        self._held.hold(
            running.request_id,
            running,
            # A prefill job's word is second to that of the decode node, which has more of it.
            has_ended=running.output.last is not None or running.job.kind is JobKind.PREFILL,
            prompt_token_count=len(running.job.prompt_token_ids),
            output_size=running.output.size,
        )

    def stop(self, running: RunningJob, why: str) -> None:
        """End the job; what it has said is held on."""
        log.warning("held_job_stopped", request_id=running.request_id, why=why)
        running.stop_reason = why
        self._end(running)

    def _on_held_frame(self, frame: Frame, _generation: int) -> None:
        """Nobody is there to be told; it is in the job's output already."""
        running = self._held.get(frame.request_id)
        if running is None or frame.finish is not None:
            return
        size = size_of(frame.token_ids, frame.logprobs)
        if not self._held.grew(frame.request_id, len(frame.token_ids), size=size):
            self.stop(running, "it has said all that this node holds for nobody")

    def _on_held_failed(self, request_id: RequestId, _generation: int, failure: JobFailure) -> None:
        running = self._held.get(request_id)
        if running is not None:
            running.stop_reason = failure.message

    def _held_too_long(self, request_id: RequestId) -> None:
        if request_id in self._running:
            log.warning(
                "held_job_cancelled",
                request_id=request_id,
                why=f"no scheduler has claimed it within {self._limits.grace_s:g} s",
            )
            self._cancel(request_id)
        else:
            self._held.forget(request_id)

    def _forget_sources(self, sources: list[RunningJob]) -> None:
        for running in sources:
            if self._handed_over.get(running.request_id) is running:
                self._cancel(running.request_id)

    async def _give(self, running: RunningJob, reports: JobReports, first_token_index: int) -> None:
        async with self._give_slots:
            await self._tell_all(running, reports, first_token_index)

    async def _tell_all(
        self, running: RunningJob, reports: JobReports, first_token_index: int
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
            self._crashed(error)
