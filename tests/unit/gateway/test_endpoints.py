"""The endpoints over a real socket: answers, headers, errors, health, models, metrics."""

import asyncio
import json
from typing import Any

import pytest

from pdd.core.errors import (
    AdmissionRejected,
    DeadlineExceeded,
    NodeUnavailable,
    RequestFailed,
)
from pdd.core.requests import Path, Plan
from pdd.gateway.served import Health, ServedModel
from pdd.gateway.settings import GatewaySettings
from tests.sinks import Planned
from tests.unit.gateway.builders import PLAN, frames, front, post, script

CHAT = {"messages": [{"role": "user", "content": "hi"}]}
TEXT = {"prompt": "hi"}
ENDPOINTS = [("/v1/chat/completions", CHAT), ("/v1/completions", TEXT)]


@pytest.mark.parametrize(("path", "body"), ENDPOINTS)
@pytest.mark.parametrize("stream", [True, False])
async def test_every_answer_names_its_request_and_its_path(
    path: str, body: dict[str, Any], stream: bool
) -> None:
    async with front(script("a", "b")) as served:
        sent = {**body, "stream": stream}
        async with served.http.post(
            served.url + path, json=sent, headers={"x-request-id": "mine-7"}
        ) as response:
            await response.read()
            assert response.status == 200
            assert response.headers["x-request-id"] == "mine-7"
            assert response.headers["x-pdd-path"] == "disaggregated"
            request_id = served.inference.requests[0].request_id
            assert response.headers["x-pdd-request-id"] == request_id


@pytest.mark.parametrize("unsafe", ["x" * 129, "caf\u00e9", "a\tb", ""])
async def test_a_client_id_that_is_not_safe_to_echo_is_replaced(unsafe: str) -> None:
    async with front(script("a")) as served:
        _, _, headers = await post(
            served, "/v1/completions", TEXT, headers={"x-request-id": unsafe}
        )
        assert headers["x-request-id"] == headers["x-pdd-request-id"]


async def test_a_stream_has_the_headers_of_one_and_arrives_event_by_event() -> None:
    gate = asyncio.Event()
    deltas = frames("a", "b")
    steps = [Planned(plan=PLAN), deltas[0], gate, deltas[1], script("a", "b")[-1]]
    async with (
        front(steps) as served,
        served.http.post(f"{served.url}/v1/completions", json={**TEXT, "stream": True}) as response,
    ):
        assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        assert response.headers["Cache-Control"] == "no-cache"
        first = await response.content.readuntil(b"\n\n")  # the second token is not there yet
        assert first.startswith(b"id: " + response.headers["x-pdd-request-id"].encode() + b":1\n")
        assert b'"text":"a"' in first
        assert not gate.is_set()
        gate.set()
        rest = await response.content.read()
        assert rest.endswith(b"data: [DONE]\n\n")


async def test_headers_go_ahead_of_a_first_token_that_takes_long() -> None:
    gate = asyncio.Event()
    steps = [Planned(plan=PLAN), gate, *script("a")[1:]]
    settings = GatewaySettings(header_hold_s=0.01)
    async with (
        front(steps, settings=settings) as served,
        served.http.post(f"{served.url}/v1/completions", json={**TEXT, "stream": True}) as response,
    ):
        assert response.status == 200  # headers are here, the token is not
        assert not gate.is_set()
        gate.set()
        assert b'"text":"a"' in await response.read()


async def test_the_role_comes_before_a_first_token_that_comes_after_the_headers() -> None:
    gate = asyncio.Event()
    steps = [Planned(plan=PLAN), gate, *script("a", "b")[1:]]
    settings = GatewaySettings(header_hold_s=0.01)
    async with (
        front(steps, settings=settings) as served,
        served.http.post(
            f"{served.url}/v1/chat/completions", json={**CHAT, "stream": True}
        ) as response,
    ):
        gate.set()
        text = (await response.read()).decode()
    events = [
        dict(line.split(": ", 1) for line in event.split("\n")) for event in text.split("\n\n")[:-1]
    ]
    assert [event["id"].rpartition(":")[2] for event in events] == ["0", "1", "2", "2f", "2f"]
    deltas = [json.loads(event["data"])["choices"][0]["delta"] for event in events[:-1]]
    assert deltas == [{"role": "assistant", "content": ""}, {"content": "a"}, {"content": "b"}, {}]


async def test_the_whole_answer_of_a_chat_counts_what_the_engines_counted() -> None:
    async with front(script("Hel", "lo")) as served:
        status, answer, _ = await post(served, "/v1/chat/completions", CHAT)
        assert status == 200
        assert answer["choices"][0]["message"]["content"] == "Hello"
        assert answer["usage"]["total_tokens"] == 7
        assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 3}
        assert answer["usage"]["pdd"]["path"] == "disaggregated"
        assert answer["usage"]["pdd"]["decode_computed_prompt_tokens"] == 1


async def test_a_prompt_is_tokenised_exactly_once() -> None:
    async with front(script("a")) as served:
        await post(served, "/v1/chat/completions", CHAT)
        await post(served, "/v1/completions", {**TEXT, "echo": True})
        assert served.tokenizer.calls == 2


async def test_the_chat_template_gets_no_second_begin_token_but_plain_text_does() -> None:
    async with front(script("a")) as served:
        await post(served, "/v1/chat/completions", CHAT)
        await post(served, "/v1/completions", {"prompt": "A"})
        await post(served, "/v1/completions", {"prompt": "A", "add_special_tokens": False})
        chat, text, bare = served.inference.requests
        assert chat.prompt_token_ids[0] == ord("u")
        assert text.prompt_token_ids == (1, 65)
        assert bare.prompt_token_ids == (65,)


ERRORS = [
    (AdmissionRejected("queue full", retry_after_s=2.1), 429, "rate_limit_exceeded"),
    (NodeUnavailable("no decode node"), 503, "node_unavailable"),
    (DeadlineExceeded("took too long"), 504, "deadline_exceeded"),
    (RequestFailed("decode-0 died"), 500, "request_failed"),
    (ZeroDivisionError("a fault of ours"), 500, "internal_error"),
]


@pytest.mark.parametrize(("error", "status", "code"), ERRORS)
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("planned", [True, False])
async def test_an_error_before_the_first_token_has_a_status_of_its_own(
    error: Exception, status: int, code: str, stream: bool, planned: bool
) -> None:
    steps = [Planned(plan=PLAN), error] if planned else [error]
    async with front(steps) as served:
        got, answer, headers = await post(
            served, "/v1/chat/completions", {**CHAT, "stream": stream}
        )
        assert got == status
        assert answer["error"]["code"] == code
        assert answer["error"]["param"] is None
        assert "fault of ours" not in answer["error"]["message"]
        assert headers["x-pdd-request-id"].startswith("r-")
        assert headers.get("Retry-After") == ("3" if status == 429 else None)


@pytest.mark.parametrize(("error", "status", "code"), ERRORS)
async def test_an_error_after_the_first_token_is_one_event_and_never_done(
    error: Exception, status: int, code: str
) -> None:
    async with front([Planned(plan=PLAN), *frames("a"), error]) as served:
        async with served.http.post(
            f"{served.url}/v1/chat/completions", json={**CHAT, "stream": True}
        ) as response:
            assert response.status == 200
            lines = (await response.text()).split("\n\n")
        assert lines[-1] == ""
        last = json.loads(lines[-2].partition("\ndata: ")[2])
        assert last["error"]["code"] == code
        assert sum('"error"' in line for line in lines) == 1
        assert not any("[DONE]" in line for line in lines)
        assert served.inference.open_count == 0


async def test_lost_tokens_end_the_stream_with_an_error() -> None:
    one, _, three = frames("a", "b", "c")
    async with front([Planned(plan=PLAN), one, three]) as served:
        async with served.http.post(
            f"{served.url}/v1/completions", json={**TEXT, "stream": True}
        ) as response:
            text = await response.text()
        assert "output lost or doubled" in text
        assert '"text":"c"' not in text


async def test_health_is_503_with_a_reason_until_a_decode_node_is_ready() -> None:
    down = Health(decode_ready_count=0, prefill_ready_count=1, reason="decode-0 is loading")
    async with front(health=down) as served, served.http.get(f"{served.url}/health") as response:
        assert response.status == 503
        assert (await response.json())["reason"] == "decode-0 is loading"
    async with front() as served, served.http.get(f"{served.url}/health") as response:
        assert response.status == 200
        assert (await response.json())["status"] == "ok"


async def test_models_are_listed_and_found_by_name_with_slashes() -> None:
    model = ServedModel(name="org/tiny", max_model_len=100, vocab_size=256, created_s=17)
    async with front(model=model) as served:
        async with served.http.get(f"{served.url}/v1/models") as response:
            listed = await response.json()
        assert listed["data"][0]["id"] == "org/tiny"
        assert listed["data"][0]["max_model_len"] == 100
        async with served.http.get(f"{served.url}/v1/models/org/tiny") as response:
            assert await response.json() == listed["data"][0]
        async with served.http.get(f"{served.url}/v1/models/other") as response:
            assert response.status == 404
            assert (await response.json())["error"]["code"] == "model_not_found"


async def test_unknown_routes_and_methods_answer_in_the_same_shape() -> None:
    async with front() as served:
        async with served.http.get(f"{served.url}/v1/nothing") as response:
            assert response.status == 404
            assert (await response.json())["error"]["type"] == "invalid_request_error"
        async with served.http.get(f"{served.url}/v1/completions") as response:
            assert response.status == 405
            assert response.headers["Allow"] == "POST"
            assert (await response.json())["error"]["code"] == "method_not_allowed"
        async with served.http.put(f"{served.url}/v1/models") as response:
            assert response.status == 405
            message = (await response.json())["error"]["message"]
            assert message == "PUT /v1/models: Method Not Allowed; use GET or HEAD"


async def test_metrics_tell_outcomes_and_tokens() -> None:
    async with front(script("a", "b", "c")) as served:
        await post(served, "/v1/completions", TEXT)
        await post(served, "/v1/completions", {"prompt": ""})
        async with served.http.get(f"{served.url}/metrics") as response:
            shown = await response.text()
        assert "# TYPE pdd_time_to_first_token_seconds histogram" in shown
        assert "pdd_generation_tokens_total 3.0" in shown
        assert (
            served.sample(
                "pdd_requests_total", surface="http", path="disaggregated", outcome="finished"
            )
            == 1
        )
        assert (
            served.sample("pdd_requests_total", surface="http", path="none", outcome="invalid") == 1
        )
        assert served.sample("pdd_inter_token_latency_seconds_count") == 2
        assert served.sample("pdd_requests_running") == 0


async def test_the_local_path_is_told_in_the_header() -> None:
    plan = Plan(path=Path.LOCAL, prefill_node=None, decode_node=None, reason="no prefill node")
    async with front([Planned(plan=plan), *script("a")[1:]]) as served:
        _, _, headers = await post(served, "/v1/completions", TEXT)
        assert headers["x-pdd-path"] == "local"


async def test_one_request_more_than_may_run_is_rejected() -> None:
    gate = asyncio.Event()
    settings = GatewaySettings(max_running_requests=1)
    async with front([gate, *script("a")], settings=settings) as served:
        async with asyncio.TaskGroup() as tasks:
            first = tasks.create_task(post(served, "/v1/completions", TEXT))
            await served.inference.waiting.wait()
            status, answer, headers = await post(served, "/v1/completions", TEXT)
            gate.set()
        assert status == 429
        assert headers["Retry-After"] == "1"
        assert "limit" in answer["error"]["message"]
        assert first.result()[0] == 200
