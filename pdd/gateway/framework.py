"""Everything but inference is answered by an aiohttp application, behind the same connection.

    HttpConnection -> FrameworkExchange -> aiohttp's protocol -> handler
         ^ bytes of the response ------------- write() ---'

The connection has read the request and knows where it ends. It is written out again for a fresh
aiohttp protocol whose transport is the exchange; that the protocol closes it means that the answer
is complete. So one port and one kept-alive connection serve both kinds, and aiohttp's idea of HTTP
(keep-alive, pipelining, time limits) plays no part.
"""

import asyncio
from typing import Any

import structlog
from aiohttp import web

from pdd.gateway.http_request import HttpFault, HttpRequest
from pdd.gateway.turn import Turn

log = structlog.get_logger(__name__)

# Between two neighbours only (RFC 9110, 7.6.1), or dealt with by the connection.
_HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"content-length",
        b"expect",
        b"http2-settings",
        b"keep-alive",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)


class Framework:
    """Runs the application. ``start`` before the first request, ``stop`` after the last."""

    def __init__(self, app: web.Application, *, max_head_bytes: int, shutdown_s: float) -> None:
        app.on_response_prepare.append(_prepare)
        self._runner = web.AppRunner(
            app,
            handler_cancellation=True,  # a client that leaves cancels its handler
            access_log=None,
            tcp_keepalive=False,
            shutdown_timeout=shutdown_s,
            # The connection has checked heads as a whole; here nothing shall be refused again.
            max_line_size=2 * max_head_bytes,
            max_field_size=2 * max_head_bytes,
            max_headers=256,
        )

    async def start(self) -> None:
        await self._runner.setup()

    async def stop(self) -> None:
        await self._runner.cleanup()

    def begin(self, turn: Turn) -> "FrameworkExchange":
        """Answer a request."""
        assert self._runner.server is not None, "started"
        exchange = FrameworkExchange(turn, self._runner.server())
        exchange.start()
        return exchange


class FrameworkExchange(asyncio.Transport):
    """The transport that aiohttp sees, for one request."""

    def __init__(self, turn: Turn, protocol: Any) -> None:
        super().__init__()
        self._turn = turn
        self._protocol = protocol
        self._prepared = False
        self._answered = False
        self._closing = False

    def start(self) -> None:
        self._protocol.connection_made(self)
        self._protocol.data_received(request_bytes(self._turn.request))

    def prepare(self, response: web.StreamResponse) -> None:
        """The last look at a response's headers before they are written."""
        self._prepared = True
        turn = self._turn
        response.headers.popall("Server", None)
        response.headers.popall("Connection", None)
        response.headers.update(turn.headers)
        if not turn.keep_alive:
            response.headers["Connection"] = "close"
        elif turn.request.is_http_1_0:
            turn.keep_alive = "Content-Length" in response.headers
            response.headers["Connection"] = "keep-alive" if turn.keep_alive else "close"

    # --- Exchange ----------------------------------------------------------------------------

    def client_left(self) -> None:
        self._closing = self._answered = True
        self._protocol.connection_lost(ConnectionResetError("the client closed the connection"))

    def paused(self) -> None:
        self._protocol.pause_writing()

    def resumed(self) -> None:
        self._protocol.resume_writing()

    # --- asyncio.Transport -------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._answered:
            return
        if self._prepared:
            self._turn.wire.write(bytes(data))
            return
        # aiohttp's own words, for a request that no handler has seen.
        self._answered = True
        self._turn.keep_alive = False
        status = int(bytes(data[9:12]))
        log.error("framework_refused_request", status=status, answer=bytes(data[:200]))
        self._turn.respond_fault(
            HttpFault(
                status=status, code="request_refused", message="this request was not understood"
            )
        )

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            asyncio.get_running_loop().call_soon(self._closed)

    def abort(self) -> None:
        self._turn.keep_alive = False
        self.close()

    def is_closing(self) -> bool:
        return self._closing

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        # Its socket is not this exchange's to set options on.
        return default if name == "socket" else self._turn.wire.extra_info(name) or default

    def get_write_buffer_size(self) -> int:
        return self._turn.wire.unsent_bytes

    def pause_reading(self) -> None:
        """The whole request was given; nothing more will be."""

    def resume_reading(self) -> None:
        """See ``pause_reading``."""

    def is_reading(self) -> bool:
        return True

    def _closed(self) -> None:
        if self._answered:
            return  # by a fault, or the client is gone
        self._answered = True
        self._protocol.connection_lost(None)
        if not self._prepared:  # the handler was cancelled: the server is stopping
            self._turn.wire.abort()
        self._turn.wire.turn_over(keep_alive=self._turn.keep_alive)


def request_bytes(request: HttpRequest) -> bytes:
    """The request as a client would send it that wants one answer and no more."""
    lines = [f"{request.method} {request.target} HTTP/1.1".encode("latin-1")]
    named: set[bytes] = set()
    for name, value in request.headers:
        if name not in _HOP_BY_HOP and not (name in _SINGLE and name in named):
            named.add(name)
            lines.append(name + b": " + value)
    if b"host" not in named:
        lines.append(b"host: localhost")
    if request.body:
        lines.append(b"content-length: %d" % len(request.body))
    lines.append(b"connection: close\r\n\r\n")
    return b"\r\n".join(lines) + request.body


# aiohttp refuses a request that has one of these twice; the first one counts.
_SINGLE = frozenset((b"content-type", b"host", b"user-agent", b"content-location", b"etag"))


async def _prepare(request: web.Request, response: web.StreamResponse) -> None:
    exchange = request.transport
    if isinstance(exchange, FrameworkExchange):
        exchange.prepare(response)
