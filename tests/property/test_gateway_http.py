"""Nothing that arrives on the socket gets a 5xx or stops the server."""

import asyncio
import json
import random
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

    Not half-closed: whoever closes its side has left.
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


GOOD = [
    b'POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 15\r\n\r\n{"prompt":"hi"}',
    b"POST /v1/chat/completions?a=b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    b'1f;x=y\r\n{"stream":true,"max_tokens":3,\r\n'
    b'2e\r\n"messages":[{"role":"user","content":"hello"}]\r\n1\r\n}\r\n0\r\nT: z\r\n\r\n',
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 15\r\n"
    b'Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n{"prompt":"hi"}',
    b"GET /v1/models HTTP/1.1\r\nHost: x\r\nOrigin: https://a\r\nX-Request-Id: mine\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n",
    b"HEAD /health HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
]
SEEDS = range(40)


def mutated(rng: random.Random) -> list[bytes]:
    """Some good requests in a row, damaged in a few places, in pieces as a network may cut them."""
    raw = bytearray(b"".join(rng.choices(GOOD, k=rng.randint(1, 4))))
    for _ in range(rng.randint(0, 4)):
        place = rng.randrange(len(raw))
        match rng.randrange(4):
            case 0:
                raw[place] = rng.randrange(256)
            case 1:
                del raw[place : place + rng.randint(1, 30)]
            case 2:
                raw[place:place] = rng.choice([b"\r\n", b"\0", b" ", b":", b"0\r\n\r\n", b"\xff"])
            case _:
                raw[place:place] = raw[place : place + rng.randint(1, 200)]
        if not raw:
            return []
    cuts = sorted(rng.randrange(len(raw) + 1) for _ in range(rng.randint(0, 3)))
    return [bytes(raw[a:b]) for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]


async def talk(served: Front, pieces: list[bytes]) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    try:
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(0)
        async with asyncio.timeout(10):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def test_damaged_requests_never_get_a_5xx_and_harm_nobody_else() -> None:
    impatient = GatewaySettings(
        head_timeout_s=0.02, body_timeout_s=0.02, keepalive_timeout_s=0.02, linger_s=0.02
    )
    seen: set[int] = set()
    async with front(script("a"), settings=impatient) as served:
        for seed in SEEDS:
            rng = random.Random(seed)
            batch = [mutated(rng) for _ in range(10)]
            async with asyncio.TaskGroup() as tasks:
                talks = [tasks.create_task(talk(served, pieces)) for pieces in batch]
            for pieces, one in zip(batch, talks, strict=True):
                answered = statuses(one.result())
                seen.update(answered)
                assert all(status < 500 for status in answered), f"seed {seed}: {pieces}"
        raw = GOOD[0].replace(b"Host: x", b"Host: x\r\nConnection: close")
        assert statuses(await talk(served, [raw])) == [200]
        assert served.inference.open_count == 0
        assert served.sample("pdd_requests_running") == 0
    assert {200, 204, 400, 408} <= seen, seen
