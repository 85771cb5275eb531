"""HTTP itself: what is malformed is refused quietly, and the log is not its notebook."""

import asyncio
import logging

import pytest

from tests.unit.gateway.builders import front, script


async def test_a_malformed_request_is_400_and_no_error_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with front(script("a")) as served:
        for raw in (b"GET / HTTP/9.9.9\r\n\r\n", b"POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n"):
            reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
            writer.write(raw)
            async with asyncio.timeout(10):
                assert b" 400 " in await reader.readline()
            writer.close()
    assert [record for record in caplog.records if record.levelno >= logging.INFO] == []


async def test_a_header_that_is_too_long_is_400() -> None:
    async with front(script("a")) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(b"GET /health HTTP/1.1\r\nX: " + b"x" * 20_000 + b"\r\n\r\n")
        async with asyncio.timeout(10):
            assert b" 400 " in await reader.readline()
        writer.close()


async def test_one_connection_serves_many_requests_and_pipelined_ones_in_order() -> None:
    async with front(script("a")) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        get = b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n"
        writer.write(get % b"/health" + get % b"/v1/nothing" + get % b"/v1/models")
        seen = []
        async with asyncio.timeout(10):
            for _ in range(3):
                head = await reader.readuntil(b"\r\n\r\n")
                seen.append(head.split(b" ")[1])
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                await reader.readexactly(length)
        writer.close()
        assert seen == [b"200", b"404", b"200"]


async def test_a_taken_port_is_an_error_and_leaves_nothing_open() -> None:
    async with front() as served:
        with pytest.raises(OSError, match="in use"):
            async with front(port=served.port):
                pass
