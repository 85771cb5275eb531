"""The client against real front doors: connections that break, schedulers that change."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from pdd.client import Client
from pdd.core.errors import ConfigError, NodeUnavailable, RequestFailed
from tests.sinks import Planned
from tests.unit.gateway.builders import PLAN, Front, ended, frames, front, script, soon
from tests.unit.gateway.conftest import logs

__all__ = ["logs"]

BODY = {"prompt": "hi", "logprobs": 1, "stream_options": {"include_usage": True}}
NOBODY = "http://127.0.0.1:1"


class Proxy:
    """Between client and front door: passes so many bytes of answers, then cuts the connection.

    ``cuts``: one number for each connection; None and those after them: all of it.
    """

    def __init__(self, port: int, cuts: list[int | None]) -> None:
        self.port = port
        self.cuts = cuts
        self.requests: list[str] = []
        self.url = ""
        self.tasks: set[asyncio.Task[None]] = set()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self.tasks.add(task)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        left = self.cuts.pop(0) if self.cuts else None
        there, to_there = await asyncio.open_connection("127.0.0.1", self.port)
        up = asyncio.create_task(self._up(reader, to_there))
        try:
            while data := await there.read(65536):
                if left is not None:
                    data, left = data[:left], left - len(data)
                writer.write(data)
                await writer.drain()
                if left is not None and left <= 0:
                    break
        except ConnectionError:
            pass
        finally:
            up.cancel()
            to_there.transport.abort()
            writer.close()

    async def _up(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            self.requests.append(data.split(b"\r\n", 1)[0].decode())
            writer.write(data)


@asynccontextmanager
async def proxy(served: Front, *cuts: int | None) -> AsyncIterator[Proxy]:
    one = Proxy(served.port, list(cuts))
    server = await asyncio.start_server(one.accept, "127.0.0.1", 0)
    one.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield one
    finally:
        server.close()
        for task in one.tasks:
            task.cancel()
        if one.tasks:
            await asyncio.wait(one.tasks)


async def documents(client: Client, body: dict[str, Any] = BODY) -> list[dict[str, Any]]:
    return [one async for one in client.stream("/v1/completions", body)]


def without_ids(found: list[dict[str, Any]]) -> str:
    text = json.dumps([{**one, "created": 0, "id": ""} for one in found])
    return text.replace(str((found[-1].get("usage") or {}).get("pdd", {}).get("request_id")), "")


async def test_a_stream_cut_at_any_byte_is_whole() -> None:
    async with front(script("He", "", "llo", " wor", "ld", logprobs=1)) as served:
        async with Client([served.url]) as client:
            whole = await documents(client)
        async with proxy(served) as measure, Client([measure.url]) as client:
            assert without_ids(await documents(client)) == without_ids(whole)
        size = 3200
        for cut in range(1, size, 37):
            async with proxy(served, cut, cut, cut) as broken, Client([broken.url] * 2) as client:
                found = await documents(client)
                assert without_ids(joined(found)) == without_ids(joined(whole)), cut


def joined(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a stream says, whatever events it came in."""
    choices = [choice for one in found for choice in one["choices"]]
    lists = [choice["logprobs"] for choice in choices if choice["logprobs"]]
    (usage,) = [one["usage"] for one in found if one.get("usage")]
    assert len({one["id"] for one in found}) == 1
    said = {
        "text": "".join(choice["text"] for choice in choices),
        "tokens": [token for one in lists for token in one["tokens"]],
        "offsets": [offset for one in lists for offset in one["text_offset"]],
        "finish": [choice["finish_reason"] for choice in choices if choice["finish_reason"]],
        "usage": usage,
    }
    return [said]


async def test_the_next_address_is_asked_where_nobody_is() -> None:
    async with front(script("a")) as served, Client([NOBODY, served.url + "/v1/"]) as client:
        assert await client.models() == ["tiny"]
        answer = await client.post("/v1/completions", {"prompt": "hi"})
        assert answer["choices"][0]["text"] == "a"
        assert len(await documents(client, {"prompt": "hi"})) == 2


async def test_a_whole_answer_whose_connection_breaks_runs_once() -> None:
    async with (
        front(script("a")) as served,
        proxy(served, 20, 100) as broken,
        Client([broken.url]) as client,
    ):
        answer = await client.post("/v1/completions", {"prompt": "hi"})
        assert answer["choices"][0]["text"] == "a"
        assert len(served.inference.requests) == 1
        assert len(broken.requests) == 3


async def test_a_stream_that_is_left_is_cancelled_at_once() -> None:
    async with front([Planned(plan=PLAN), *frames("a"), asyncio.Event()]) as served:
        async with Client([served.url]) as client:
            async with aclosing(client.stream("/v1/completions", {"prompt": "hi"})) as stream:
                async for document in stream:
                    assert document["choices"][0]["text"] == "a"
                    break
            await soon(served.inference.closed)
        assert served.inference.open_count == 0


async def test_a_scheduler_that_stops_is_left_for_the_next_one() -> None:
    gate = asyncio.Event()
    first, second = frames("a", "b")
    steps = [Planned(plan=PLAN), first, gate, second, ended(completion_tokens=2)]
    async with front(steps) as served:
        async with Client([served.url, NOBODY], patience_s=0.5) as client:
            stream = client.stream("/v1/completions", {"prompt": "hi"})
            async for document in stream:
                assert document["choices"][0]["text"] == "a"
                break
            await served.stop()
            with pytest.raises((RequestFailed, NodeUnavailable)):
                await anext(stream)
        gate.set()


async def test_a_silent_stream_that_breaks_is_looked_for_however_long_it_was_silent() -> None:
    now_s = [0.0]
    gate = asyncio.Event()
    first, second = frames("a", "b")
    steps = [Planned(plan=PLAN), first, gate, second, ended(completion_tokens=2)]
    async with (
        front(steps) as served,
        proxy(served) as broken,
        Client([broken.url], patience_s=10.0, clock=lambda: now_s[0]) as client,
    ):
        stream = client.stream("/v1/completions", {"prompt": "hi"})
        assert (await anext(stream))["choices"][0]["text"] == "a"
        now_s[0] = 100.0
        for task in broken.tasks:
            task.cancel()
        gate.set()
        assert "".join([one["choices"][0]["text"] async for one in stream]) == "b"


@asynccontextmanager
async def other_server(answer: bytes) -> AsyncIterator[tuple[str, list[bytes]]]:
    """One that says ``answer`` to whoever asks, and closes: its URL, and what was asked."""
    asked: list[bytes] = []

    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n"))
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(say, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", asked
    finally:
        server.close()


STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n"


async def test_events_with_ids_of_a_stream_without_a_name_are_not_told_twice() -> None:
    """A server, or a proxy before one, that leaves out ``x-pdd-request-id``."""
    answer = STREAM_HEAD + b'\r\nid: 1\ndata: {"choices": [{"text": "a"}]}\n\n'
    async with other_server(answer) as (url, asked), Client([url], patience_s=0.3) as client:
        stream = client.stream("/v1/completions", {"prompt": "hi"})
        assert (await anext(stream))["choices"][0]["text"] == "a"
        with pytest.raises(RequestFailed, match="broke off"):
            await anext(stream)
        assert len(asked) == 1


async def test_a_server_that_takes_a_stream_and_says_nothing_is_given_up() -> None:
    answer = STREAM_HEAD + b"x-pdd-request-id: r-1\r\n\r\n"
    async with other_server(answer) as (url, asked), Client([url] * 2, patience_s=0.5) as client:
        with pytest.raises(RequestFailed, match="broke off"):
            await asyncio.wait_for(documents(client, {"prompt": "hi"}), 10.0)
        assert 2 < len(asked) < 10


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (b"data: out of memory\n\n", "out of memory"),
        (b"data: \xff\n\n", "no JSON object"),
        (b"event: error\ndata: <html>502</html>\n\n", "<html>502</html>"),
        (b'data: ["no object"]\n\n', "no object"),
        (b'data: {"error": "node died"}\n\n', "node died"),
        (b'data: {"error": null}\n\n', "None"),
    ],
)
async def test_an_event_of_another_shape_is_an_error_in_our_words(event: bytes, said: str) -> None:
    answer = STREAM_HEAD + b"x-pdd-request-id: r-1\r\n\r\n" + event
    async with other_server(answer) as (url, asked), Client([url], patience_s=0.3) as client:
        with pytest.raises(RequestFailed, match=said):
            await documents(client, {"prompt": "hi"})
        assert len([one for one in asked if one.startswith(b"POST")]) == 1


@pytest.mark.parametrize("answer", [b"<html>hello</html>", b'["a list"]', b"\xff"])
async def test_a_whole_answer_that_is_no_object_is_an_error_in_our_words(answer: bytes) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n"
    whole = head + b"content-length: %d\r\n\r\n" % len(answer) + answer
    async with other_server(whole) as (url, _), Client([url], patience_s=0.3) as client:
        with pytest.raises(RequestFailed, match="no JSON object"):
            await client.post("/v1/completions", {"prompt": "hi"})


UNAVAILABLE = b'HTTP/1.1 503 Nothing\r\nconnection: close\r\n\r\n{"error": {"message": "no node"}}'


async def test_a_scheduler_that_cannot_serve_is_left_for_the_next_one() -> None:
    async with (
        other_server(UNAVAILABLE) as (url, asked),
        front(script("a")) as served,
        Client([url, served.url]) as client,
    ):
        answer = await client.post("/v1/completions", {"prompt": "hi"})
        assert answer["choices"][0]["text"] == "a"
        assert len(await documents(client, {"prompt": "hi"})) == 2
        assert len(asked) == 2


async def test_where_none_can_serve_each_is_asked_once_and_the_reason_told() -> None:
    async with (
        other_server(UNAVAILABLE) as (url, asked),
        Client([url, url], patience_s=5.0) as client,
    ):
        with pytest.raises(RequestFailed, match="HTTP 503: no node"):
            await documents(client, {"prompt": "hi"})
        assert len(asked) == 2


async def test_nobody_anywhere_is_told_at_once() -> None:
    async with Client([NOBODY]) as client:
        with pytest.raises(NodeUnavailable, match=r"nobody serves at http://127\.0\.0\.1:1"):
            await client.models()
        with pytest.raises(NodeUnavailable):
            await documents(client)


@pytest.mark.parametrize(
    "ask",
    [
        lambda client: client.post("/v1/completions", {"prompt": ""}),
        lambda client: documents(client, {"prompt": ""}),
    ],
)
async def test_what_is_refused_is_not_asked_again(ask: Callable[[Client], Any]) -> None:
    async with front(script("a")) as served, Client([served.url, served.url]) as client:
        with pytest.raises(RequestFailed, match="HTTP 400: prompt"):
            await ask(client)


async def test_a_failed_request_is_told_and_not_sent_again() -> None:
    steps = [Planned(plan=PLAN), *frames("a"), RequestFailed("node died")]
    async with front(steps) as served, Client([served.url]) as client:
        with pytest.raises(RequestFailed, match="node died"):
            await documents(client, {"prompt": "hi"})
        assert len(served.inference.requests) == 1


def two_choices() -> list[Any]:
    """A request of two choices whose frames come in turns, the second one ending first."""
    steps: list[Any] = []
    longer = frames("He", "", "llo", " wor", "ld")
    shorter = frames("Good", " day")
    for place, one in enumerate(longer):
        for index, choice in enumerate((longer, shorter)):
            if place < len(choice):
                is_last = place + 1 == len(choice)
                finish = ended().finish if is_last else None
                frame = replace(choice[place].frame, choice_index=index, finish=finish)
                steps.append(replace(one, frame=frame))
    return [Planned(plan=PLAN), *steps, ended(completion_tokens=len(steps))]


def by_choice(found: list[dict[str, Any]]) -> dict[int, tuple[str, list[str], list[str]]]:
    """Text, roles and ends of each, whatever events they came in."""
    said: dict[int, tuple[str, list[str], list[str]]] = {}
    for choice in (choice for one in found for choice in one["choices"]):
        text, roles, ends = said.get(choice["index"], ("", [], []))
        delta = choice.get("delta", {})
        text += choice.get("text", "") or delta.get("content", "")
        roles += [delta["role"]] if "role" in delta else []
        ends += [choice["finish_reason"]] if choice["finish_reason"] else []
        said[choice["index"]] = (text, roles, ends)
    return said


@pytest.mark.parametrize(
    ("path", "question"),
    [
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
    ],
    ids=["completions", "chat"],
)
async def test_a_stream_of_several_choices_cut_at_any_byte_is_whole(
    path: str, question: dict[str, Any]
) -> None:
    body = {**question, "n": 2, "stream_options": {"include_usage": True}}
    roles = ["assistant"] if "chat" in path else []
    async with front(two_choices()) as served:
        for cut in range(1, 3200, 61):
            async with proxy(served, cut, cut, cut) as broken, Client([broken.url] * 2) as client:
                found = [one async for one in client.stream(path, body)]
            assert by_choice(found) == {
                0: ("Hello world", roles, ["stop"]),
                1: ("Good day", roles, ["stop"]),
            }, cut
            (usage,) = [one["usage"] for one in found if one.get("usage")]
            assert usage["completion_tokens"] == 7
            assert len(served.inference.requests) == 1, "it ran once"
            served.inference.requests.clear()


async def test_several_choices_go_on_by_id_once_an_event_came_and_are_sent_again_before() -> None:
    body = {"prompt": "hi", "n": 2}
    async with front(two_choices()) as served:
        async with proxy(served, 40, 900) as broken, Client([broken.url]) as client:
            found = [one async for one in client.stream("/v1/completions", body)]
        assert by_choice(found)[1] == ("Good day", [], ["stop"])
        methods = [line.split()[0] for line in broken.requests]
        assert methods == ["POST", "POST", "GET"]
        assert len(served.inference.requests) == 1


@pytest.mark.parametrize(
    ("addresses", "advice"),
    [
        ([], "addresses is empty; give the URL of at least one scheduler"),
        ("http://x:8000", "give a list of URLs"),
        (["http://x", "x:8000"], "addresses: 'x:8000' is no URL; write http://HOST:PORT"),
    ],
)
def test_addresses_that_nobody_can_be_asked_at_are_refused_at_once(
    addresses: Any, advice: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        Client(addresses)
    assert advice in str(caught.value)
