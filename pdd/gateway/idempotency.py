"""``Idempotency-Key``: a request that is sent again joins the one that runs or ran already.

A keyed request belongs to this table, not to its client: whoever sends it again with the same key
and the same body is told everything from the start, then follows. ::

    Answer ──┐                     ┌── Inference
    Answer ──┼── KeyedRun (a sink) ┘
    ...      ┘   records and passes on

What is kept, and for how long:

* A run whose clients have all left goes on for ``linger_s``, for one of them to come back; then it
  is cancelled like any other. (A request without a key is cancelled at once.)
* A run that has ended well is kept for ``age_s``. At ``ENDED_RUN_COUNT_MAX`` of them, or
  ``ENDED_TOKEN_COUNT_MAX`` tokens together, the oldest are forgotten: the same key runs anew then.
* A run that failed is forgotten at once: sending it again is what the key is for.
"""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from pdd.core.errors import InvalidRequest, PddError, RequestFailed
from pdd.core.frames import Frame
from pdd.core.ports import Clock, Inference, Sink
from pdd.core.requests import Ended, Plan
from pdd.gateway.http_request import HttpRequest
from pdd.gateway.job import Job
from pdd.gateway.joining import joined
from pdd.gateway.json_text import shorten
from pdd.gateway.open_requests import stopping_error

MAX_KEY_CHARS = 255
ENDED_RUN_COUNT_MAX = 1000
ENDED_TOKEN_COUNT_MAX = 1_000_000
"""Counts prompt and output tokens and log probabilities; some 50 to 100 bytes each."""

_Name = tuple[str, str, str]
"""Endpoint, tenant, key."""


class KeyedRuns:
    """The table of one process. Keys are apart for each endpoint and tenant."""

    def __init__(
        self, *, inference: Inference, clock: Clock, age_s: float, linger_s: float
    ) -> None:
        self._inference = inference
        self._clock = clock
        self._age_s = age_s
        self._linger_s = linger_s
        self._runs: dict[_Name, KeyedRun] = {}
        self._ended: OrderedDict[_Name, float] = OrderedDict()  # and when, oldest first
        self._ended_token_count = 0

    def __len__(self) -> int:
        return len(self._runs)

    def join(
        self,
        key: str,
        http: HttpRequest,
        *,
        tenant: str,
        prepare: Callable[[], Awaitable[Job]],
    ) -> "KeyedRun":
        """The run of this key; begun with ``prepare`` if there is none.

        Raises:
            InvalidRequest: the key is known, for a request with another body.
        """
        self._forget_old()
        name = http.path, tenant, key
        digest = hashlib.blake2b(http.body, digest_size=16).digest()
        run = self._runs.get(name)
        if run is None:
            run = KeyedRun(
                digest,
                inference=self._inference,
                linger_s=self._linger_s,
                over=lambda over: self._over(name, over),
            )
            self._runs[name] = run
            run.begin(prepare)
        elif run.digest != digest:
            raise InvalidRequest(
                f"idempotency-key {shorten(key)} was used for a request with another body within "
                f"the last {self._age_s:g} s; use a new key for a new request",
                field="idempotency-key",
                code="idempotency_key_reused",
            )
        return run

    def close(self) -> None:
        """The process stops: nobody can come back any more."""
        for run in list(self._runs.values()):
            run.close(stopping_error())

    def _over(self, name: _Name, run: "KeyedRun") -> None:
        if not run.ended_well:
            del self._runs[name]
            return
        self._ended[name] = self._clock()
        self._ended_token_count += run.token_count
        self._forget_old()

    def _forget_old(self) -> None:
        now_s = self._clock()
        while self._ended:
            name, ended_s = next(iter(self._ended.items()))
            if (
                now_s - ended_s < self._age_s
                and len(self._ended) <= ENDED_RUN_COUNT_MAX
                and self._ended_token_count <= ENDED_TOKEN_COUNT_MAX
            ):
                return
            del self._ended[name]
            self._ended_token_count -= self._runs.pop(name).token_count


class KeyedRun:
    """One run, its record and who listens. Implements ``Sink``."""

    def __init__(
        self,
        digest: bytes,
        *,
        inference: Inference,
        linger_s: float,
        over: Callable[["KeyedRun"], None],
    ) -> None:
        """``over`` is called once, when the run has ended in whatever way."""
        self.digest = digest
        self.token_count = 0
        self._inference = inference
        self._linger_s = linger_s
        self._over = over
        self._job: asyncio.Future[Job] = asyncio.get_running_loop().create_future()
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._listeners: dict[Sink, None] = {}
        self._waiting_count = 0
        self._plan: Plan | None = None
        self._frames: list[Frame] = []
        self._end: Ended | None = None
        self._error: PddError | None = None
        self._is_over = False

    @property
    def ended_well(self) -> bool:
        return self._end is not None

    def begin(self, prepare: Callable[[], Awaitable[Job]]) -> None:
        """Prepare and start; not in a client's task, for that client may leave."""
        self._task = asyncio.create_task(self._prepare(prepare))

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

    def listen(self, sink: Sink) -> None:
        """Tell a sink all that was said, then what will be."""
        self._stop_timer()
        self._listeners[sink] = None
        if self._plan is not None:
            sink.planned(self._plan)
        if self._frames:
            self._frames = [whole] if (whole := joined(self._frames)) is not None else []
            sink.tokens(self._frames[0])
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

    def close(self, error: PddError) -> None:
        """Cancel what runs. Who still waits in ``job`` is told ``error``: a cancellation would end
        its task without a word to its client."""
        self._stop_timer()
        if self._is_over:
            return
        if self._task is not None:
            self._task.cancel()
        if self._job.done():
            self._inference.cancel(self._job.result().request.request_id)
        else:
            self._refuse(error)
        self._finish()

    # --- Sink --------------------------------------------------------------------------------

    def planned(self, plan: Plan) -> None:
        self._plan = plan
        for sink in list(self._listeners):
            sink.planned(plan)

    def tokens(self, frame: Frame) -> None:
        self._frames.append(frame)
        self.token_count += len(frame.token_ids) + sum(1 + len(one.top) for one in frame.logprobs)
        for sink in list(self._listeners):
            sink.tokens(frame)

    def ended(self, ended: Ended) -> None:
        self._end = ended
        self._frames = [whole] if (whole := joined(self._frames)) is not None else []
        for sink in self._finish():
            sink.ended(ended)

    def failed(self, error: PddError) -> None:
        self._error = error
        for sink in self._finish():
            sink.failed(error)

    # --- helpers -----------------------------------------------------------------------------

    async def _prepare(self, prepare: Callable[[], Awaitable[Job]]) -> None:
        try:
            job = await prepare()
        except Exception as error:
            self._task = None
            self._refuse(error)
            self._finish()
            return
        self._task = None
        self.token_count += len(job.request.prompt_token_ids)
        self._job.set_result(job)
        try:
            self._inference.start(job.request, self)
        except Exception as error:  # a bug in the scheduler, which ends the process soon
            self.failed(RequestFailed(f"the scheduler failed: {error}"))
            raise

    def _refuse(self, error: Exception) -> None:
        self._job.set_exception(error)
        self._job.exception()  # its client may have left; asyncio would warn otherwise

    def _finish(self) -> list[Sink]:
        """Close the run; who has listened to it."""
        self._is_over = True
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
        self.close(RequestFailed(f"no client came back within {self._linger_s:g} s"))

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def idempotency_key(http: HttpRequest) -> str | None:
    """The request's key; None if it has none.

    Raises:
        InvalidRequest: it is empty, too long, or has other characters than printable ASCII.
    """
    key = http.header(b"idempotency-key")
    if key is None:
        return None
    if not 0 < len(key) <= MAX_KEY_CHARS or not key.isascii() or not key.isprintable():
        raise InvalidRequest(
            f"idempotency-key {shorten(key)} must have 1 to {MAX_KEY_CHARS} printable ASCII "
            "characters",
            field="idempotency-key",
            code="invalid_idempotency_key",
        )
    return key
