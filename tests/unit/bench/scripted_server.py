"""An HTTP server in this process that answers as a test says, byte by byte."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


@dataclass
class Asked:
    """One request as it came in. ``connection`` counts from 0."""

    head: str
    body: Any
    connection: int


@dataclass
class ScriptedServer:
    """``answer`` is called for every request and returns whether the connection goes on."""

    answer: Callable[[Asked, asyncio.StreamWriter], Awaitable[bool]]
    asked: list[Asked] = field(default_factory=list)
    connections: int = 0
    port: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection, self.connections = self.connections, self.connections + 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = LENGTH.search(head)
                body = await reader.readexactly(int(length[1]) if length else 0)
                one = Asked(head.decode(), json.loads(body) if body else None, connection)
                self.asked.append(one)
                if not await self.answer(one, writer):
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has left
        finally:
            writer.close()


@asynccontextmanager
async def scripted_server(
    answer: Callable[[Asked, asyncio.StreamWriter], Awaitable[bool]],
) -> AsyncIterator[ScriptedServer]:
    scripted = ScriptedServer(answer)
    server = await asyncio.start_server(scripted.serve, "127.0.0.1", 0)
    scripted.port = server.sockets[0].getsockname()[1]
    try:
        yield scripted
    finally:
        server.close()


def head(status: str = "200 OK", kind: str = "text/event-stream", **more: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {kind}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in more.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def event(document: object) -> bytes:
    return b"data: " + json.dumps(document).encode() + b"\n\n"


def tokens(*texts: str) -> bytes:
    return b"".join(event({"choices": [{"text": text, "finish_reason": None}]}) for text in texts)


def usage(**counts: object) -> bytes:
    return event({"choices": [], "usage": counts})


DONE = b"data: [DONE]\n\n"


def chunked(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data)


def stream(data: bytes, **more: str) -> bytes:
    """A whole answer that keeps its connection."""
    return head(Transfer_Encoding="chunked", **more) + chunked(data)


def whole(document: object, status: str = "200 OK", **more: str) -> bytes:
    data = json.dumps(document).encode()
    return head(status, "application/json", Content_Length=str(len(data)), **more) + data
