"""A stream goes on after the last event that its client has seen, and says nothing twice."""

import asyncio
import json
from typing import Any

import pytest

from pdd.core.errors import RequestFailed
from pdd.gateway.settings import GatewaySettings
from tests.sinks import Planned
from tests.unit.gateway.builders import PLAN, Front, ended, frames, front, post, script, soon
from tests.unit.gateway.test_leaving import send_raw

KEY = {"idempotency-key": "k1"}
ASKED = {
    "/v1/completions": {"prompt": "hi", "logprobs": 1, "echo": False},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}], "logprobs": True},
}


def parsed(stream: str) -> list[tuple[str, str]]:
    """Ids and data of all events."""
    pairs = [event.split("\n") for event in stream.split("\n\n")[:-1]]
    return [(name.removeprefix("id: "), data.removeprefix("data: ")) for name, data in pairs]


def said(events: list[tuple[str, str]]) -> dict[str, Any]:
    """All that a client learns, whatever events it came in."""
    documents = [json.loads(data) for _, data in events if data != "[DONE]"]
    choices = [choice for one in documents for choice in one["choices"]]
    lists = [choice["logprobs"] for choice in choices if choice["logprobs"]]
    return {
        "heads": {(one["id"], one["object"], one["created"], one["model"]) for one in documents},
        "text": "".join(
            c["text"] if "text" in c else c["delta"].get("content", "") for c in choices
        ),
        "roles": [c["delta"]["role"] for c in choices if "role" in c.get("delta", {})],
        "logprobs": {key: [x for one in lists for x in one[key]] for key in (lists or [{}])[0]},
        "finish": [c["finish_reason"] for c in choices if c["finish_reason"]],
        "usage": [one["usage"] for one in documents if one.get("usage")],
        "done": [data for _, data in events].count("[DONE]"),
    }


async def resumed(served: Front, event_id: str | None, request_id: str) -> tuple[int, str]:
    headers = {} if event_id is None else {"Last-Event-ID": event_id}
    url = f"{served.url}/v1/streams/{request_id}"
    async with served.http.get(url, headers=headers) as response:
        assert response.headers["x-pdd-request-id"].startswith("r-")
        return response.status, await response.text()


async def streamed(served: Front, path: str = "/v1/completions", **extra: Any) -> tuple[str, str]:
    """A whole stream with a key, and its request's id."""
    body = {**ASKED[path], "stream": True, **extra}
    async with served.http.post(served.url + path, json=body, headers=KEY) as response:
        assert response.status == 200
        return await response.text(), response.headers["x-pdd-request-id"]


@pytest.mark.parametrize("path", ASKED)
@pytest.mark.parametrize("usage", [True, False])
async def test_cut_behind_any_event_the_parts_say_what_the_whole_says(
    path: str, usage: bool
) -> None:
    steps = script("He", "", "l", "", "", "lo", " wor", "ld", logprobs=1)
    async with front(steps) as served:
        whole, request_id = await streamed(served, path, stream_options={"include_usage": usage})
        events = parsed(whole)
        expected = said(events)
        assert expected["text"] == "Hello world"
        for index, (event_id, _) in enumerate(events):
            status, rest = await resumed(served, event_id, request_id)
            assert status == 200
            if index < len(events) - 1:
                assert said([*events[: index + 1], *parsed(rest)]) == expected, event_id
        assert said(parsed((await resumed(served, None, request_id))[1])) == expected
        assert len(served.inference.requests) == 1


async def test_two_may_continue_a_running_stream_at_once_and_both_get_the_rest() -> None:
    gate = asyncio.Event()
    first, *rest = frames("a", "b", "c", logprobs=1)
    steps = [Planned(plan=PLAN), first, gate, *rest, ended(completion_tokens=3)]
    async with front(steps) as served:
        writer = await send_raw(
            served,
            "/v1/completions",
            {**ASKED["/v1/completions"], "stream": True},
            headers=b"Idempotency-Key: k1\r\n",
        )
        await soon(served.inference.waiting)
        request_id = served.inference.requests[0].request_id
        writer.close()
        url = f"{served.url}/v1/streams/{request_id}"
        headers = {"Last-Event-ID": f"{request_id}:1"}
        async with (
            served.http.get(url, headers=headers) as one,
            served.http.get(url, headers=headers) as two,
        ):
            gate.set()
            for response in (one, two):
                events = parsed(await response.text())
                assert said(events)["text"] == "bc"
                assert events[0][0] == f"{request_id}:2"
        assert len(served.inference.requests) == 1


async def test_a_client_that_leaves_a_continued_stream_may_come_back_once_more() -> None:
    gate = asyncio.Event()
    first, *rest = frames("a", "b", logprobs=1)
    steps = [Planned(plan=PLAN), first, gate, *rest, ended(completion_tokens=2)]
    async with front(steps) as served:
        writer = await send_raw(
            served,
            "/v1/completions",
            {**ASKED["/v1/completions"], "stream": True},
            headers=b"Idempotency-Key: k1\r\n",
        )
        await soon(served.inference.waiting)
        request_id = served.inference.requests[0].request_id
        writer.close()
        async with served.http.get(f"{served.url}/v1/streams/{request_id}") as response:
            assert b'"a"' in await response.content.readuntil(b"\n\n")
        again = asyncio.create_task(resumed(served, f"{request_id}:1", request_id))
        gate.set()
        assert said(parsed((await again)[1]))["text"] == "b"


@pytest.mark.parametrize("request_id", ["", "r-nobody", "x" * 5000, "r-%00"])
async def test_an_unknown_stream_is_a_404_that_says_what_may_be_the_cause(request_id: str) -> None:
    async with (
        front(script("a")) as served,
        served.http.get(f"{served.url}/v1/streams/{request_id}") as response,
    ):
        answer = await response.json()
        assert (response.status, answer["error"]["code"]) == (404, "request_not_found")
        assert "Idempotency-Key" in answer["error"]["message"]


@pytest.mark.parametrize(
    "event_id", ["x", "7", ":7", "r-other:1", "{}:-1", "{}:1x", "{}:01", "{}:1u", "{}:9"]
)
async def test_an_id_of_no_event_is_refused(event_id: str) -> None:
    async with front(script("a", "b", logprobs=1)) as served:
        _, request_id = await streamed(served)
        status, text = await resumed(served, event_id.format(request_id), request_id)
        assert (status, json.loads(text)["error"]["code"]) == (400, "invalid_event_id")


async def test_an_ended_stream_is_gone_after_its_age() -> None:
    async with front(script("a"), settings=GatewaySettings(resume_age_s=0.0)) as served:
        _, request_id = await streamed(served)
        status, text = await resumed(served, f"{request_id}:1", request_id)
        error = json.loads(text)["error"]
        assert (status, error["code"]) == (410, "request_gone")
        assert "ended more than 0 s ago" in error["message"]


async def test_a_failed_stream_is_gone_and_says_why() -> None:
    async with front([Planned(plan=PLAN), *frames("a"), RequestFailed("node died")]) as served:
        text, request_id = await streamed(served)
        assert parsed(text)[-1][0] == f"{request_id}:1", "an error has an id too"
        status, text = await resumed(served, f"{request_id}:1", request_id)
        assert status == 410
        assert "node died" in text


async def test_a_stream_whose_client_came_too_late_is_gone_and_says_so() -> None:
    settings = GatewaySettings(resume_grace_s=0.01)
    async with front([Planned(plan=PLAN), asyncio.Event()], settings=settings) as served:
        body = {**ASKED["/v1/completions"], "stream": True}
        writer = await send_raw(served, "/v1/completions", body, headers=b"Idempotency-Key: k1\r\n")
        await soon(served.inference.waiting)
        writer.close()
        await soon(served.inference.closed)
        status, text = await resumed(served, None, served.inference.requests[0].request_id)
        assert status == 410
        assert "no client came back within 0.01 s" in text


async def test_another_tenant_s_stream_is_not_known() -> None:
    async with front(script("a", logprobs=1)) as served:
        _, request_id = await streamed(served)
        url = f"{served.url}/v1/streams/{request_id}"
        async with served.http.get(url, headers={"x-pdd-tenant": "other"}) as response:
            assert response.status == 404


async def test_without_a_key_a_client_that_leaves_ends_its_request() -> None:
    async with front([Planned(plan=PLAN), *frames("a"), asyncio.Event()]) as served:
        body = {**ASKED["/v1/completions"], "stream": True}
        writer = await send_raw(served, "/v1/completions", body)
        await soon(served.inference.waiting)
        writer.close()
        await soon(served.inference.closed)
        status, _ = await resumed(served, None, served.inference.requests[0].request_id)
        assert status == 404


async def test_a_whole_answer_is_no_stream_to_continue() -> None:
    async with front(script("a", logprobs=1)) as served:
        body = ASKED["/v1/completions"]
        _, _, headers = await post(served, "/v1/completions", body, headers=KEY)
        status, text = await resumed(served, None, headers["x-pdd-request-id"])
        assert (status, json.loads(text)["error"]["code"]) == (400, "not_a_stream")


async def test_streams_are_read_and_not_posted_to() -> None:
    async with front(script("a")) as served:
        status, answer, headers = await post(served, "/v1/streams/r-1", {})
        assert (status, headers["Allow"]) == (405, "GET, DELETE")
        assert "use GET" in answer["error"]["message"]


async def test_who_leaves_for_good_says_so_and_ends_the_request_for_all_who_follow_it() -> None:
    async with front([Planned(plan=PLAN), *frames("a"), asyncio.Event()]) as served:
        body = {"prompt": "hi", "stream": True}
        async with served.http.post(
            f"{served.url}/v1/completions", json=body, headers=KEY
        ) as response:
            await response.content.readuntil(b"\n\n")
            url = f"{served.url}/v1/streams/{response.headers['x-pdd-request-id']}"
            for _ in range(2):
                async with served.http.delete(url) as deleted:
                    assert deleted.status == 204
            assert "cancelled by a client" in await response.text()
        await soon(served.inference.closed)
        async with served.http.get(url) as gone:
            assert gone.status == 410
        async with served.http.delete(f"{served.url}/v1/streams/r-nobody") as unknown:
            assert unknown.status == 404


@pytest.mark.parametrize(("request_id", "waits"), [("r-" + "0" * 24, True), ("r-1", False)])
async def test_only_what_may_be_a_request_is_waited_for(request_id: str, waits: bool) -> None:
    async with front(script("a"), settings=GatewaySettings(resume_wait_s=60.0)) as served:
        asked = asyncio.create_task(resumed(served, None, request_id))
        done, _ = await asyncio.wait([asked], timeout=0.2)
        assert bool(done) is not waits
        asked.cancel()
