"""A request that is sent again joins the one that runs or ran; it never runs twice."""

import asyncio
import json
import time
from typing import Any

import pytest

from pdd.core.errors import AdmissionRejected, NodeUnavailable, RequestFailed
from pdd.core.identity import RequestId
from pdd.gateway import runs as runs_module
from pdd.gateway.job import Job
from pdd.gateway.run import RunName
from pdd.gateway.runs import Runs
from pdd.gateway.settings import GatewaySettings
from tests.sinks import Planned
from tests.unit.gateway.builders import (
    PLAN,
    Front,
    Played,
    ended,
    frames,
    front,
    make_job,
    post,
    script,
    soon,
)
from tests.unit.gateway.test_leaving import send_raw

TEXT = {"prompt": "hi"}
STREAM = {"prompt": "hi", "stream": True}
KEY = {"idempotency-key": "k1"}


async def ask(
    served: Front, body: dict[str, Any] = TEXT, *, key: str = "k1", path: str = "/v1/completions"
) -> tuple[int, dict[str, Any], Any]:
    return await post(served, path, body, headers={"idempotency-key": key})


def shown(stream: str) -> tuple[str, list[dict[str, Any]]]:
    """All text of a stream, and its documents."""
    events = stream.split("\n\n")
    assert events[-2].endswith("\ndata: [DONE]")
    assert events[-1] == ""
    documents = [json.loads(event.partition("\ndata: ")[2]) for event in events[:-2]]
    text = "".join(choice["text"] for one in documents for choice in one["choices"])
    return text, documents


async def test_a_finished_request_is_told_again_and_not_run_again() -> None:
    async with front(script("a", "b")) as served:
        _, first, headers = await ask(served)
        _, second, again = await ask(served)
        assert len(served.inference.requests) == 1
        assert {**first, "created": 0} == {**second, "created": 0}
        assert again["x-pdd-request-id"] == headers["x-pdd-request-id"]
        assert again["x-pdd-path"] == "disaggregated"


async def test_without_a_key_and_with_another_it_runs_again() -> None:
    async with front(script("a")) as served:
        await ask(served)
        await ask(served, key="k2")
        await post(served, "/v1/completions", TEXT)
        await post(served, "/v1/completions", TEXT)
        assert len(served.inference.requests) == 4


async def test_a_key_counts_for_its_endpoint_only() -> None:
    async with front(script("a")) as served:
        await ask(served)
        messages = {"messages": [{"role": "user", "content": "hi"}]}
        status, answer, _ = await ask(served, messages, path="/v1/chat/completions")
        assert (status, answer["object"]) == (200, "chat.completion")
        assert len(served.inference.requests) == 2


async def test_another_body_under_the_same_key_is_refused() -> None:
    async with front(script("a")) as served:
        await ask(served)
        status, answer, _ = await ask(served, {"prompt": "other"})
        assert (status, answer["error"]["code"]) == (400, "idempotency_key_reused")
        assert len(served.inference.requests) == 1


@pytest.mark.parametrize("key", ["", "k" * 256, "caf\u00e9"])
async def test_an_odd_key_is_refused(key: str) -> None:
    async with front(script("a")) as served:
        status, answer, _ = await ask(served, key=key)
        assert (status, answer["error"]["code"]) == (400, "invalid_idempotency_key")
        assert served.inference.requests == []


async def test_two_at_once_share_a_run_and_a_late_stream_gets_all_of_it() -> None:
    gate = asyncio.Event()
    one, *rest = frames("a", "b", "c")
    steps = [Planned(plan=PLAN), one, gate, *rest, ended(completion_tokens=3)]
    url = "/v1/completions"
    async with front(steps) as served:
        async with served.http.post(served.url + url, json=STREAM, headers=KEY) as early:
            await soon(served.inference.waiting)
            async with served.http.post(served.url + url, json=STREAM, headers=KEY) as late:
                first = await late.content.readuntil(b"\n\n")  # told from the start
                assert first.startswith(b"id: ")
                assert b'"text":"a"' in first
                gate.set()
                told = first + await late.content.read()
                texts = [shown(await early.text())[0], shown(told.decode())[0]]
        assert texts == ["abc", "abc"]
        assert len(served.inference.requests) == 1
        assert served.sample("pdd_requests_running") == 0


async def test_a_client_that_comes_back_finds_its_request_running() -> None:
    gate = asyncio.Event()
    async with front([Planned(plan=PLAN), *frames("a"), gate, *script("a", "b")[2:]]) as served:
        writer = await send_raw(
            served, "/v1/completions", STREAM, headers=b"Idempotency-Key: k1\r\n"
        )
        await soon(served.inference.waiting)
        writer.close()
        async with served.http.post(
            f"{served.url}/v1/completions",
            data=json.dumps(STREAM).encode(),
            headers={**KEY, "content-type": "application/json"},
        ) as again:
            gate.set()
            assert shown(await again.text())[0] == "ab"
        assert len(served.inference.requests) == 1


async def test_a_request_whose_client_does_not_come_back_is_cancelled() -> None:
    settings = GatewaySettings(resume_grace_s=0.05)
    async with front([Planned(plan=PLAN), asyncio.Event()], settings=settings) as served:
        writer = await send_raw(
            served, "/v1/completions", STREAM, headers=b"Idempotency-Key: k1\r\n"
        )
        await soon(served.inference.waiting)
        writer.close()
        await soon(served.inference.closed)
        assert served.inference.open_count == 0


@pytest.mark.parametrize(
    ("steps", "status"),
    [
        ([AdmissionRejected("full", retry_after_s=1)], 429),
        ([Planned(plan=PLAN), *frames("a"), RequestFailed("died")], 500),
    ],
)
async def test_a_failed_request_runs_again(steps: list[Any], status: int) -> None:
    async with front(steps) as served:
        assert (await ask(served))[0] == status
        served.inference.steps = script("a")
        assert (await ask(served))[0] == 200
        assert len(served.inference.requests) == 2


async def test_a_refused_request_is_forgotten() -> None:
    async with front(script("a")) as served:
        assert (await ask(served, {"prompt": ""}))[0] == 400
        assert (await ask(served))[0] == 200


async def test_ended_requests_are_forgotten_at_their_age() -> None:
    async with front(script("a"), settings=GatewaySettings(resume_age_s=0.0)) as served:
        await ask(served)
        await ask(served)
        assert len(served.inference.requests) == 2


@pytest.mark.parametrize(
    ("bound", "value"), [("ENDED_RUN_COUNT_MAX", 2), ("ENDED_TOKEN_COUNT_MAX", 10)]
)
async def test_the_oldest_are_forgotten_at_the_bounds(
    bound: str, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs_module, bound, value)
    async with front(script("a")) as served:  # 3 prompt tokens and 1 of output each
        for key in ("k1", "k2", "k3"):
            await ask(served, key=key)
        await ask(served, key="k3")
        await ask(served, key="k2")
        assert len(served.inference.requests) == 3
        await ask(served, key="k1")
        assert len(served.inference.requests) == 4


async def test_stopping_leaves_a_request_with_a_key_to_the_nodes_for_another_scheduler() -> None:
    async with front([Planned(plan=PLAN), asyncio.Event()]) as served:
        writer = await send_raw(
            served, "/v1/completions", STREAM, headers=b"Idempotency-Key: k1\r\n"
        )
        await soon(served.inference.waiting)
        writer.close()
        await served.stop()
        (request,) = served.inference.requests
        assert served.inference.open_count == 1
        assert request.resume, "what another scheduler needs"
        served.inference.cancel(request.request_id)


class Waiting:
    """A table whose requests wait for the tokenizer until ``gate`` opens."""

    def __init__(self, *, linger_s: float) -> None:
        self.gate = asyncio.Event()
        self.inference = Played()
        self.runs = Runs(
            inference=self.inference, clock=time.monotonic, age_s=600.0, linger_s=linger_s
        )

    async def client(self) -> Job:
        name = RunName(path="/v1/completions", tenant="t", key="k1", digest=b"")
        return await self.runs.join(name, RequestId("r-test"), prepare=self._prepare).job()

    async def _prepare(self) -> Job:
        await self.gate.wait()
        return make_job()


async def begun(client: asyncio.Task[Job]) -> None:
    """A client waits for the tokenizer once its task has had a turn."""
    await asyncio.sleep(0)
    assert not client.done()


async def left(client: asyncio.Task[Job]) -> None:
    client.cancel()
    await asyncio.wait([client])
    assert client.cancelled(), "who leaves is cancelled and nothing else"


async def test_a_client_that_comes_back_before_its_prompt_is_tokenised_ends_the_waiting() -> None:
    table = Waiting(linger_s=0.01)
    first = asyncio.create_task(table.client())
    await begun(first)
    await left(first)
    second = asyncio.create_task(table.client())
    await begun(second)
    await asyncio.sleep(0.02)  # a timer that the first one has left would be over by now
    table.gate.set()
    async with asyncio.timeout(10):
        assert (await second).request.request_id == "r-test"
    assert len(table.inference.requests) == 1
    table.runs.close()


async def test_if_it_leaves_once_more_the_request_is_given_up() -> None:
    table = Waiting(linger_s=0.01)
    for _ in range(2):
        client = asyncio.create_task(table.client())
        await begun(client)
        await left(client)
    await asyncio.sleep(0.02)  # behind the timer, which was set before
    assert len(table.runs) == 0
    table.gate.set()
    await asyncio.sleep(0)
    assert table.inference.requests == []


async def test_who_waits_for_a_run_that_is_closed_is_told_and_not_cancelled() -> None:
    table = Waiting(linger_s=60.0)
    client = asyncio.create_task(table.client())
    await begun(client)
    table.runs.close()
    async with asyncio.timeout(10):
        with pytest.raises(NodeUnavailable, match="stopping"):
            await client
    assert len(table.runs) == 0
