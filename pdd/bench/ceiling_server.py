"""A server that does next to nothing: it answers any POST with prebuilt events, one per write.

One event per write and connections in turn, because that is how a real server's steps arrive; a
whole answer in one write would flatter whoever reads it. For ``ceiling`` and for tests.
"""

import asyncio
import json
import re

_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_MAX_TOKENS = re.compile(rb'"max_tokens": ?(\d+)')


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _event(**choice: object) -> bytes:
    document = {
        "id": "cmpl-0123456789abcdef",
        "object": "text_completion",
        "created": 1,
        "model": "nothing",
        "choices": [{"index": 0, "text": "", "finish_reason": None, **choice}],
    }
    return b"data: " + json.dumps(document, separators=(",", ":")).encode() + b"\n\n"


_HEADERS = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
_TOKEN = _chunk(_event(text=" word"))
_LAST = _chunk(_event(finish_reason="length"))


def _ending(token_count: int) -> bytes:
    usage = {"prompt_tokens": 1, "completion_tokens": token_count, "total_tokens": token_count + 1}
    document = json.dumps({"choices": [], "usage": usage}).encode()
    return (
        _LAST + _chunk(b"data: " + document + b"\n\n") + _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
    )


class CeilingServer:
    """Listens on loopback. ``address`` is set once it does."""

    def __init__(self) -> None:
        self._server: asyncio.Server | None = None
        self._active: dict[_Answer, None] = {}
        self._scheduled = False
        self.port = 0

    async def start(self) -> None:
        """Begin to listen, on a port that the system picks."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Answer(self), "127.0.0.1", 0, backlog=2048)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """End every connection."""
        assert self._server is not None
        self._server.close()
        for answer in list(self._active):
            answer.abort()

    def activate(self, answer: "_Answer") -> None:
        """An answer has events to write."""
        self._active[answer] = None
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._step)

    def deactivate(self, answer: "_Answer") -> None:
        self._active.pop(answer, None)

    def _step(self) -> None:
        """One event for everybody, then whatever else the loop has to do."""
        for answer in list(self._active):
            if not answer.step():
                self._active.pop(answer, None)
        if self._active:
            asyncio.get_running_loop().call_soon(self._step)
        else:
            self._scheduled = False


class _Answer(asyncio.Protocol):
    def __init__(self, server: CeilingServer) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._data = b""
        self._left = 0
        self._total = 0
        self._paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # a stream's always is one

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.deactivate(self)

    def pause_writing(self) -> None:
        self._paused = True  # bound: the transport's own high-water mark

    def resume_writing(self) -> None:
        self._paused = False

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, separator, body = self._data.partition(b"\r\n\r\n")
        if not separator:
            return
        length = _LENGTH.search(head)
        if length is not None and len(body) < int(length[1]):
            return
        self._data = b""
        wanted = _MAX_TOKENS.search(body)
        self._total = self._left = 16 if wanted is None else int(wanted[1])
        assert self._transport is not None
        self._transport.write(_HEADERS + _TOKEN)
        self._left -= 1
        self._server.activate(self)

    def step(self) -> bool:
        """Write one event; False when the answer is whole."""
        assert self._transport is not None
        if self._paused:
            return True
        if self._left > 0:
            self._left -= 1
            self._transport.write(_TOKEN)
            return True
        self._transport.write(_ending(self._total))
        return False
