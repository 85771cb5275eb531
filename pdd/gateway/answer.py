"""Answering one inference request over HTTP, streaming or whole, and ending it exactly once.

It is the sink that the scheduler calls for every token, and the exchange that the connection
calls when the client leaves or does not keep up: no task, queue or future is between the node's
message and the client's socket.

::

    PREPARING ──► RUNNING ──► FLUSHING ──► OVER
     (a task)    (the sink)   (last bytes held back by a slow reader)

A request that fails before its headers have left gets a status and an error body. Afterwards it
gets one error event, and the stream closes without ``[DONE]``.
"""

import asyncio
from dataclasses import dataclass
from enum import StrEnum

import structlog

from pdd.core.errors import PddError
from pdd.core.frames import Frame, token_frame
from pdd.core.identity import RequestId
from pdd.core.ports import Clock, Inference
from pdd.core.requests import Ended, Plan
from pdd.gateway.errors import edge_of, error_body
from pdd.gateway.event_stream import EventStream
from pdd.gateway.metrics import GatewayMetrics
from pdd.gateway.open_requests import OpenRequests
from pdd.gateway.reply import Reply
from pdd.gateway.request_opening import Opening
from pdd.gateway.run import Run
from pdd.gateway.runs import Runs
from pdd.gateway.settings import GatewaySettings
from pdd.gateway.tenants import tenant_of
from pdd.gateway.text_flow import TextFlow
from pdd.gateway.turn import Turn
from pdd.gateway.usage import measured

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """What answering needs besides the request."""

    inference: Inference
    metrics: GatewayMetrics
    settings: GatewaySettings
    open_requests: OpenRequests
    runs: Runs
    clock: Clock


class _State(StrEnum):
    PREPARING = "preparing"
    RUNNING = "running"
    FLUSHING = "flushing"
    OVER = "over"


class Answer:
    """One request on its way. Implements ``Sink``, ``Exchange`` and ``Stoppable``."""

    __slots__ = (
        "_clock",
        "_ended",
        "_flow",
        "_header_timer",
        "_meter",
        "_opening",
        "_opening_shown",
        "_reply",
        "_run",
        "_seen_token_counts",
        "_serving",
        "_state",
        "_stream",
        "_task",
        "_turn",
    )

    def __init__(self, *, serving: Serving, turn: Turn, opening: Opening) -> None:
        self._serving = serving
        self._turn = turn
        self._opening = opening
        self._clock = serving.clock
        self._meter = serving.metrics.begin("http", now_s=serving.clock())
        self._state = _State.PREPARING
        self._task: asyncio.Task[None] | None = None
        self._header_timer: asyncio.TimerHandle | None = None
        self._run: Run | None = None
        self._seen_token_counts: tuple[int, ...] = ()
        self._reply: Reply | None = None
        self._stream: EventStream | None = None
        self._opening_shown = False
        self._flow: TextFlow | None = None
        self._ended: Ended | None = None

    def begin(self) -> None:
        """Read, check, tokenise and hand over to the scheduler."""
        try:
            self._serving.open_requests.add(self)
        except PddError as error:
            self._fail(error)
            return
        self._task = asyncio.create_task(self._prepare())

    async def _prepare(self) -> None:
        try:
            self._meter.tenant = tenant_of(self._turn.request)
            opened = await self._opening.open(self._turn, self._meter.tenant)
        except Exception as error:  # cancellation passes: who cancels has dealt with the rest
            self._task = None
            self._broke(error)
            return
        self._task = None
        job, self._reply, self._run = opened.job, opened.reply, opened.run
        self._seen_token_counts = opened.position.token_counts
        self._turn.is_about(job.request.request_id)
        if job.stream:
            self._stream = EventStream(
                self._turn,
                settings=self._serving.settings,
                done=self._finish,
                stalled=self._stalled,
            )
        self._state = _State.RUNNING
        try:
            if self._run is None:
                self._serving.inference.start(job.request, self)
            else:
                self._run.listen(self, cuts=opened.position.token_counts)
        except Exception as error:  # a position that was never told, or a bug
            self._broke(error)

    # --- Sink --------------------------------------------------------------------------------

    def planned(self, plan: Plan) -> None:
        self._meter.path = plan.path
        self._turn.headers["x-pdd-path"] = plan.path.value
        if self._stream is not None:
            self._header_timer = asyncio.get_running_loop().call_later(
                self._serving.settings.header_hold_s, self._headers_go_ahead
            )

    def tokens(self, frame: Frame) -> None:
        try:
            reply, stream = self._reply, self._stream
            assert reply is not None, "prepared"
            if stream is None:
                reply.collect(frame)
                self._meter.tokens(len(frame.token_ids), self._clock(), frame.choice_index)
                return
            # Headers may have gone ahead of the opening, and the opening of any text.
            if not stream.opened or not self._opening_shown:
                self._first_tokens(stream, reply, frame)
                return
            events = reply.event(frame)
            if not self._was_seen(frame):
                self._meter.tokens(len(frame.token_ids), self._clock(), frame.choice_index)
            if events:
                stream.send(events)
        except Exception as error:
            self._broke(error)

    def token(
        self, request_id: RequestId, index: int, token_id: int, text_offset: int, text: str
    ) -> None:
        flow = self._flow
        if flow is None:
            self.tokens(token_frame(request_id, index, token_id, text_offset, text))
            return
        try:
            flow.token(index, text_offset, text)
        except Exception as error:
            self._broke(error)

    def ended(self, ended: Ended) -> None:
        try:
            reply, stream = self._reply, self._stream
            assert reply is not None, "prepared"
            self._ended = ended
            if stream is None:
                document = reply.document(ended)
                self._close_books("finished")
                self._over()
                self._turn.respond(200, document)
                return
            opening = self._take_opening(reply)
            closing = reply.closing(ended)
            self._open(stream)
            self._state = _State.FLUSHING
            stream.finish(opening + closing)
        except Exception as error:
            self._broke(error)

    def failed(self, error: PddError) -> None:
        self._state = _State.FLUSHING
        self._fail(error)

    # --- Exchange ----------------------------------------------------------------------------

    def client_left(self) -> None:
        self._give_up("cancelled")

    def paused(self) -> None:
        """The stream asks the wire itself."""

    def resumed(self) -> None:
        if self._stream is not None:
            self._stream.resumed()

    # --- Stoppable ---------------------------------------------------------------------------

    def stop(self, error: PddError) -> None:
        if self._state is not _State.FLUSHING:  # else its end is on its way already
            self._broke(error)

    # --- the ways it can go ------------------------------------------------------------------

    def _first_tokens(self, stream: EventStream, reply: Reply, frame: Frame) -> None:
        """Headers, unless they went ahead, and the first events leave in one write."""
        events = self._take_opening(reply) + reply.event(frame)
        if not self._was_seen(frame):
            self._meter.tokens(len(frame.token_ids), self._clock(), frame.choice_index)
        if events:
            self._open(stream)
            stream.send(events)
            shared = reply.flow()
            if shared is not None:
                self._flow = TextFlow(shared, stream, meter=self._meter, clock=self._clock)

    def _was_seen(self, frame: Frame) -> bool:
        """By a client that continues the stream."""
        seen = self._seen_token_counts
        return bool(seen) and frame.first_token_index < seen[frame.choice_index]

    def _take_opening(self, reply: Reply) -> bytes:
        """The events before the first token, once; to be made before the first token's own."""
        if self._opening_shown:
            return b""
        self._opening_shown = True
        return reply.opening()

    def _open(self, stream: EventStream) -> None:
        self._stop_header_timer()
        if not stream.opened:
            stream.open()

    def _headers_go_ahead(self) -> None:
        """The first token takes long; from here on a failure is an event."""
        assert self._stream is not None, "only streams wait"
        self._open(self._stream)
        self._stream.flush_head()

    def _finish(self) -> None:
        """The last byte of a stream is on its way."""
        self._close_books("finished")
        self._over()
        self._turn.wire.turn_over(keep_alive=self._turn.keep_alive)

    def _fail(self, error: Exception) -> None:
        """Tell the client, in the way that is still open."""
        self._stop_header_timer()
        self._close_books(edge_of(error).outcome, error=error)
        stream = self._stream
        if stream is None or not stream.opened:
            self._over()
            self._turn.respond_error(error)
            return
        self._state = _State.FLUSHING
        assert self._reply is not None, "opened by a reply's event"
        stream.finish(self._reply.error(error_body(error)))

    def _broke(self, error: Exception) -> None:
        """Something here failed, not the scheduler: end it there too."""
        if self._state is _State.OVER:
            return
        if not isinstance(error, PddError):
            log.error("request_handler_failed", request_id=self._turn.request_id, exc_info=error)
        self._cancel()
        self._fail(error)

    def _stalled(self) -> None:
        self._give_up("stalled")
        self._turn.wire.abort()

    def _give_up(self, outcome: str) -> None:
        """Nobody is there to be told."""
        if self._state is _State.OVER:
            return
        self._cancel()
        self._close_books(outcome)
        self._over()

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None
        if self._run is not None:
            self._run.leave(self)
        elif self._state is _State.RUNNING:
            self._serving.inference.cancel(self._turn.request_id)

    def _over(self) -> None:
        self._state = _State.OVER
        self._stop_header_timer()
        if self._stream is not None:
            self._stream.close()
            self._stream = self._flow = None  # they know this; nothing shall wait for the collector
        self._serving.open_requests.discard(self)

    def _stop_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _close_books(self, outcome: str, *, error: Exception | None = None) -> None:
        if self._meter.ended:
            return  # the end was counted; telling it failed
        now_s = self._clock()
        usage = None if self._ended is None or error is not None else self._ended.usage
        self._meter.end(outcome, now_s=now_s, usage=usage)
        log.info(
            "request_finished",
            request_id=self._turn.request_id,
            client_request_id=self._turn.client_request_id,
            tenant=self._meter.tenant,
            outcome=outcome,
            path=self._turn.headers.get("x-pdd-path"),
            error=None if error is None else str(error),
            **measured(usage),
            completion_tokens=self._meter.token_count,
            ttft_s=self._meter.ttft_s,
            e2e_s=self._meter.age_s(now_s),
        )
