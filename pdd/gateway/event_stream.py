"""The way out to one client of a stream: bounded in bytes and in patience.

::

    events ──► transport (write_buffer_bytes) ──► kernel ──► client
         └──► held back here (as much again) ──┘  while the transport is full

At the second bound, and when nothing at all was taken for ``write_stall_s``, the client is given
up: ``stalled`` is called, once.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from pdd.gateway import sse
from pdd.gateway.settings import GatewaySettings
from pdd.gateway.turn import LAST_CHUNK, Turn


class EventStream:
    """Server-sent events as the answer of one turn.

    ``wire``: where they go; nothing is held back here while it is not paused. ``is_chunked``: each
    event is a chunk of its own.
    """

    __slots__ = (
        "_done",
        "_finished",
        "_head",
        "_held",
        "_held_bytes",
        "_settings",
        "_stall_timer",
        "_stalled",
        "_turn",
        "is_chunked",
        "opened",
        "wire",
    )

    def __init__(
        self,
        turn: Turn,
        *,
        settings: GatewaySettings,
        done: Callable[[], None],
        stalled: Callable[[], None],
    ) -> None:
        """``done`` is called when the last byte was given to the transport."""
        self._turn = turn
        self.wire = turn.wire
        self._settings = settings
        self._done = done
        self._stalled = stalled
        self.is_chunked = not turn.request.is_http_1_0
        if not self.is_chunked:
            turn.keep_alive = False  # the end of the connection is the end of the answer
        self._head = b""
        self._held: deque[bytes] = deque()
        self._held_bytes = 0
        self._finished = False
        self._stall_timer: asyncio.TimerHandle | None = None
        self.opened = False

    def open(self) -> None:
        """The answer is 200 from here on. The head leaves with the first event."""
        self.opened = True
        headers = {**sse.HEADERS, **self._turn.headers}
        if self.is_chunked:
            headers["Transfer-Encoding"] = "chunked"
        self._head = self._turn.head(200, headers)

    def flush_head(self) -> None:
        """Send the head alone, because the first event takes long."""
        head, self._head = self._head, b""
        self.put(head)

    def send(self, events: bytes) -> None:
        """Send whole events."""
        data = b"%x\r\n%b\r\n" % (len(events), events) if self.is_chunked else events
        if self._head:
            data = self._head + data
            self._head = b""
        if self._held or self.wire.write_paused:
            self.put(data)
        else:
            self.wire.write(data)

    def finish(self, events: bytes) -> None:
        """Send the last events."""
        data = b"%x\r\n%b\r\n" % (len(events), events) + LAST_CHUNK if self.is_chunked else events
        head, self._head = self._head, b""
        self._finished = True
        self.put(head + data)
        if self._finished and not self._held:  # else later, or it was given up just now
            self._over()

    def close(self) -> None:
        """Nothing more will be sent."""
        self._held.clear()
        self._finished = False
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def resumed(self) -> None:
        """The transport has room."""
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
        while self._held and not self.wire.write_paused:
            data = self._held.popleft()
            self._held_bytes -= len(data)
            self.wire.write(data)
        if self._held:
            self._watch(self.wire.unsent_bytes)
        elif self._finished:
            self._over()

    def put(self, data: bytes) -> None:
        """Send bytes that are framed already."""
        if not self._held and not self.wire.write_paused:
            self.wire.write(data)
            return
        self._held.append(data)
        self._held_bytes += len(data)
        if self._held_bytes > self._settings.write_buffer_bytes:
            self._stalled()
        elif self._stall_timer is None:
            self._watch(self.wire.unsent_bytes)

    def _over(self) -> None:
        self.close()
        self._done()

    def _watch(self, unsent_bytes: int) -> None:
        self._stall_timer = asyncio.get_running_loop().call_later(
            self._settings.write_stall_s, self._check_progress, unsent_bytes
        )

    def _check_progress(self, former_unsent_bytes: int) -> None:
        unsent_bytes = self.wire.unsent_bytes
        if unsent_bytes < former_unsent_bytes:
            self._watch(unsent_bytes)
        else:
            self._stall_timer = None
            self._stalled()
