"""One client's connection: bytes in, turns out, one answer after the other.

Requests that come while another is being answered (pipelining) wait their turn, within bounds.
The connection is read all the time, so that a client that leaves is noticed in every phase.

A client that closes its sending side (half-closed) has left: on the wire that looks like a client
that was closed, and its request must not hold blocks until somebody tries to write to it.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol, cast

import structlog

from pdd.gateway.http_reader import HttpReader, Phase
from pdd.gateway.http_request import HttpFault, HttpRequest
from pdd.gateway.settings import GatewaySettings
from pdd.gateway.turn import Exchange, Turn

log = structlog.get_logger(__name__)

WAITING_REQUEST_COUNT_MAX = 16
"""Requests sent ahead on one connection. At the bound, or when together they hold more than one
body may, what follows is refused, and the connection is closed after the answers."""

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class FrontDoor(Protocol):
    """Who answers, as a connection sees it."""

    settings: GatewaySettings
    stopping: bool

    def opened(self, connection: "HttpConnection") -> None:
        """A client has connected."""
        ...

    def closed(self, connection: "HttpConnection") -> None:
        """It is gone."""
        ...

    def turn(self, connection: "HttpConnection", request: HttpRequest) -> Turn:
        """The means to answer a request."""
        ...

    def begin(self, turn: Turn) -> Exchange | None:
        """Answer a request. None when that is done already."""
        ...

    def refused(self, fault: HttpFault) -> None:
        """A fault is about to be told to a client; to be counted."""
        ...


class HttpConnection(asyncio.Protocol):
    """See ``turn.Wire`` for what those who answer may call."""

    # Slots: with hundreds of streams, what a token costs is mostly how much memory it touches.
    __slots__ = (
        "_busy",
        "_closing",
        "_exchange",
        "_fault",
        "_front",
        "_reader",
        "_settings",
        "_timed_phase",
        "_timer",
        "_transport",
        "_turn_count",
        "_waiting",
        "_waiting_bytes",
        "write",
        "write_paused",
    )

    def __init__(self, front: FrontDoor) -> None:
        self._front = front
        settings = front.settings
        self._settings = settings
        self._reader = HttpReader(
            self, max_head_bytes=settings.max_head_bytes, max_body_bytes=settings.max_body_bytes
        )
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[HttpRequest] = deque()
        self._waiting_bytes = 0
        self._fault: tuple[HttpFault, HttpRequest | None] | None = None
        self._busy = False
        self._turn_count = 0
        self._exchange: Exchange | None = None
        self._closing = False
        self._timer: asyncio.TimerHandle | None = None
        self._timed_phase: Phase | None = None
        self.write: Callable[[bytes], None] = _nowhere
        self.write_paused = False

    # --- from the transport ------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.write = self._transport.write
        self._transport.set_write_buffer_limits(high=self._settings.write_buffer_bytes)
        self._front.opened(self)
        self._watch()

    def data_received(self, data: bytes) -> None:
        if not self._closing:
            self._reader.feed(data)
            self._watch()

    def eof_received(self) -> None:
        """Half-closed is gone; what was written already is still sent."""
        self._forget_requests()
        self._close_soon()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._stop_timer()
        self._forget_requests()
        self._transport = None
        self.write = _nowhere
        self._front.closed(self)

    def pause_writing(self) -> None:
        self.write_paused = True
        if self._exchange is not None:
            self._exchange.paused()

    def resume_writing(self) -> None:
        self.write_paused = False
        if self._exchange is not None:
            self._exchange.resumed()

    # --- from the reader ---------------------------------------------------------------------
    #
    # An answer that was given at once may have closed the connection; what came in the same piece
    # behind its request is read to the end, and thrown away like what comes later.

    def head_arrived(self, request: HttpRequest) -> None:
        if request.wants_continue and not self._busy and not self._closing:
            self.write(_CONTINUE)

    def request_arrived(self, request: HttpRequest) -> None:
        if self._closing:
            return
        if not self._busy:
            self._begin(request)
            return
        self._waiting_bytes += len(request.body)
        if (
            len(self._waiting) >= WAITING_REQUEST_COUNT_MAX
            or self._waiting_bytes > self._settings.max_body_bytes
        ):
            self._reader.give_up(
                HttpFault(
                    status=400,
                    code="too_many_pipelined_requests",
                    message=f"{len(self._waiting)} requests wait on this connection already; "
                    "wait for an answer, or open another connection",
                )
            )
            return
        self._waiting.append(request)

    def fault_arrived(self, fault: HttpFault, request: HttpRequest | None) -> None:
        if self._closing:
            return
        self._fault = fault, request
        if not self._busy:
            self._tell_fault()

    # --- for who answers ---------------------------------------------------------------------

    @property
    def unsent_bytes(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def extra_info(self, name: str) -> object:
        """What the transport knows: ``peername``, ``ssl_object``..."""
        return None if self._transport is None else self._transport.get_extra_info(name)

    def turn_over(self, *, keep_alive: bool) -> None:
        self._busy = False
        self._exchange = None
        if self._closing:
            return
        if not keep_alive or self._front.stopping:
            self._close_soon()
        elif self._waiting:
            request = self._waiting.popleft()
            self._waiting_bytes -= len(request.body)
            self._begin(request)
        elif self._fault is not None:
            self._tell_fault()
        else:
            arriving = self._reader.arriving
            if arriving is not None and arriving.wants_continue:
                self.write(_CONTINUE)
            self._watch()

    def abort(self) -> None:
        self._closing = True
        if self._transport is not None:
            self._transport.abort()

    def close_if_idle(self) -> None:
        """The server stops: no further request will be answered here."""
        if not self._busy:
            self._close_soon()

    # --- turns -------------------------------------------------------------------------------

    def _begin(self, request: HttpRequest) -> None:
        self._busy = True
        self._turn_count += 1
        number = self._turn_count
        exchange = self._front.begin(self._front.turn(self, request))
        # It may have been answered at once, and the one after it be in hand by now.
        if self._busy and number == self._turn_count:
            self._exchange = exchange

    def _tell_fault(self) -> None:
        assert self._fault is not None
        fault, request = self._fault
        self._front.refused(fault)
        self._busy = True
        unread = HttpRequest(method="GET", target="", path="") if request is None else request
        turn = self._front.turn(self, unread)
        turn.keep_alive = False
        turn.respond_fault(fault)

    def _forget_requests(self) -> None:
        self._waiting.clear()
        self._fault = None
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.client_left()

    def _close_soon(self) -> None:
        """Send what is there, read and forget what still comes, then close.

        Closed at once with unread bytes, the kernel would reset the connection, and the client
        might never see the answer.
        """
        if self._closing or self._transport is None:
            return
        self._closing = True
        self._stop_timer()
        if self._reader.phase is Phase.NOTHING or not self._transport.can_write_eof():
            self._transport.close()
        else:
            self._transport.write_eof()
        self._linger(self.unsent_bytes)

    def _linger(self, unsent_bytes: int) -> None:
        """As long as the client takes something, it may; then ``linger_s`` for what it sends."""
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._settings.linger_s, self._lingered, unsent_bytes)

    def _lingered(self, unsent_bytes: int) -> None:
        if 0 < self.unsent_bytes < unsent_bytes:
            self._linger(self.unsent_bytes)
        else:
            self.abort()

    # --- time --------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Put a bound on what is waited for; the same one until it has come."""
        phase = None if self._busy or self._closing else self._reader.phase
        if phase is self._timed_phase or self._closing:
            return
        self._stop_timer()
        self._timed_phase = phase
        if phase is None:
            return
        timeout_s = {
            Phase.NOTHING: self._settings.keepalive_timeout_s,
            Phase.HEAD: self._settings.head_timeout_s,
            Phase.BODY: self._settings.body_timeout_s,
        }.get(phase)
        if timeout_s is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(timeout_s, self._timed_out, timeout_s)

    def _stop_timer(self) -> None:
        self._timed_phase = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _timed_out(self, timeout_s: float) -> None:
        if self._reader.phase is Phase.NOTHING:
            self._close_soon()
            return
        what = "headers" if self._reader.phase is Phase.HEAD else "body"
        self._reader.give_up(
            HttpFault(
                status=408,
                code=f"{'head' if what == 'headers' else what}_timeout",
                message=f"the {what} did not arrive within {timeout_s:g} s",
            )
        )


def _nowhere(_data: bytes) -> None:
    """Writes to a client that is gone."""
