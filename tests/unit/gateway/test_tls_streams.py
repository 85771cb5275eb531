"""Streams over TLS: the same answers, the same bounds, the same end."""

import asyncio
import ssl
from pathlib import Path

import pytest

from pdd.gateway.settings import GatewaySettings
from pdd.tls.public import PublicTls
from tests.sinks import Planned
from tests.unit.gateway.builders import (
    PLAN,
    Flood,
    FullPipe,
    frames,
    front,
    script,
    send_raw,
    soon,
)
from tests.unit.tls.certificates import Authority

BODY = {"prompt": "hi", "stream": True}
CLOSE = b"Connection: close\r\n"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "one")


@pytest.fixture(scope="module")
def server_tls(authority: Authority) -> ssl.SSLContext:
    paths = authority.issue("scheduler-0", hosts=("127.0.0.1", "localhost"))
    return PublicTls(paths).http_context()


@pytest.fixture
def tls(authority: Authority, tmp_path: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.ca))
    own = authority.issue("client-0", file=f"client-{tmp_path.name}", role="client")
    context.load_cert_chain(str(own.certificate), str(own.key))
    return context


async def rest(writer: asyncio.StreamWriter) -> bytes:
    async with asyncio.timeout(20):
        answer: bytes = await writer.reader.read()  # type: ignore[attr-defined]
    return answer


async def test_many_streams_at_once_are_whole_and_apart(
    server_tls: ssl.SSLContext, tls: ssl.SSLContext
) -> None:
    words = [f"word-{number} " for number in range(30)]
    async with front(script(*words), tls=server_tls) as served:
        writers = [
            await send_raw(served, "/v1/completions", BODY, headers=CLOSE, tls=tls)
            for _ in range(20)
        ]
        for writer in writers:
            answer = await rest(writer)
            places = [answer.index(word.encode()) for word in words]
            assert places == sorted(places)
            assert answer.count(b'"text":"word-') == len(words)
            assert answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
            writer.close()


async def test_a_slow_reader_gets_everything_once_it_reads_and_others_meanwhile(
    server_tls: ssl.SSLContext, tls: ssl.SSLContext
) -> None:
    text = "x" * 200_000
    settings = GatewaySettings(write_buffer_bytes=4_000_000)
    async with front(script(*[text] * 40), settings=settings, tls=server_tls) as served:
        slow = await send_raw(served, "/v1/completions", BODY, headers=CLOSE, tls=tls)
        await soon(served.inference.closed)  # the engine is through, the client has read nothing
        other = await send_raw(served, "/v1/nothing", {}, headers=CLOSE, tls=tls)
        assert b" 404 " in await rest(other)
        answer = await rest(slow)
        assert answer.count(text.encode()) == 40
        assert answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        slow.close()
        other.close()


async def test_a_client_that_stops_reading_is_dropped(
    server_tls: ssl.SSLContext, tls: ssl.SSLContext
) -> None:
    flood = Flood()
    settings = GatewaySettings(write_stall_s=0.2, write_buffer_bytes=16 * 1024)
    async with front(inference=flood, settings=settings, tls=server_tls) as served:
        writer = await send_raw(served, "/v1/completions", BODY, tls=tls)
        await soon(flood.closed)
        assert flood.sent < 40_000, "what the kernel and two bounded buffers take, and no more"
        labels = {"surface": "http", "path": "disaggregated", "outcome": "stalled"}
        assert served.sample("pdd_requests_total", **labels) == 1
        writer.transport.abort()


async def test_a_client_that_leaves_cancels_its_request(
    server_tls: ssl.SSLContext, tls: ssl.SSLContext
) -> None:
    async with front([Planned(plan=PLAN), *frames("a"), asyncio.Event()], tls=server_tls) as served:
        writer = await send_raw(served, "/v1/completions", BODY, tls=tls)
        await soon(served.inference.waiting)
        writer.close()
        await soon(served.inference.closed)
        assert served.inference.open_count == 0


async def test_stopping_ends_open_streams_with_an_error_event(
    server_tls: ssl.SSLContext, tls: ssl.SSLContext
) -> None:
    async with front([Planned(plan=PLAN), *frames("a"), asyncio.Event()], tls=server_tls) as served:
        writers = [await send_raw(served, "/v1/completions", BODY, tls=tls) for _ in range(5)]
        await soon(served.inference.waiting)
        for writer in writers:
            async with asyncio.timeout(10):
                await writer.reader.readuntil(b'"text":"a"')  # type: ignore[attr-defined]
        stopping = asyncio.create_task(served.stop())
        for writer in writers:
            answer = await rest(writer)
            assert b"this scheduler is stopping" in answer
            assert b"[DONE]" not in answer
            assert answer.endswith(b"\r\n0\r\n\r\n")
            writer.close()
        await stopping


async def test_stopping_ends_the_stream_of_a_slow_reader_with_an_error_event_too(
    server_tls: ssl.SSLContext, tls: ssl.SSLContext
) -> None:
    pipe = FullPipe()
    settings = GatewaySettings(write_buffer_bytes=1_000_000, shutdown_grace_s=0.05)
    async with front(inference=pipe, settings=settings, tls=server_tls) as served:
        writer = await send_raw(served, "/v1/completions", BODY, tls=tls)
        await soon(pipe.full)
        stopping = asyncio.create_task(served.stop())
        await soon(pipe.closed)  # it was told; the client has read nothing yet
        answer = await rest(writer)
        assert b"this scheduler is stopping" in answer[-1000:]
        assert answer.endswith(b"\r\n0\r\n\r\n")
        await stopping
        writer.close()
