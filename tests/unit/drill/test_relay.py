"""A wire that can be cut, over real sockets of the loopback."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from pdd.drill.relay import Relay


@contextlib.asynccontextmanager
async def echo_behind_a_relay() -> AsyncIterator[tuple[Relay, str, int]]:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(100):
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    relay = Relay(server.sockets[0].getsockname()[1])
    host, _, port = (await relay.start()).rpartition(":")
    try:
        yield relay, host, int(port)
    finally:
        await relay.close()
        server.close()


async def test_what_is_sent_while_the_wire_is_cut_arrives_when_it_is_mended() -> None:
    async with echo_behind_a_relay() as (relay, host, port):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"one")
        assert await reader.readexactly(3) == b"one"
        relay.cut()
        writer.write(b"two")
        late_reader, late_writer = await asyncio.open_connection(host, port)
        late_writer.write(b"new")
        asked = asyncio.create_task(reader.readexactly(3))
        asked_late = asyncio.create_task(late_reader.readexactly(3))
        done, _ = await asyncio.wait({asked, asked_late}, timeout=0.05)
        assert not done, "nothing goes through"
        relay.mend()
        assert (await asked, await asked_late) == (b"two", b"new")
        for one in (writer, late_writer):
            one.close()


async def test_an_end_that_closes_closes_the_other_one() -> None:
    async with echo_behind_a_relay() as (_, host, port):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"one")
        assert await reader.readexactly(3) == b"one"
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()


async def test_where_nobody_listens_the_caller_is_hung_up_on() -> None:
    async with echo_behind_a_relay() as (_, _, port):
        pass  # the port is free again
    relay = Relay(port)
    host, _, own_port = (await relay.start()).rpartition(":")
    try:
        reader, writer = await asyncio.open_connection(host, int(own_port))
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()
    finally:
        await relay.close()


@pytest.mark.parametrize("is_cut", [False, True])
async def test_closing_a_relay_ends_what_goes_through_it(is_cut: bool) -> None:
    async with echo_behind_a_relay() as (relay, host, port):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"one")
        assert await reader.readexactly(3) == b"one"
        if is_cut:
            relay.cut()
        await relay.close()
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()
