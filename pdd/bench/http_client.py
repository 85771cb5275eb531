"""HTTP/1.1 on raw transports: httptools reads, prebuilt bytes are written.

Without TLS the time of what is read is the kernel's (``arrival_clock``), with TLS that of the read.

One ``Exchange`` at a time per connection; connections are kept alive and used again, the most
recently used first. Nothing here waits: answers come as a call of ``Exchange.on_end``.
"""

import asyncio
import json
import socket
import ssl
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import httptools

from pdd.bench.arrival_clock import ArrivalClock
from pdd.bench.stamped_transport import StampedTransport
from pdd.bench.target import Target
from pdd.bench.token_events import TokenEvents

_BODY_BYTES_MAX = 8 << 20
"""Bytes kept of an answer that is no stream; the rest is thrown away and its JSON is then bad."""


class Exchange:
    """One request and its answer.

    ``fault``: "" or the class of what broke: ``connect``, ``disconnected``, ``timeout``,
    ``bad_http``; a status other than 200 is no fault of the exchange.
    """

    __slots__ = (
        "body",
        "content_type",
        "detail",
        "end_s",
        "fault",
        "key",
        "on_end",
        "reader",
        "request",
        "request_id",
        "retried",
        "sent_s",
        "start_s",
        "status",
    )

    def __init__(
        self,
        *,
        request: bytes,
        key: Any,
        start_s: float,
        on_end: Callable[["Exchange"], None],
        keep_texts: bool = False,
    ) -> None:
        self.request = request
        self.key = key
        self.start_s = start_s
        self.on_end = on_end
        self.reader = TokenEvents(keep_texts=keep_texts)
        self.status = 0
        self.content_type = b""
        self.request_id = ""
        self.body = b""
        self.sent_s = start_s
        self.end_s = 0.0
        self.fault = ""
        self.detail = ""
        self.retried = False

    @property
    def is_stream(self) -> bool:
        return self.status == 200 and self.content_type.startswith(b"text/event-stream")

    def document(self) -> Any:
        """The JSON body; None if it is none."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None


class ConnectionPool:
    """At most ``connections_max`` connections to one target.

    Bound: a request beyond it waits its turn, and its clock runs; ``waited_count`` counts them.
    """

    def __init__(self, target: Target, *, connections_max: int, clock: Callable[[], float]) -> None:
        self._target = target
        self._clock = clock
        self._connections_max = connections_max
        self._idle: list[_Connection] = []
        self._busy: set[_Connection] = set()
        self._connecting: dict[asyncio.Task[None], Exchange] = {}
        self._waiting: deque[Exchange] = deque()
        self._ssl = ssl.create_default_context() if target.tls else None
        self._address = target.host
        self._family = socket.AF_INET
        self.arrivals = ArrivalClock(clock)
        self.waited_count = 0
        self._failure: BaseException | None = None

    def raise_failure(self) -> None:
        """Raise what went wrong on our own side while connecting: a bug, which ends the run."""
        if self._failure is not None:
            raise self._failure

    async def resolve(self) -> None:
        """Look the host up once; every connection then goes to that address.

        Raises:
            OSError: it is unknown.
        """
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(
            self._target.host, self._target.port, type=socket.SOCK_STREAM
        )
        self._family, self._address = found[0][0], str(found[0][4][0])
        if self._ssl is None:
            self.arrivals.open()

    def send(self, exchange: Exchange) -> None:
        """Start it on an idle connection, a new one, or when one becomes free."""
        if self._idle:
            self._idle.pop().begin(exchange)
        elif len(self._busy) + len(self._connecting) < self._connections_max:
            self._connect(exchange)
        else:
            self.waited_count += 1
            self._waiting.append(exchange)

    def end_overdue(self, *, timeout_s: float) -> None:
        """Give up exchanges that began more than ``timeout_s`` ago."""
        before_s = self._clock() - timeout_s
        self._give_up(lambda exchange: exchange.start_s < before_s, "timeout", f"{timeout_s:g} s")

    def end_all(self, fault: str) -> None:
        """Give up everything that is open."""
        self._give_up(lambda _: True, fault, "")

    def close(self) -> None:
        """Drop idle connections; call it when nothing is open."""
        for connection in self._idle:
            connection.drop()
        self._idle.clear()
        self.arrivals.close()

    def _give_up(self, is_over: Callable[[Exchange], bool], fault: str, detail: str) -> None:
        for task, exchange in list(self._connecting.items()):
            if is_over(exchange):
                task.cancel()
                del self._connecting[task]
                self.finish(exchange, fault, detail)
        for connection in list(self._busy):
            if connection.exchange is not None and is_over(connection.exchange):
                connection.give_up(fault, detail)
        for exchange in [one for one in self._waiting if is_over(one)]:
            self._waiting.remove(exchange)
            self.finish(exchange, fault, detail)

    # --- called by connections ---------------------------------------------------------------

    def began(self, connection: "_Connection") -> None:
        self._busy.add(connection)

    def free(self, connection: "_Connection", *, reusable: bool) -> None:
        """A connection's exchange is over."""
        self._busy.discard(connection)
        if not reusable:
            connection.drop()
        elif self._waiting:
            connection.begin(self._waiting.popleft())
            return
        else:
            self._idle.append(connection)
            return
        self.next_waiting()

    def lost(self, connection: "_Connection") -> None:
        """It is closed, and had no exchange."""
        self._busy.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def again(self, exchange: Exchange) -> None:
        """The server had closed a connection that was idle as we wrote to it: once more."""
        exchange.retried = True
        self._connect(exchange)

    def finish(
        self, exchange: Exchange, fault: str = "", detail: str = "", *, end_s: float | None = None
    ) -> None:
        """``end_s``: when its last byte was read; now, if it is not given."""
        exchange.end_s = self._clock() if end_s is None else end_s
        exchange.fault, exchange.detail = fault, detail
        exchange.on_end(exchange)

    # --- connecting --------------------------------------------------------------------------

    def next_waiting(self) -> None:
        """There is room for one more connection."""
        if self._waiting and len(self._busy) + len(self._connecting) < self._connections_max:
            self._connect(self._waiting.popleft())

    def _connect(self, exchange: Exchange) -> None:
        task = asyncio.get_running_loop().create_task(self._open(exchange))
        self._connecting[task] = exchange
        task.add_done_callback(lambda done: self._connected(done, exchange))

    async def _open(self, exchange: Exchange) -> None:
        connection = _Connection(self, self._clock)
        if self._ssl is None:
            await self._open_plain(connection)
        else:
            await asyncio.get_running_loop().create_connection(
                lambda: connection,
                self._address,
                self._target.port,
                ssl=self._ssl,
                server_hostname=self._target.host,
            )
        connection.begin(exchange)

    async def _open_plain(self, connection: "_Connection") -> None:
        sock = socket.socket(self._family, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.arrivals.arm(sock)
            await asyncio.get_running_loop().sock_connect(sock, (self._address, self._target.port))
        except BaseException:
            sock.close()
            raise
        connection.connected(StampedTransport(sock, connection, self.arrivals))

    def _connected(self, task: asyncio.Task[None], exchange: Exchange) -> None:
        if self._connecting.pop(task, None) is None or task.cancelled():
            return  # given up
        error = task.exception()
        if isinstance(error, OSError):  # ssl.SSLError is one
            self.finish(exchange, "connect", str(error))
            self.next_waiting()
        elif error is not None and self._failure is None:
            self._failure = error


class _Transport(Protocol):
    """What a connection needs of its socket."""

    def write(self, data: bytes) -> None:
        """Send it, now or later."""
        ...

    def abort(self) -> None:
        """Close it at once."""
        ...


class _Connection(asyncio.Protocol):
    def __init__(self, pool: ConnectionPool, clock: Callable[[], float]) -> None:
        self._pool = pool
        self._clock = clock
        self._transport: _Transport | None = None
        self._parser: Any = None
        self._used = False
        self._now_s = 0.0
        self._feed: Callable[[bytes, float], None] | None = None
        self._complete = False
        self._reusable = False
        self.exchange: Exchange | None = None

    def begin(self, exchange: Exchange) -> None:
        """Write the request."""
        assert self.exchange is None
        assert self._transport is not None
        self.exchange = exchange
        self._parser = httptools.HttpResponseParser(self)
        self._feed = None
        self._complete = False
        self._pool.began(self)
        if not exchange.retried:
            exchange.sent_s = self._clock()
        self._transport.write(exchange.request)

    def give_up(self, fault: str, detail: str) -> None:
        """End the exchange and the connection."""
        exchange, self.exchange = self.exchange, None
        assert exchange is not None
        self._pool.free(self, reusable=False)
        self._pool.finish(exchange, fault, detail)

    def drop(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # --- asyncio.Protocol --------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # a stream's always is one

    def data_received(self, data: bytes) -> None:
        self.data_arrived(data, self._pool.arrivals.arrival_s(()))

    # --- StampedTransport --------------------------------------------------------------------

    def connected(self, transport: StampedTransport) -> None:
        """Instead of ``connection_made``."""
        self._transport = transport

    def data_arrived(self, data: bytes, at_s: float) -> None:
        """Bytes, and when they came."""
        if self.exchange is None:
            return  # given up, or the server talks unasked
        self._now_s = at_s
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            if self.exchange is not None:
                self.give_up("bad_http", str(error))
            return
        if self._complete:
            self._finish()

    def connection_lost(self, exc: Exception | None) -> None:
        exchange, self.exchange = self.exchange, None
        self._pool.lost(self)
        if exchange is None:
            return
        if exchange.status == 0 and self._used and not exchange.retried:
            self._pool.again(exchange)
        elif _is_whole(exchange):
            self._pool.finish(exchange)  # the server ends its answers by closing
        else:
            self._pool.finish(exchange, "disconnected", "" if exc is None else str(exc))
        self._pool.next_waiting()

    # --- httptools ---------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        exchange = self.exchange
        if exchange is None:
            return
        lowered = name.lower()
        if lowered == b"content-type":
            exchange.content_type = value.lower()
        elif lowered == b"x-pdd-request-id" or (
            lowered == b"x-request-id" and not exchange.request_id
        ):
            exchange.request_id = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        exchange = self.exchange
        if exchange is not None:
            exchange.status = self._parser.get_status_code()
            if exchange.is_stream:
                self._feed = exchange.reader.feed

    def on_body(self, body: bytes) -> None:
        if self._feed is not None:
            self._feed(body, self._now_s)
        elif self.exchange is not None and len(self.exchange.body) < _BODY_BYTES_MAX:
            self.exchange.body += body

    def on_message_complete(self) -> None:
        # Informational answers (100 Continue) are complete messages as well.
        self._complete = self.exchange is not None and self.exchange.status >= 200
        self._reusable = bool(self._parser.should_keep_alive())

    def _finish(self) -> None:
        exchange, self.exchange = self.exchange, None
        if exchange is None:
            return
        self._used = True
        # First the connection, then the exchange: whoever hears of its end may send the next one.
        self._pool.free(self, reusable=self._reusable)
        self._pool.finish(exchange, end_s=self._now_s)


def _is_whole(exchange: Exchange) -> bool:
    """Whether an answer without a stated length is all there."""
    if exchange.is_stream:
        return exchange.reader.done
    return exchange.status == 200 and exchange.document() is not None
