"""A plain TCP connection whose reads come with the time at which the kernel had them.

As small as a client of ``bench`` needs it: asyncio's own transports hide what ``recvmsg`` tells.
"""

import asyncio
import socket
from typing import Protocol

from pdd.bench.arrival_clock import ANCILLARY_BYTES, ArrivalClock

_READ_BYTES = 64 << 10


class Arrivals(Protocol):
    """Who reads."""

    def data_arrived(self, data: bytes, at_s: float) -> None:
        """Bytes, and when the last of them came."""
        ...

    def connection_lost(self, exc: Exception | None) -> None:
        """Once, at the end; None: either side has closed it."""
        ...


class StampedTransport:
    """One connected socket, its own from here on.

    Writes are not bounded here: a client writes one request, and the next one when it was answered.
    """

    def __init__(self, sock: socket.socket, reader: Arrivals, arrivals: ArrivalClock) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket = sock
        self._reader = reader
        self._arrivals = arrivals
        self._unsent = b""
        self._is_waiting = False  # for room to send
        self._is_closed = False
        self._loop.add_reader(sock, self._read)

    def write(self, data: bytes) -> None:
        """Send it, now or when there is room."""
        if self._is_closed:
            return
        self._unsent += data
        self._send()

    def abort(self) -> None:
        """Close it; ``connection_lost`` comes later. Idempotent."""
        self._end(None)

    def _send(self) -> None:
        try:
            sent = self._socket.send(self._unsent)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self._end(error)
            return
        self._unsent = self._unsent[sent:]
        if self._unsent and not self._is_waiting:
            self._loop.add_writer(self._socket, self._send)
        elif not self._unsent and self._is_waiting:
            self._loop.remove_writer(self._socket)
        self._is_waiting = bool(self._unsent)

    def _read(self) -> None:
        try:
            data, ancillary, _, _ = self._socket.recvmsg(_READ_BYTES, ANCILLARY_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._end(error)
            return
        if not data:
            self._end(None)
            return
        try:
            self._reader.data_arrived(data, self._arrivals.arrival_s(ancillary))
        except BaseException:
            self.abort()  # a bug, which the loop tells of; nobody shall wait for this connection
            raise

    def _end(self, error: Exception | None) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._loop.remove_reader(self._socket)
        if self._is_waiting:
            self._loop.remove_writer(self._socket)
        self._socket.close()
        self._loop.call_soon(self._reader.connection_lost, error)
