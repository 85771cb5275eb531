"""The daemon's end of the links to its engine's worker halves, one connection per rank.

The socket is abstract (no file to leave behind), accepts only processes of the same user, and
only those that know the secret which the daemon passed to its own engine.
"""

import asyncio
import os
import secrets
import socket
import struct
from collections.abc import Callable
from typing import cast

import structlog

from pdd.connector.link_messages import Decoder, Hello, LinkError, LinkMessage, encode

log = structlog.get_logger(__name__)

_BUFFER_BYTES_MAX = 16 << 20
"""Messages to a rank that does not read. At the bound the link is cut and the engine ends."""


class LinkServer:
    """``on_message(rank, message)`` is called on the event loop, in order per rank."""

    def __init__(self, *, rank_count: int, on_message: Callable[[int, LinkMessage], None]) -> None:
        self.socket_name = f"pdd-link-{os.getpid()}-{secrets.token_hex(8)}"
        self.secret = secrets.token_hex(32)
        self._rank_count = rank_count
        self._on_message = on_message
        self._connections: dict[int, _Connection] = {}
        self._open: set[_Connection] = set()
        self._hellos: dict[int, Hello] = {}
        self._all_here: asyncio.Future[list[Hello]] = asyncio.get_running_loop().create_future()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen. Must run before the engine's processes start."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.bind("\0" + self.socket_name)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(lambda: _Connection(self), sock=sock)

    async def hellos(self) -> list[Hello]:
        """What every rank said first, by rank; waits until all are connected."""
        return await asyncio.shield(self._all_here)

    def send(self, rank: int, message: LinkMessage) -> None:
        """Send to one rank; dropped if it is gone (the engine is then ending anyway)."""
        connection = self._connections.get(rank)
        if connection is not None:
            connection.write(encode(message))

    def send_all(self, message: LinkMessage) -> None:
        """Send to every rank."""
        for rank in self._connections:
            self.send(rank, message)

    def close(self) -> None:
        """Stop listening and cut all links."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._open):
            connection.close()
        self._connections.clear()

    def opened(self, connection: "_Connection") -> None:
        """Somebody has connected; not known yet who."""
        self._open.add(connection)

    def lost(self, connection: "_Connection") -> None:
        """A connection has ended."""
        self._open.discard(connection)

    def admit(self, hello: Hello, connection: "_Connection") -> None:
        """A first message has come in. Raises LinkError for a stranger."""
        if not secrets.compare_digest(hello.secret.encode(), self.secret.encode()):
            raise LinkError("wrong secret")
        if not 0 <= hello.rank < self._rank_count or hello.rank in self._hellos:
            raise LinkError(f"unexpected rank {hello.rank} of {self._rank_count}")
        self._connections[hello.rank] = connection
        self._hellos[hello.rank] = hello
        if len(self._hellos) == self._rank_count and not self._all_here.done():
            self._all_here.set_result([self._hellos[rank] for rank in range(self._rank_count)])

    def dispatch(self, rank: int, message: LinkMessage) -> None:
        """A later message."""
        self._on_message(rank, message)


class _Connection(asyncio.Protocol):
    def __init__(self, server: LinkServer) -> None:
        self._server = server
        self._decoder = Decoder()
        self._rank: int | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast(asyncio.Transport, transport)  # uvloop's does not inherit from it
        sock = transport.get_extra_info("socket")
        credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        _pid, uid, _gid = struct.unpack("3i", credentials)
        if uid != os.getuid():
            log.warning("link_cut", rank=None, reason=f"a process of user {uid} has connected")
            stream.abort()
            return
        self._transport = stream
        self._server.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.lost(self)

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._decoder.feed(data):
                if self._rank is not None:
                    self._server.dispatch(self._rank, message)
                elif isinstance(message, Hello):
                    self._server.admit(message, self)
                    self._rank = message.rank
                else:
                    raise LinkError(f"{type(message).__name__} before Hello")  # noqa: TRY301
        except LinkError as error:
            log.warning("link_cut", rank=self._rank, reason=str(error))
            self.close()

    def write(self, frame: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if (waiting_bytes := self._transport.get_write_buffer_size()) > _BUFFER_BYTES_MAX:
            reason = (
                f"{waiting_bytes} bytes wait for a rank that does not read, the limit is "
                f"{_BUFFER_BYTES_MAX}"
            )
            log.warning("link_cut", rank=self._rank, reason=reason)
            self._transport.abort()
            return
        self._transport.write(frame)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
