"""Both ends of the link over a real abstract Unix socket, and those who have no business there."""

import asyncio
import contextlib
import socket
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from pdd.connector.link_client import LinkClient
from pdd.connector.link_messages import (
    MESSAGE_SIZE_BYTES_MAX,
    DropSource,
    FirstToken,
    Hello,
    LinkMessage,
    Progress,
    encode,
)
from pdd.engine import link_server
from pdd.engine.link_server import LinkServer
from tests.waiting import until

WAIT_S = 10.0


class Daemon:
    """A link server and what its ranks said."""

    def __init__(self, rank_count: int) -> None:
        self.said: list[tuple[int, LinkMessage]] = []
        self.came = asyncio.Event()
        self.server = LinkServer(rank_count=rank_count, on_message=self._on_message)

    def _on_message(self, rank: int, message: LinkMessage) -> None:
        self.said.append((rank, message))
        self.came.set()

    async def heard(self, count: int) -> None:
        async with asyncio.timeout(WAIT_S):
            while len(self.said) < count:
                self.came.clear()
                await self.came.wait()

    def hello(self, rank: int = 0, *, secret: str | None = None) -> Hello:
        return Hello(
            secret=self.server.secret if secret is None else secret,
            rank=rank,
            block_count=10,
            block_bytes=64,
            ucx_address=b"address",
            fingerprint={"kv_dtype": "bfloat16"},
        )

    async def stranger(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_unix_connection("\0" + self.server.socket_name)


@contextlib.asynccontextmanager
async def listening(rank_count: int = 1) -> AsyncIterator[Daemon]:
    daemon = Daemon(rank_count)
    await daemon.server.start()
    try:
        yield daemon
    finally:
        daemon.server.close()
        await asyncio.sleep(0)  # lets transports close


class Worker:
    """A real LinkClient on threads of its own."""

    def __init__(self, daemon: Daemon, rank: int = 0) -> None:
        self.said: list[LinkMessage] = []
        self._loop = asyncio.get_running_loop()
        self._came = asyncio.Event()
        self.client = LinkClient(
            socket_name=daemon.server.socket_name,
            hello=daemon.hello(rank),
            on_message=self._on_message,
        )

    def _on_message(self, message: LinkMessage) -> None:
        self.said.append(message)
        self._loop.call_soon_threadsafe(self._came.set)

    async def heard(self, count: int) -> None:
        async with asyncio.timeout(WAIT_S):
            while len(self.said) < count:
                self._came.clear()
                await self._came.wait()


async def cut_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Whether the daemon ends the connection without a word."""
    try:
        return await asyncio.wait_for(reader.read(), timeout=WAIT_S) == b""
    except ConnectionResetError:
        return True
    finally:
        writer.close()


async def test_every_rank_is_heard_and_spoken_to_in_order() -> None:
    async with listening(2) as daemon:
        workers = [Worker(daemon, rank) for rank in (1, 0)]
        hellos = await asyncio.wait_for(daemon.server.hellos(), timeout=WAIT_S)
        assert [hello.rank for hello in hellos] == [0, 1]
        daemon.server.send_all(FirstToken(key="r1/0", token_id=7))
        daemon.server.send(1, DropSource(key="r1/0", reason="gone"))
        await workers[0].heard(2)
        await workers[1].heard(1)
        assert workers[0].said == [
            FirstToken(key="r1/0", token_id=7),
            DropSource(key="r1/0", reason="gone"),
        ]
        for index in range(20):
            workers[1].client.send(
                Progress(
                    key="k", start=index, end=index, prompt_token_count=9, cached_token_count=0
                )
            )
        await daemon.heard(20)
        assert [rank for rank, _ in daemon.said] == [0] * 20
        assert [message.start for _, message in daemon.said] == list(range(20))  # type: ignore[union-attr]
        for worker in workers:
            worker.client.close()
            worker.client.close()  # idempotent


async def test_messages_cut_into_single_bytes_arrive_whole() -> None:
    async with listening() as daemon:
        _, writer = await daemon.stranger()
        token = FirstToken(key="k", token_id=1)
        for byte in encode(daemon.hello()) + encode(token):
            writer.write(bytes([byte]))
            await writer.drain()
        await daemon.heard(1)
        assert daemon.said == [(0, token)]
        writer.close()


@pytest.mark.parametrize(
    "first",
    [
        lambda daemon: encode(daemon.hello(secret="guessed")),
        lambda daemon: encode(daemon.hello(secret="")),
        lambda daemon: encode(daemon.hello(secret="sésame")),
        lambda daemon: encode(daemon.hello(rank=1)),
        lambda daemon: encode(daemon.hello(rank=-1)),
        lambda daemon: encode(FirstToken(key="k", token_id=1)),
        lambda daemon: b"GET / HTTP/1.1\r\n\r\n",
        lambda daemon: bytes(100),
        lambda daemon: (MESSAGE_SIZE_BYTES_MAX + 1).to_bytes(4, "big"),
    ],
    ids=[
        "a wrong secret",
        "no secret",
        "a secret of other letters",
        "a rank too many",
        "a negative rank",
        "no hello",
        "another protocol",
        "zeros",
        "an oversized frame",
    ],
)
async def test_a_stranger_is_cut_off_and_nobody_else_is_disturbed(first) -> None:  # type: ignore[no-untyped-def]
    async with listening() as daemon:
        reader, writer = await daemon.stranger()
        writer.write(first(daemon))
        assert await cut_off(reader, writer)
        assert daemon.said == []
        worker = Worker(daemon)
        await asyncio.wait_for(daemon.server.hellos(), timeout=WAIT_S)
        worker.client.close()


async def test_why_a_link_is_cut_is_logged() -> None:
    with capture_logs() as logs:
        async with listening() as daemon:
            for first in (encode(daemon.hello(secret="guessed")), b"\0\0\0\1x"):
                reader, writer = await daemon.stranger()
                writer.write(first)
                assert await cut_off(reader, writer)
    assert [entry["event"] for entry in logs] == ["link_cut", "link_cut"]
    assert logs[0]["reason"] == "wrong secret"
    assert "malformed frame of 1 bytes" in logs[1]["reason"]


async def test_a_rank_cannot_be_taken_over() -> None:
    async with listening() as daemon:
        worker = Worker(daemon)
        await asyncio.wait_for(daemon.server.hellos(), timeout=WAIT_S)
        reader, writer = await daemon.stranger()
        writer.write(encode(daemon.hello()))
        assert await cut_off(reader, writer)
        daemon.server.send(0, FirstToken(key="k", token_id=1))
        await worker.heard(1)
        worker.client.close()


async def test_a_rank_that_does_not_read_is_cut_off_at_the_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(link_server, "_BUFFER_BYTES_MAX", 1000)
    async with listening() as daemon:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.connect("\0" + daemon.server.socket_name)
        sock.sendall(encode(daemon.hello()))
        await asyncio.wait_for(daemon.server.hellos(), timeout=WAIT_S)
        for _ in range(2000):
            daemon.server.send(0, DropSource(key="k", reason="x" * 1000))
        await asyncio.sleep(0)
        sock.settimeout(WAIT_S)
        received = 0
        with contextlib.suppress(ConnectionResetError):
            while data := sock.recv(1 << 20):
                received += len(data)
        assert received < 2000 * 1000
        sock.close()


async def test_closing_cuts_strangers_off_too() -> None:
    daemon = Daemon(1)
    await daemon.server.start()
    reader, writer = await daemon.stranger()
    writer.write(b"\0")
    await writer.drain()
    await until(lambda: daemon.server._open, "the server to accept it")
    daemon.server.close()
    assert await cut_off(reader, writer)


async def test_a_message_to_a_rank_that_is_gone_is_dropped() -> None:
    async with listening(2) as daemon:
        daemon.server.send(1, FirstToken(key="k", token_id=1))


WORKER = """
import sys, threading
from pdd.connector.link_client import LinkClient
from pdd.connector.link_messages import Hello
hello = Hello(secret=sys.argv[2], rank=0, block_count=1, block_bytes=1, ucx_address=b"",
              fingerprint={})
LinkClient(socket_name=sys.argv[1], hello=hello, on_message=print)
threading.Event().wait(60)
"""


async def test_a_worker_whose_daemon_is_gone_ends() -> None:
    daemon = Daemon(1)
    await daemon.server.start()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        WORKER,
        daemon.server.socket_name,
        daemon.server.secret,
        stderr=subprocess.PIPE,
    )
    await asyncio.wait_for(daemon.server.hellos(), timeout=30)
    daemon.server.close()
    _, errors = await asyncio.wait_for(process.communicate(), timeout=30)
    assert process.returncode == 70
    assert b"ending this process" in errors
