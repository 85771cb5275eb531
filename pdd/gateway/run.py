"""One run of a request that does not belong to one client: its record, and who listens.

::

    Answer    ──┐                    ┌── Inference
    Answer    ──┼── Run (a sink)   ──┘
    GrpcInbox ──┘   records and passes on

Any number may listen at once: each is told everything from the start, and then follows. A run that
nobody listens to goes on for ``linger_s``, for somebody to come back, and is cancelled then.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import chain, repeat

from pdd.core.errors import PddError, RequestFailed
from pdd.core.frames import Frame
from pdd.core.identity import RequestId
from pdd.core.ports import Inference, Sink
from pdd.core.requests import Ended, Plan
from pdd.gateway.event_ids import check_told
from pdd.gateway.job import Job
from pdd.gateway.record import Record

FRAMES_MAX = 8192
"""That a sink that tells others is told one by one: fewer than an outbox holds. At the bound the
oldest are told as one; a client that has seen only some of those is told to name another event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunName:
    """Whose run it is: endpoint, tenant, the client's key, and a digest of what it asked for.

    ``key``: empty for a run that was taken over and never had one.
    """

    path: str
    tenant: str
    key: str
    digest: bytes


class Run:
    """Implements ``Sink``."""

    def __init__(
        self,
        name: RunName,
        request_id: RequestId,
        *,
        inference: Inference,
        linger_s: float,
        over: Callable[["Run"], None],
    ) -> None:
        """``over`` is called once, when the run has ended in whatever way."""
        self.name = name
        self.request_id = request_id
        self.end_reason = ""
        self._inference = inference
        self._linger_s = linger_s
        self._over = over
        self._job: asyncio.Future[Job] = asyncio.get_running_loop().create_future()
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._listeners: dict[Sink, None] = {}
        self._waiting_count = 0
        self._prompt_token_count = 0
        self._plan: Plan | None = None
        self._records = [Record(request_id)]
        self._end: Ended | None = None
        self._error: PddError | None = None
        self._is_over = False
        self._is_retold = False
        self._is_known = False
        """It is told again from its beginning, of which the records have some."""
        self.holder = ""
        """The other scheduler that has it; empty: this one."""
        self.is_adrift = False
        """That scheduler was lost; nobody has it until ``go_on``, or until it is over."""

    @property
    def is_mirror(self) -> bool:
        """Another scheduler has it."""
        return bool(self.holder)

    @property
    def ended_well(self) -> bool:
        """It can be told again."""
        return self._end is not None

    @property
    def size(self) -> int:
        """Tokens, those of the prompt too, and log probabilities that are kept."""
        return self._prompt_token_count + sum(record.size for record in self._records)

    @property
    def token_counts(self) -> list[int]:
        """Output tokens of each choice so far."""
        return [record.token_count for record in self._records]

    def begin(self, prepare: Callable[[], Awaitable[Job]]) -> None:
        """Prepare and start; not in a client's task, for that client may leave."""
        self._task = asyncio.create_task(self._prepare(prepare))

    def take_over(self, job: Job) -> None:
        """It runs already, on a node that will tell it all of it."""
        self._learn(job)
        self._job.set_result(job)
        self._is_retold = True
        self._linger_if_alone()

    def set_adrift(self) -> None:
        """The scheduler that has it was lost."""
        self.is_adrift = not self._is_over

    def go_on(self, inference: Inference, *, linger_s: float) -> None:
        """It was adrift and is this scheduler's own now: it is told again from its beginning."""
        self.is_adrift = False
        self.holder = ""
        self._is_known = True
        self._inference = inference
        self._linger_s = linger_s

    async def job(self) -> Job:
        """What was asked for, once it is checked.

        Raises:
            PddError: what is wrong with it.
        """
        self._stop_timer()
        self._waiting_count += 1
        try:
            return await asyncio.shield(self._job)
        finally:
            self._waiting_count -= 1
            self._linger_if_alone()

    def listen(self, sink: Sink, *, cuts: Sequence[int] = (), as_it_came: bool = False) -> None:
        """Tell a sink all that was said, then what will be.

        ``cuts``: of each choice, a token index at which the sink wants one frame to end and the
        next one to begin; empty for none. ``as_it_came``: in the frames that it came in, for a
        sink that tells others, who have other cuts.

        Raises:
            InvalidRequest: a cut is behind all that was ever said. (A run that was taken over may
                have said more to its first scheduler: its sinks find out as they are told.)
        """
        if self._is_over or not self._is_retold:
            counts = [record.token_count for record in self._records]
            check_told(counts, cuts, what="what was told")
        self._stop_timer()
        self._listeners[sink] = None
        if self._plan is not None:
            sink.planned(self._plan)
        newest = FRAMES_MAX // len(self._records)
        for record, cut in zip(self._records, chain(cuts, repeat(0)), strict=False):
            parts = record.frames(cut, newest_count=newest) if as_it_came else record.parts(cut)
            for frame in parts:
                if sink in self._listeners:
                    sink.tokens(frame)
        if sink not in self._listeners:
            return  # it has left at something that it was told
        if self._end is not None:
            del self._listeners[sink]
            sink.ended(self._end)
        elif self._error is not None:
            del self._listeners[sink]
            sink.failed(self._error)

    def leave(self, sink: Sink) -> None:
        """A sink wants to hear no more. Idempotent."""
        self._listeners.pop(sink, None)
        self._linger_if_alone()

    def abandon(self, error: PddError) -> None:
        """The process stops, and another one may go on with it: do not cancel what runs."""
        if self._job.done() and not self._is_over:
            for sink in self._finish(str(error)):
                sink.failed(error)
        else:
            self.close(error)

    def close(self, error: PddError) -> None:
        """Cancel what runs, and tell ``error`` to who listens. So is who still waits in ``job``: a
        cancellation would end its task without a word to its client."""
        self._stop_timer()
        if self._is_over:
            return
        if self._task is not None:
            self._task.cancel()
        if self._job.done():
            self._inference.cancel(self.request_id)
        else:
            self._refuse(error)
        for sink in self._finish(str(error)):
            sink.failed(error)

    # --- Sink --------------------------------------------------------------------------------

    def planned(self, plan: Plan) -> None:
        is_first = self._plan is None
        self._plan = plan
        if self._is_known and not is_first:
            return
        for sink in list(self._listeners):
            sink.planned(plan)

    def tokens(self, frame: Frame) -> None:
        record = self._records[frame.choice_index]
        if self._is_known and record.has(frame):
            return
        record.add(frame)
        for sink in list(self._listeners):
            sink.tokens(frame)

    def token(
        self, request_id: RequestId, index: int, token_id: int, text_offset: int, text: str
    ) -> None:
        record = self._records[0]
        if self._is_known and index < record.token_count:
            return
        record.add_token(index, token_id, text_offset, text)
        for sink in list(self._listeners):
            sink.token(request_id, index, token_id, text_offset, text)

    def ended(self, ended: Ended) -> None:
        self._end = ended
        for record in self._records:
            record.compact()
        for sink in self._finish(""):
            sink.ended(ended)

    def failed(self, error: PddError) -> None:
        self._error = error
        for sink in self._finish(f"it has failed: {error}"):
            sink.failed(error)

    # --- helpers -----------------------------------------------------------------------------

    async def _prepare(self, prepare: Callable[[], Awaitable[Job]]) -> None:
        try:
            job = await prepare()
        except Exception as error:
            self._task = None
            self._refuse(error)
            self._finish(f"it was refused: {error}")
            return
        self._task = None
        self._learn(job)
        self._job.set_result(job)
        try:
            self._inference.start(job.request, self)
        except Exception as error:  # a bug in the scheduler, which ends the process soon
            self.failed(RequestFailed(f"the scheduler failed: {error}"))
            raise

    def _learn(self, job: Job) -> None:
        self._prompt_token_count = len(job.request.prompt_token_ids)
        self._records = [
            Record(self.request_id, choice_index=index) for index in range(job.request.choice_count)
        ]

    def _refuse(self, error: Exception) -> None:
        self._job.set_exception(error)
        self._job.exception()  # its client may have left; asyncio would warn otherwise

    def _finish(self, reason: str) -> list[Sink]:
        """Close the run; who has listened to it."""
        self._is_over = True
        self.is_adrift = False
        self.end_reason = reason
        self._stop_timer()
        listeners = list(self._listeners)
        self._listeners.clear()
        self._over(self)
        return listeners

    def _linger_if_alone(self) -> None:
        if self._is_over or self._listeners or self._waiting_count or self._timer is not None:
            return
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._linger_s, self._given_up)

    def _given_up(self) -> None:
        self.close(
            RequestFailed(f"it was cancelled: no client came back within {self._linger_s:g} s")
        )

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
