"""Clients that leave, clients that stop reading, and a scheduler that stops."""

import asyncio
import json

import pytest

from pdd.gateway.settings import GatewaySettings
from tests.sinks import Planned
from tests.unit.gateway.builders import (
    PLAN,
    Flood,
    FullPipe,
    frames,
    front,
    post,
    script,
    send_raw,
    soon,
)

PHASES = {
    "waiting for a plan": lambda gate: [gate],
    "before the first token": lambda gate: [Planned(plan=PLAN), gate],
    "in the middle": lambda gate: [Planned(plan=PLAN), *frames("a", "b"), gate],
}


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("hold_s", [0.0, 60.0])
async def test_a_client_that_leaves_closes_the_run_in_every_phase(
    phase: str, stream: bool, hold_s: float
) -> None:
    steps = PHASES[phase](asyncio.Event())
    async with front(steps, settings=GatewaySettings(header_hold_s=hold_s)) as served:
        body = {"messages": [{"role": "user", "content": "hi"}], "stream": stream}
        writer = await send_raw(served, "/v1/chat/completions", body)
        await soon(served.inference.waiting)
        writer.close()
        await soon(served.inference.closed)
        assert served.inference.open_count == 0
        await served.stop()  # waits for the handler
        assert served.sample("pdd_requests_running") == 0
        labels = {"surface": "http", "outcome": "cancelled"}
        path = "none" if phase == "waiting for a plan" else "disaggregated"
        assert served.sample("pdd_requests_total", path=path, **labels) == 1


async def test_after_many_clients_have_left_nothing_is_left_of_them() -> None:
    gate = asyncio.Event()
    steps = [Planned(plan=PLAN), *frames("a"), gate]
    async with front(steps) as served:
        writers = [
            await send_raw(served, "/v1/completions", {"prompt": "hi", "stream": number % 2 == 0})
            for number in range(100)
        ]
        for writer in writers:
            writer.close()
        await served.stop()  # waits for the handlers
        assert served.inference.open_count == 0
        assert served.sample("pdd_requests_running") == 0
        ends = [
            sample.value
            for metric in served.metrics.requests.collect()
            for sample in metric.samples
            if sample.name.endswith("_total")
        ]
        # A connection may be gone before its request was read; none may end twice.
        assert sum(ends) <= 100


async def test_a_client_that_leaves_while_its_prompt_is_tokenised_starts_nothing() -> None:
    class Slow:
        def __init__(self) -> None:
            self.started = asyncio.Event()
            self.ended = asyncio.Event()

        async def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
            self.started.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.ended.set()
            return [1]

        def close(self) -> None:
            pass

    slow = Slow()
    async with front(script("a"), tokenizer=slow) as served:
        writer = await send_raw(served, "/v1/completions", {"prompt": "hi"})
        await soon(slow.started)
        writer.close()
        await soon(slow.ended)
        assert served.inference.requests == []


async def _ends_well(reader: asyncio.StreamReader) -> bool:
    """Read to the end of the connection: True if the response in it was finished."""
    tail = b""
    try:
        async with asyncio.timeout(10):
            while chunk := await reader.read(1 << 20):
                tail = (tail + chunk)[-5:]
    except ConnectionResetError:
        return False
    return tail == b"0\r\n\r\n"


async def test_a_client_that_stops_reading_is_dropped_and_nobody_else_notices() -> None:
    flood = Flood()
    settings = GatewaySettings(write_stall_s=0.2, write_buffer_bytes=16 * 1024)
    async with front(inference=flood, settings=settings) as served:
        writer = await send_raw(served, "/v1/completions", {"prompt": "hi", "stream": True})
        await soon(flood.closed)
        # The kernel's two socket buffers took some megabytes at most, then ours were full.
        assert flood.sent < 20_000
        assert not await _ends_well(writer.reader)  # type: ignore[attr-defined]
        writer.close()
        async with served.http.get(f"{served.url}/health") as response:
            assert response.status == 200
        await served.stop()  # waits for the handler
        labels = {"surface": "http", "path": "disaggregated", "outcome": "stalled"}
        assert served.sample("pdd_requests_total", **labels) == 1


@pytest.mark.parametrize("leaves", ["half-closed", "reset"])
async def test_a_client_that_half_closes_has_left_and_so_has_one_that_resets(leaves: str) -> None:
    steps = [Planned(plan=PLAN), *frames("a"), asyncio.Event()]
    async with front(steps) as served:
        writer = await send_raw(served, "/v1/completions", {"prompt": "hi", "stream": True})
        await soon(served.inference.waiting)
        if leaves == "reset":
            writer.transport.abort()
        else:
            writer.write_eof()
        await soon(served.inference.closed)
        assert served.inference.open_count == 0
        writer.close()


async def test_requests_behind_a_client_that_leaves_are_never_begun() -> None:
    async with front([asyncio.Event()]) as served:
        writer = await send_raw(served, "/v1/completions", {"prompt": "hi"})
        raw = b'{"prompt":"next"}'
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(raw)
            + raw
        )
        await soon(served.inference.waiting)
        writer.close()
        await soon(served.inference.closed)
        await served.stop()
        assert len(served.inference.requests) == 1


async def test_a_slow_reader_gets_everything_once_it_reads_and_others_meanwhile() -> None:
    """More than the transport's buffer waits for it, and it loses nothing."""
    text = "x" * 200_000
    steps = script(*[text] * 40)  # with the kernel's buffers full, some of it is held back
    settings = GatewaySettings(write_buffer_bytes=4_000_000)
    async with front(steps, settings=settings) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port, limit=1 << 16)
        body = json.dumps({"prompt": "hi", "stream": True}).encode()
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
            b"Content-Length: %d\r\n\r\n" % len(body) + body
        )
        await soon(served.inference.closed)  # the engine is through, the client has read nothing
        assert (await post(served, "/v1/models", None))[0] == 405
        async with asyncio.timeout(10):
            answer = await reader.read()
        assert answer.count(text.encode()) == 40
        assert answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        writer.close()


async def test_stopping_ends_open_streams_with_an_error_event() -> None:
    steps = [Planned(plan=PLAN), *frames("a"), asyncio.Event()]
    async with front(steps) as served:
        async with served.http.post(
            f"{served.url}/v1/completions", json={"prompt": "hi", "stream": True}
        ) as response:
            await soon(served.inference.waiting)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(served.stop())
                text = await response.text()
        assert "this scheduler is stopping" in text
        assert "[DONE]" not in text
        assert served.inference.open_count == 0


async def test_stopping_ends_the_stream_of_a_slow_reader_with_an_error_event_too() -> None:
    pipe = FullPipe()
    settings = GatewaySettings(write_buffer_bytes=1_000_000, shutdown_grace_s=0.05)
    async with front(inference=pipe, settings=settings) as served:
        writer = await send_raw(served, "/v1/completions", {"prompt": "hi", "stream": True})
        await soon(pipe.full)
        stopping = asyncio.create_task(served.stop())
        await soon(pipe.closed)  # it was told; the client has read nothing yet
        async with asyncio.timeout(10):
            answer = await writer.reader.read()  # type: ignore[attr-defined]
        assert b"this scheduler is stopping" in answer[-1000:]
        assert answer.endswith(b"\r\n0\r\n\r\n")
        await stopping
        writer.close()


async def test_stopping_tells_a_whole_request_with_503_and_lets_a_short_one_finish() -> None:
    gate = asyncio.Event()
    async with front([gate, *script("a")]) as served:
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(post(served, "/v1/completions", {"prompt": "hi"}))
            await soon(served.inference.waiting)
            tasks.create_task(served.stop())
        assert waiting.result()[0] == 503
    settings = GatewaySettings(shutdown_grace_s=30)
    async with front([gate := asyncio.Event(), *script("a")], settings=settings) as served:
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(post(served, "/v1/completions", {"prompt": "hi"}))
            await soon(served.inference.waiting)
            tasks.create_task(served.stop())
            gate.set()
        assert waiting.result()[0] == 200
