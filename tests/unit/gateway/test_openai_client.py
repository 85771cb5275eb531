"""The official client, unmodified, against a real socket."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel

from pdd.core.errors import AdmissionRejected, RequestFailed
from tests.sinks import Planned
from tests.unit.gateway.builders import PLAN, Front, frames, front, script, soon

TYPES: dict[tuple[str, bool], type[BaseModel]] = {
    ("chat", False): ChatCompletion,
    ("chat", True): ChatCompletionChunk,
    ("text", False): Completion,
    ("text", True): Completion,
}
HI: Any = [{"role": "user", "content": "hi"}]


@asynccontextmanager
async def client(steps: list[Any]) -> AsyncIterator[tuple[openai.AsyncOpenAI, Front]]:
    async with (
        front(steps) as served,
        openai.AsyncOpenAI(
            base_url=f"{served.url}/v1", api_key="none", max_retries=0, timeout=10
        ) as ai,
    ):
        yield ai, served


async def test_chat() -> None:
    async with client(script("Hel", "lo")) as (ai, _):
        answer = await ai.chat.completions.create(model="tiny", messages=HI)
        assert answer.choices[0].message.content == "Hello"
        assert answer.choices[0].finish_reason == "stop"
        assert answer.usage is not None
        assert answer.usage.total_tokens == 7
        assert answer.usage.prompt_tokens_details is not None
        assert answer.usage.prompt_tokens_details.cached_tokens == 3
        assert answer.usage.model_extra is not None
        assert answer.usage.model_extra["pdd"]["path"] == "disaggregated"


async def test_chat_stream_with_usage() -> None:
    async with client(script("Hel", "", "lo")) as (ai, _):
        stream = await ai.chat.completions.create(
            model="tiny", messages=HI, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        assert chunks[0].choices[0].delta.role == "assistant"
        said = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
        assert "".join(said) == "Hello"
        assert chunks[-2].choices[0].finish_reason == "stop"
        assert chunks[-1].choices == []
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == 3


async def test_chat_logprobs_in_both_ways() -> None:
    for stream in (False, True):
        async with client(script("a", "b", logprobs=2)) as (ai, _):
            answer: Any = await ai.chat.completions.create(
                model="tiny", messages=HI, logprobs=True, top_logprobs=2, stream=stream
            )
            choices = (
                [chunk.choices[0] async for chunk in answer] if stream else [answer.choices[0]]
            )
            entries = [
                entry
                for choice in choices
                if choice.logprobs is not None
                for entry in choice.logprobs.content
            ]
            assert [entry.token for entry in entries] == ["a", "b"]
            assert bytes(entries[0].bytes) == b"a"
            assert [top.logprob for top in entries[0].top_logprobs] == [-0.5, -1.0]


async def test_completion_with_token_ids_and_extensions() -> None:
    async with client(script("a", "b")) as (ai, served):
        answer = await ai.completions.create(
            model="tiny",
            prompt=[5, 6, 7],
            max_tokens=4,
            extra_body={"return_token_ids": True, "top_k": 3, "ignore_eos": True},
        )
        choice = answer.choices[0]
        assert choice.text == "ab"
        assert choice.model_extra is not None
        assert choice.model_extra["token_ids"] == [100, 101]
        assert choice.model_extra["prompt_token_ids"] == [5, 6, 7]
        sampling = served.inference.requests[0].sampling
        assert (sampling.top_k, sampling.ignore_eos) == (3, True)


async def test_completion_stream() -> None:
    async with client(script("a", "b", logprobs=1)) as (ai, _):
        stream = await ai.completions.create(
            model="tiny", prompt="x", stream=True, echo=False, logprobs=1
        )
        chunks = [chunk async for chunk in stream]
        assert "".join(chunk.choices[0].text for chunk in chunks) == "ab"
        logprobs = chunks[1].choices[0].logprobs
        assert logprobs is not None
        assert (logprobs.tokens, logprobs.text_offset) == (["b"], [1])


@pytest.mark.parametrize(("kind", "stream"), TYPES, ids=str)
async def test_every_document_passes_openai_s_own_types_strictly(kind: str, stream: bool) -> None:
    """The client itself builds its objects without checking anything."""
    asked: dict[str, Any] = (
        {"messages": HI, "logprobs": True, "top_logprobs": 2}
        if kind == "chat"
        else {"prompt": "x", "logprobs": 2}
    )
    path = "/v1/chat/completions" if kind == "chat" else "/v1/completions"
    body = {**asked, "stream": stream, "stream_options": {"include_usage": True}}
    async with (
        front(script("a", "", "b", logprobs=2)) as served,
        served.http.post(served.url + path, json=body) as response,
    ):
        text = await response.text()
    documents = (
        [line[6:] for line in text.splitlines() if line.startswith("data: {")] if stream else [text]
    )
    assert len(documents) == (1 if not stream else 6 if kind == "chat" else 5)
    for document in documents:
        # The older API's type lets every choice of a stream have a reason; OpenAI sends null.
        if kind == "text" and stream:
            document = document.replace('"finish_reason":null', '"finish_reason":"stop"')
        TYPES[kind, stream].model_validate_json(document, strict=True)


async def test_models() -> None:
    async with client([]) as (ai, _):
        assert [model.id async for model in ai.models.list()] == ["tiny"]
        assert (await ai.models.retrieve("tiny")).owned_by == "pdd"


async def test_errors_become_the_client_s_own() -> None:
    async with client([AdmissionRejected("full", retry_after_s=1)]) as (ai, _):
        with pytest.raises(openai.RateLimitError):
            await ai.chat.completions.create(model="tiny", messages=HI)
        with pytest.raises(openai.BadRequestError) as caught:
            await ai.chat.completions.create(model="tiny", messages=HI, temperature=9)
        assert caught.value.param == "temperature"
        assert caught.value.code == "invalid_value"


async def test_an_error_in_the_middle_of_a_stream_is_raised() -> None:
    async with client([Planned(plan=PLAN), *frames("a"), RequestFailed("decode-0 died")]) as (
        ai,
        _,
    ):
        stream = await ai.chat.completions.create(model="tiny", messages=HI, stream=True)
        with pytest.raises(openai.APIError, match="decode-0 died"):
            async for _chunk in stream:
                pass


async def test_closing_the_stream_cancels_the_request() -> None:
    steps = [Planned(plan=PLAN), *frames("a"), asyncio.Event()]
    async with client(steps) as (ai, served):
        stream = await ai.chat.completions.create(model="tiny", messages=HI, stream=True)
        async for chunk in stream:
            if chunk.choices[0].delta.content:
                break
        await stream.close()
        await soon(served.inference.closed)
        assert served.inference.open_count == 0
