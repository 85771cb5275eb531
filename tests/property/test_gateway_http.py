"""Nothing that arrives on the socket gets a 5xx or stops the server."""

import asyncio
import json
import re
from typing import Any

from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from pdd.gateway.settings import GatewaySettings
from tests.unit.gateway.builders import Front, front, script

# Not shrunk: every example is an exchange on a socket, and short already.
EXAMPLES = settings(
    max_examples=75,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
)

printable = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=12)
methods = st.sampled_from(["POST"] * 4 + ["GET"] * 4 + ["PUT", "HEAD", "OPTIONS", "FROB", "g t"])
paths = st.sampled_from(
    [
        "/v1/completions",
        "/v1/chat/completions",
        "/v1/models",
        "/v1/models/%2e%2e/x",
        "/health",
        "/metrics",
        "*",
        "//",
        "/v1/completions?x=%zz",
        "http://x/v1/completions",
    ]
) | printable.map(lambda text: "/" + text)
headers = st.lists(
    st.sampled_from(
        [
            "Content-Type: application/json",
            "Content-Type: text/plain; charset=nonsense",
            "Content-Type: application/json; charset=utf-16",
            "Content-Encoding: gzip",
            "Content-Encoding: br",
            "Content-Encoding: nonsense",
            "Transfer-Encoding: chunked",
            "Transfer-Encoding: nonsense",
            "Content-Length: 5",
            "Content-Length: -1",
            "Content-Length: x",
            "Content-Length: 99999999999999999999",
            "Expect: 100-continue",
            "Expect: nonsense",
            "Connection: upgrade",
            "Upgrade: websocket",
            "Range: bytes=0-1",
            "If-Modified-Since: yesterday",
            "X-Request-Id: a\x01b",
            "Accept-Encoding: gzip",
            "Cookie: a=b; ;;=",
            "no colon at all",
        ]
    ),
    max_size=4,
)
bodies = st.binary(max_size=80) | st.dictionaries(
    st.sampled_from(["prompt", "messages", "stream", "model", "max_tokens", "x"]),
    st.none() | st.booleans() | st.integers() | st.text(max_size=9) | st.lists(st.integers()),
    max_size=4,
).map(lambda value: json.dumps(value).encode())


async def exchange(served: Front, raw: bytes) -> bytes:
    """Send, and read until the server ends the connection because nothing more comes.

    Not half-closed: whoever closes its side has left, as far as aiohttp is concerned.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    try:
        writer.write(raw)
        await writer.drain()
        async with asyncio.timeout(10):
            return await reader.read()
    except ConnectionError:
        return b""  # the server may cut a connection whose rest it will not read
    finally:
        writer.close()


def statuses(answer: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"^HTTP/1\.[01] (\d{3}) ", answer, re.MULTILINE)]


def test_a_fuzzed_request_never_gets_a_5xx_and_the_server_lives_on() -> None:
    seen: dict[int, int] = {}
    with asyncio.Runner() as runner:
        impatient = GatewaySettings(body_timeout_s=0.02, keepalive_timeout_s=0.02, linger_s=0.02)
        context = front(script("a"), settings=impatient)
        served = runner.run(context.__aenter__())

        @EXAMPLES
        @example(method="GET", path="/health", lines=["X: y"], body=b"", length=False, junk=b"\r\n")
        @given(
            method=methods,
            path=paths,
            lines=headers,
            body=bodies,
            length=st.booleans(),
            junk=st.binary(max_size=30),
        )
        def check(
            method: str, path: str, lines: list[str], body: bytes, length: bool, junk: bytes
        ) -> None:
            head = [f"{method} {path} HTTP/1.1", "Host: x", *lines]
            if length:
                head.append(f"Content-Length: {len(body)}")
            raw = "\r\n".join(head).encode("latin-1") + b"\r\n\r\n" + body + junk
            for status in statuses(runner.run(exchange(served, raw))):
                seen[status] = seen.get(status, 0) + 1
                assert status < 500, raw

        try:
            check()
            good: Any = json.dumps({"prompt": "hi"}).encode()
            raw = (
                b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n"
                b"Connection: close\r\n\r\n" % len(good)
            ) + good
            assert statuses(runner.run(exchange(served, raw))) == [200]
        finally:
            runner.run(context.__aexit__(None, None, None))
    assert {200, 400, 404} <= set(seen), seen  # the fuzz reached the routes too
