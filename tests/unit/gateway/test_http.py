"""HTTP done properly: what every client, proxy and browser may send, and what it gets."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from pdd.gateway.http_connection import WAITING_REQUEST_COUNT_MAX
from pdd.gateway.settings import GatewaySettings
from tests.sinks import Planned
from tests.unit.gateway.builders import PLAN, Front, frames, front, script, soon

BODY = json.dumps({"prompt": "hi"}).encode()
STREAM = json.dumps({"prompt": "hi", "stream": True}).encode()
IMPATIENT = GatewaySettings(
    head_timeout_s=0.05, body_timeout_s=0.05, keepalive_timeout_s=0.05, linger_s=0.05
)


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes = b""

    @property
    def error(self) -> dict[str, Any]:
        error: dict[str, Any] = json.loads(self.body)["error"]
        return error


@dataclass
class Client:
    """A client that says exactly what it is told to."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    interim: list[bytes] = field(default_factory=list)

    def say(self, data: bytes) -> None:
        self.writer.write(data)

    async def reply(self, *, to: str = "GET") -> Reply:
        """The next answer, whole; interim ones are kept aside."""
        async with asyncio.timeout(10):
            while True:
                head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
                status = int(head.split(" ")[1])
                if status >= 200:
                    break
                self.interim.append(head.encode())
            lines = head.split("\r\n")[1:-2]
            headers = {
                name.lower(): value for name, value in (line.split(": ", 1) for line in lines)
            }
            reply = Reply(status, headers)
            if to == "HEAD" or status == 204:
                return reply
            if headers.get("transfer-encoding") == "chunked":
                while size := int(await self.reader.readline(), 16):
                    reply.body += (await self.reader.readexactly(size + 2))[:-2]
                await self.reader.readexactly(2)
            elif "content-length" in headers:
                reply.body = await self.reader.readexactly(int(headers["content-length"]))
            else:
                reply.body = await self.reader.read()
            return reply

    async def closed(self) -> bytes:
        """What comes until the server closes."""
        async with asyncio.timeout(10):
            return await self.reader.read()


@asynccontextmanager
async def client(served: Front) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    try:
        yield Client(reader, writer)
    finally:
        writer.close()


def post(
    body: bytes = BODY, *headers: str, path: str = "/v1/completions", version: str = "1.1"
) -> bytes:
    lines = [f"POST {path} HTTP/{version}", "Host: x", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def get(path: str, *headers: str, method: str = "GET") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: x", *headers]).encode() + b"\r\n\r\n"


class TestOneConnection:
    async def test_serves_pages_and_inference_in_turn(self) -> None:
        async with front(script("a")) as served, client(served) as c:
            seen = []
            for request in (get("/health"), post(), get("/v1/models"), post(STREAM), get("/x")):
                c.say(request)
                seen.append((await c.reply()).status)
            assert seen == [200, 200, 200, 200, 404]

    async def test_answers_pipelined_requests_in_order(self) -> None:
        gate = asyncio.Event()
        async with front([gate, *script("a")]) as served, client(served) as c:
            c.say(post() + get("/v1/models") + post(STREAM) + get("/nothing") + post())
            await soon(served.inference.waiting)
            assert len(served.inference.requests) == 1, "one after the other"
            gate.set()
            seen = [await c.reply() for _ in range(5)]
            assert [one.status for one in seen] == [200, 200, 200, 404, 200]
            assert seen[2].body.endswith(b"data: [DONE]\n\n")

    async def test_takes_so_many_requests_ahead_and_no_more(self) -> None:
        gate = asyncio.Event()
        async with front([gate, *script("a")]) as served, client(served) as c:
            c.say(post() * (WAITING_REQUEST_COUNT_MAX + 3))
            await soon(served.inference.waiting)
            gate.set()
            for _ in range(WAITING_REQUEST_COUNT_MAX + 1):
                assert (await c.reply()).status == 200
            last = await c.reply()
            assert (last.status, last.error["code"]) == (400, "too_many_pipelined_requests")
            assert await c.closed() == b""

    async def test_requests_sent_ahead_hold_no_more_than_one_body_may(self) -> None:
        gate = asyncio.Event()
        settings = GatewaySettings(max_body_bytes=1000)
        big = json.dumps({"prompt": "hi", "user": "u" * 600}).encode()
        async with front([gate, *script("a")], settings=settings) as served, client(served) as c:
            c.say(post() + post(big) + post(big))
            await soon(served.inference.waiting)
            gate.set()
            assert [(await c.reply()).status for _ in range(3)] == [200, 200, 400]

    async def test_a_byte_at_a_time_is_as_good_as_all_at_once(self) -> None:
        async with front(script("a", "b")) as served, client(served) as c:
            for byte in post(STREAM) + get("/health"):
                c.say(bytes([byte]))
                await asyncio.sleep(0)
            assert (await c.reply()).status == 200
            assert (await c.reply()).status == 200

    async def test_is_closed_when_the_client_says_so(self) -> None:
        async with front(script("a")) as served:
            for request in (post(BODY, "Connection: close"), get("/health", "Connection: close")):
                async with client(served) as c:
                    c.say(request)
                    reply = await c.reply()
                    assert reply.status == 200
                    assert reply.headers["connection"] == "close"
                    assert await c.closed() == b""

    async def test_an_old_client_gets_a_stream_without_chunks(self) -> None:
        async with front(script("a", "b")) as served, client(served) as c:
            c.say(post(STREAM, version="1.0"))
            reply = await c.reply()
            assert "transfer-encoding" not in reply.headers
            assert reply.body.endswith(b"data: [DONE]\n\n")

    async def test_an_old_client_may_keep_its_connection(self) -> None:
        async with front(script("a")) as served, client(served) as c:
            for path in ("/v1/completions", "/v1/nothing"):
                c.say(post(BODY, "Connection: keep-alive", path=path, version="1.0"))
                reply = await c.reply()
                assert reply.headers["connection"] == "keep-alive"

    async def test_an_upgrade_is_not_taken_and_the_request_answered(self) -> None:
        # What Java's client sends first, and what a page with a WebSocket would.
        h2c = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk")
        async with front(script("a")) as served, client(served) as c:
            c.say(post(BODY, *h2c) + get("/health", *h2c) + post(STREAM, *h2c)[:-5])
            assert [(await c.reply()).status for _ in range(2)] == [200, 200]
            c.say(STREAM[-5:] + get("/v1/models"))
            assert [(await c.reply()).status for _ in range(2)] == [200, 200]


class TestBodies:
    async def test_may_come_in_chunks_with_extensions_and_trailers(self) -> None:
        async with front(script("a")) as served, client(served) as c:
            half = len(BODY) // 2
            c.say(
                b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
                b"%x;ext=1\r\n%b\r\n%x\r\n%b\r\n0\r\nX-Trailer: y\r\n\r\n"
                % (half, BODY[:half], len(BODY) - half, BODY[half:])
            )
            c.say(get("/health"))
            assert [(await c.reply()).status for _ in range(2)] == [200, 200]

    async def test_whose_trailer_does_not_end_are_refused_behind_a_stream_too(self) -> None:
        """Where no timer runs for them."""
        settings = GatewaySettings(linger_s=0.05, max_head_bytes=1000)
        steps = [gate := asyncio.Event(), *script("a")]
        async with front(steps, settings=settings) as served, client(served) as c:
            c.say(post(STREAM))
            await soon(served.inference.waiting)
            c.say(
                b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
                b"0\r\nX-Trailer: "
            )

            async def trickle() -> None:
                while True:
                    c.say(b"x" * 100)
                    await asyncio.sleep(0)

            trickling = asyncio.create_task(trickle())
            gate.set()
            assert (await c.reply()).status == 200
            reply = await c.reply()
            trickling.cancel()
            await asyncio.wait([trickling])
            assert (reply.status, reply.error["code"]) == (431, "headers_too_large")
            assert reply.headers["connection"] == "close"
            assert len(served.inference.requests) == 1

    async def test_are_asked_for_when_the_client_waits(self) -> None:
        async with front(script("a")) as served, client(served) as c:
            head, _, body = post(BODY, "Expect: 100-continue").partition(b"\r\n\r\n")
            c.say(head + b"\r\n\r\n")
            async with asyncio.timeout(10):
                assert await c.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            c.say(body)
            assert (await c.reply()).status == 200

    async def test_are_asked_for_in_turn(self) -> None:
        """The client may not be told to go on in the middle of another answer."""
        gate = asyncio.Event()
        async with front([gate, *script("a")]) as served, client(served) as c:
            head, _, body = post(BODY, "Expect: 100-continue").partition(b"\r\n\r\n")
            c.say(post(STREAM) + head + b"\r\n\r\n")
            await soon(served.inference.waiting)
            gate.set()
            assert (await c.reply()).status == 200
            assert c.interim == []
            async with asyncio.timeout(10):
                assert b"100" in await c.reader.readuntil(b"\r\n\r\n")
            c.say(body)
            assert (await c.reply()).status == 200

    async def test_that_will_not_be_taken_are_not_asked_for(self) -> None:
        settings = GatewaySettings(max_body_bytes=1000)
        async with front(settings=settings) as served, client(served) as c:
            c.say(
                b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
                b"Content-Length: 1001\r\n\r\n"
            )
            reply = await c.reply()
            assert reply.status == 413
            assert c.interim == []

    @pytest.mark.parametrize("coding", ["br", "nonsense", "gzip, gzip"])
    async def test_in_an_unknown_coding_are_refused(self, coding: str) -> None:
        async with front(script("a")) as served, client(served) as c:
            c.say(post(BODY, f"Content-Encoding: {coding}"))
            reply = await c.reply()
            assert (reply.status, reply.error["code"]) == (400, "invalid_content_encoding")
            c.say(post())
            assert (await c.reply()).status == 200, "the connection is still good"


REFUSED: dict[str, tuple[bytes, int, str]] = {
    "no HTTP": (b"hello\r\n\r\n", 400, "malformed_request"),
    "TLS on a plain port": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, "malformed"),
    "HTTP/2 at once": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "malformed_request"),
    "an unknown method": (b"FROB / HTTP/1.1\r\nHost: x\r\n\r\n", 400, "malformed_request"),
    "no host": (b"GET / HTTP/1.1\r\n\r\n", 400, "invalid_host"),
    "two hosts": (b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", 400, "invalid_host"),
    "a tunnel": (b"CONNECT x:1 HTTP/1.1\r\nHost: x:1\r\n\r\n", 400, "invalid_target"),
    "a target that is none": (b"GET models HTTP/1.1\r\nHost: x\r\n\r\n", 400, "malformed"),
    "length and chunks": (
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        400,
        "malformed_request",
    ),
    "another coding": (
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        400,
        "invalid_transfer_encoding",
    ),
    "another expectation": (get("/health", "Expect: 200-ok"), 417, "expectation_failed"),
    "a long header": (get("/health", "X: " + "x" * 40_000), 431, "headers_too_large"),
    "a long target": (get("/" + "x" * 40_000), 431, "headers_too_large"),
    "many headers": (get("/health", *["X: y"] * 129), 431, "headers_too_large"),
    "a header that never ends": (b"GET / HTTP/1.1\r\nX: " + b"x" * 200_000, 431, "headers_too_la"),
}


@pytest.mark.parametrize(("raw", "status", "code"), REFUSED.values(), ids=REFUSED.keys())
async def test_what_is_not_http_gets_an_error_object_and_the_connection_is_closed(
    raw: bytes, status: int, code: str
) -> None:
    settings = GatewaySettings(linger_s=0.05)
    async with front(script("a"), settings=settings) as served, client(served) as c:
        c.say(raw)
        reply = await c.reply()
        assert reply.status == status
        assert reply.error["code"].startswith(code)
        assert reply.error["type"] == "invalid_request_error"
        assert reply.headers["connection"] == "close"
        assert reply.headers["x-request-id"]
        assert await c.closed() == b""
        assert served.inference.requests == []
        assert served.sample("pdd_http_refused_total", status=str(status)) == 1


async def test_what_comes_behind_the_last_answer_is_not_counted_again() -> None:
    async with front(script("a")) as served, client(served) as c:
        c.say(get("/v1/completions", "Connection: close", method="PUT") + get("/health"))
        reply = await c.reply()
        assert (reply.status, reply.error["code"]) == (405, "method_not_allowed")
        assert await c.closed() == b""
        assert served.sample("pdd_http_refused_total", status="405") == 1
        assert served.sample("pdd_http_refused_total", status="400") == 0


async def test_what_comes_behind_the_last_answer_is_not_begun_either() -> None:
    upgrade = ("Connection: close, Upgrade", "Upgrade: h2c")  # the parser does not stop there
    async with front(script("a")) as served, client(served) as c:
        c.say(get("/v1/completions", *upgrade, method="PUT") + post())
        assert (await c.reply()).status == 405
        assert await c.closed() == b""
        await served.stop()  # waits for what was begun
        assert served.inference.requests == []
        assert served.metrics.requests.collect()[0].samples == []


class TestTime:
    async def test_headers_that_do_not_arrive_are_408(self) -> None:
        async with front(settings=IMPATIENT) as served, client(served) as c:
            c.say(b"GET / HTTP/1.1\r\nX-Slow: ")
            reply = await c.reply()
            assert (reply.status, reply.error["code"]) == (408, "head_timeout")
            assert await c.closed() == b""

    async def test_bytes_that_trickle_in_do_not_help(self) -> None:
        async with front(settings=IMPATIENT) as served, client(served) as c:

            async def trickle() -> None:
                while True:
                    c.say(b"x")
                    await asyncio.sleep(0.005)

            c.say(b"GET / HTTP/1.1\r\nX-Slow: ")
            trickling = asyncio.create_task(trickle())
            assert (await c.reply()).status == 408
            trickling.cancel()
            await asyncio.wait([trickling])

    async def test_a_body_that_does_not_arrive_is_408(self) -> None:
        async with front(settings=IMPATIENT) as served, client(served) as c:
            c.say(post()[:-1])
            reply = await c.reply()
            assert (reply.status, reply.error["code"]) == (408, "body_timeout")

    @pytest.mark.parametrize("before", [b"", get("/v1/models")])
    async def test_an_idle_connection_is_closed_quietly(self, before: bytes) -> None:
        async with front(settings=IMPATIENT) as served, client(served) as c:
            if before:
                c.say(before)
                assert (await c.reply()).status == 200
            assert await c.closed() == b""

    async def test_a_request_may_take_longer_than_a_connection_may_idle(self) -> None:
        gate = asyncio.Event()
        async with front([gate, *script("a")], settings=IMPATIENT) as served, client(served) as c:
            c.say(post())
            await soon(served.inference.waiting)
            await asyncio.sleep(2 * IMPATIENT.keepalive_timeout_s)
            gate.set()
            assert (await c.reply()).status == 200


class TestMethods:
    async def test_head_is_a_get_without_its_body(self) -> None:
        async with front(script("a")) as served, client(served) as c:
            for path, status in (("/health", 200), ("/v1/models", 200), ("/nothing", 404)):
                c.say(get(path, method="HEAD"))
                assert (await c.reply(to="HEAD")).status == status
            c.say(get("/v1/completions", method="HEAD"))
            reply = await c.reply(to="HEAD")
            assert (reply.status, reply.headers["allow"]) == (405, "POST")
            c.say(post())
            assert (await c.reply()).status == 200

    async def test_options_tell_what_may_be_done(self) -> None:
        async with front() as served, client(served) as c:
            c.say(get("/v1/completions", method="OPTIONS"))
            reply = await c.reply()
            assert (reply.status, reply.headers["allow"]) == (204, "POST, OPTIONS")
            c.say(get("*", method="OPTIONS"))
            assert (await c.reply()).status == 204

    @pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH"])
    async def test_another_method_is_405_and_names_the_right_one(self, method: str) -> None:
        async with front() as served, client(served) as c:
            c.say(get("/v1/chat/completions", method=method))
            reply = await c.reply()
            assert (reply.status, reply.headers["allow"]) == (405, "POST")
            assert reply.error["code"] == "method_not_allowed"

    async def test_the_query_and_the_absolute_form_lead_to_the_same_endpoint(self) -> None:
        async with front(script("a")) as served, client(served) as c:
            for path in ("/v1/completions?api-version=1", "http://x/v1/completions"):
                c.say(post(path=path))
                assert (await c.reply()).status == 200


class TestCompression:
    @pytest.mark.parametrize("accepts", ["gzip, deflate, br", "gzip;q=1, *;q=0.5", "", "identity"])
    async def test_is_not_done_where_it_is_not_insisted_on(self, accepts: str) -> None:
        async with front(script("a")) as served, client(served) as c:
            c.say(post(STREAM, f"Accept-Encoding: {accepts}"))
            reply = await c.reply()
            assert reply.status == 200
            assert "content-encoding" not in reply.headers

    @pytest.mark.parametrize("accepts", ["gzip, identity;q=0", "gzip, *;q=0.000"])
    async def test_is_refused_politely_where_it_is(self, accepts: str) -> None:
        async with front(script("a")) as served, client(served) as c:
            c.say(post(STREAM, f"Accept-Encoding: {accepts}"))
            reply = await c.reply()
            assert (reply.status, reply.error["code"]) == (406, "encoding_not_available")
            c.say(post(STREAM))
            assert (await c.reply()).status == 200


class TestCors:
    async def test_no_page_may_call_unless_it_was_said(self) -> None:
        async with front(script("a")) as served, client(served) as c:
            c.say(post(BODY, "Origin: https://a.example"))
            assert not [name for name in (await c.reply()).headers if name.startswith("access-")]
            c.say(_preflight("https://a.example"))
            reply = await c.reply()
            assert (reply.status, reply.error["code"]) == (403, "origin_not_allowed")

    @pytest.mark.parametrize("origins", [("https://a.example",), ("*",)])
    async def test_a_page_that_may_is_told_so_everywhere(self, origins: tuple[str, ...]) -> None:
        settings = GatewaySettings(cors_origins=origins)
        async with front(script("a"), settings=settings) as served, client(served) as c:
            c.say(_preflight("https://a.example"))
            reply = await c.reply()
            assert reply.status == 204
            assert "POST" in reply.headers["access-control-allow-methods"]
            assert "authorization" in reply.headers["access-control-allow-headers"]
            wanted = "*" if origins == ("*",) else "https://a.example"
            for request in (post(), post(STREAM), get("/v1/models"), get("/x"), post(b"{")):
                head, _, body = request.partition(b"\r\n\r\n")
                c.say(head + b"\r\nOrigin: https://a.example\r\n\r\n" + body)
                headers = (await c.reply()).headers
                assert headers["access-control-allow-origin"] == wanted
                assert "x-request-id" in headers["access-control-expose-headers"]
                assert headers.get("vary") == (None if wanted == "*" else "Origin")

    async def test_another_page_is_not(self) -> None:
        settings = GatewaySettings(cors_origins=("https://a.example",))
        async with front(script("a"), settings=settings) as served, client(served) as c:
            c.say(post(BODY, "Origin: https://b.example"))
            headers = (await c.reply()).headers
            assert "access-control-allow-origin" not in headers
            assert headers["vary"] == "Origin"
            c.say(_preflight("https://b.example"))
            assert (await c.reply()).status == 403


async def test_request_ids_go_in_and_out_with_pages_and_refusals_too() -> None:
    async with front(script("a")) as served, client(served) as c:
        for request, status in (
            (get("/v1/models", "x-request-id: mine"), 200),
            (get("/nothing", "x-request-id: mine"), 404),
            (get("/v1/completions", "x-request-id: mine"), 405),
            (post(b"{", "x-request-id: mine"), 400),
            (get("/health", "x-request-id: mine", "Expect: x"), 417),
        ):
            c.say(request)
            reply = await c.reply()
            assert (reply.status, reply.headers["x-request-id"]) == (status, "mine")
            assert reply.headers["x-pdd-request-id"].startswith("r-")


async def test_pages_do_not_tell_what_serves_them() -> None:
    async with front(script("a")) as served, client(served) as c:
        for request in (get("/v1/models"), post()):
            c.say(request)
            headers = (await c.reply()).headers
            assert "server" not in headers
            assert headers["date"].endswith("GMT")


class TestStopping:
    async def test_an_idle_connection_is_closed_at_once(self) -> None:
        async with front(script("a")) as served, client(served) as c:
            c.say(post())
            await c.reply()
            await served.stop()
            assert await c.closed() == b""

    async def test_a_stream_that_may_finish_says_that_the_connection_ends(self) -> None:
        gate = asyncio.Event()
        steps = [Planned(plan=PLAN), *frames("a"), gate, *script("a", "b")[2:]]
        settings = GatewaySettings(shutdown_grace_s=30)
        async with front(steps, settings=settings) as served, client(served) as c:
            c.say(post(STREAM) + post())
            await soon(served.inference.waiting)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(served.stop())
                await asyncio.sleep(0)
                gate.set()
            assert (await c.reply()).body.endswith(b"data: [DONE]\n\n")
            assert await c.closed() == b"", "the request behind it is not begun any more"
            assert len(served.inference.requests) == 1

    async def test_a_new_request_on_an_open_connection_is_told(self) -> None:
        gate = asyncio.Event()
        settings = GatewaySettings(shutdown_grace_s=30)
        async with (
            front([gate, *script("a")], settings=settings) as served,
            client(served) as busy,
            client(served) as late,
        ):
            late.say(post()[:-1])
            busy.say(post())
            await soon(served.inference.waiting)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(served.stop())
                await asyncio.sleep(0)
                gate.set()
            assert (await busy.reply()).status == 200
            assert await late.closed() == b""


def _preflight(origin: str) -> bytes:
    return get(
        "/v1/chat/completions",
        f"Origin: {origin}",
        "Access-Control-Request-Method: POST",
        "Access-Control-Request-Headers: content-type",
        method="OPTIONS",
    )
