"""Every kind of bad body is a 400 that names field and bound, and no engine hears of it."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from pdd.gateway.settings import GatewaySettings
from tests.unit.gateway.builders import Front, front, post, script

TEXT = "/v1/completions"
CHAT = "/v1/chat/completions"
HI = [{"role": "user", "content": "hi"}]

# Field as the error must name it; what the message must say; what is sent beside a good prompt.
SHARED: list[tuple[str, str, dict[str, Any]]] = [
    ("model", "'tiny' is served", {"model": "gpt-9"}),
    ("model", "valid string", {"model": 7}),
    ("max_tokens", "greater than or equal to 1", {"max_tokens": 0}),
    ("max_tokens", "greater than or equal to 1", {"max_tokens": -5}),
    ("max_tokens", "valid integer", {"max_tokens": "16"}),
    ("max_tokens", "valid integer", {"max_tokens": 1.5}),
    ("max_tokens", "valid integer", {"max_tokens": True}),
    ("max_tokens", "takes 100 for both", {"max_tokens": 99}),
    ("max_tokens", "less than or equal to", {"max_tokens": 10**30}),
    ("min_tokens", "more than max_tokens", {"min_tokens": 9, "max_tokens": 8}),
    ("min_tokens", "greater than or equal to 0", {"min_tokens": -1}),
    ("temperature", "less than or equal to 2", {"temperature": 2.01}),
    ("temperature", "greater than or equal to 0", {"temperature": -0.1}),
    ("temperature", "valid number", {"temperature": "hot"}),
    ("temperature", "valid number", {"temperature": False}),
    ("temperature", "valid number", {"temperature": [1]}),
    ("top_p", "greater than 0", {"top_p": 0}),
    ("top_p", "less than or equal to 1", {"top_p": 1.1}),
    ("top_k", "greater than or equal to -1", {"top_k": -2}),
    ("top_k", "valid integer", {"top_k": 0.5}),
    ("min_p", "less than or equal to 1", {"min_p": 1.5}),
    ("presence_penalty", "less than or equal to 2", {"presence_penalty": 3}),
    ("frequency_penalty", "greater than or equal to -2", {"frequency_penalty": -3}),
    ("repetition_penalty", "greater than 0", {"repetition_penalty": 0}),
    ("seed", "valid integer", {"seed": "x"}),
    ("seed", "less than or equal to 9223372036854775807", {"seed": 2**63}),
    ("stop", "at most 16", {"stop": ["x"] * 17}),
    ("stop.1", "at least 1 character", {"stop": ["x", ""]}),
    ("stop.0", "valid string", {"stop": [3]}),
    ("stop", "valid list", {"stop": {"a": 1}}),
    ("stop_token_ids.1", "ids go from 0 to 255", {"stop_token_ids": [3, 256]}),
    ("stop_token_ids.0", "valid integer", {"stop_token_ids": ["3"]}),
    ("stop_token_ids", "at most 128", {"stop_token_ids": [1] * 129}),
    ("allowed_token_ids.0", "ids go from 0 to 255", {"allowed_token_ids": [-1]}),
    ("allowed_token_ids", "at least 1", {"allowed_token_ids": []}),
    ("bad_words.0", "at least 1 character", {"bad_words": [""]}),
    ("logit_bias.x", "not a token id", {"logit_bias": {"x": 1}}),
    ("logit_bias.300", "ids go from 0 to 255", {"logit_bias": {"300": 1}}),
    ("logit_bias.5", "less than or equal to 100", {"logit_bias": {"5": 101}}),
    ("logit_bias.05", "named twice", {"logit_bias": {"5": 1, "05": 2}}),
    ("stream", "valid boolean", {"stream": 1}),
    ("stream_options.include_usage", "valid boolean", {"stream_options": {"include_usage": 1}}),
    ("stream_options.x", "not permitted", {"stream_options": {"x": 1}}),
    ("cache_salt", "at least 1 character", {"cache_salt": ""}),
    ("cache_salt", "at most 128 characters", {"cache_salt": "s" * 129}),
    ("priority", "valid integer", {"priority": "high"}),
    ("n", "greater than or equal to 1", {"n": 0}),
    ("n", "less than or equal to 128", {"n": 129}),
    ("n", "valid integer", {"n": True}),
    ("best_of", "not available", {"best_of": 3}),
    ("best_of", "not available", {"best_of": 2, "n": 2}),
    ("use_beam_search", "not available", {"use_beam_search": True}),
    ("prompt_logprobs", "not available", {"prompt_logprobs": 0}),
    ("tools", "tool calling: not available", {"tools": [{"type": "function"}]}),
    ("tool_choice", "not available", {"tool_choice": "required"}),
    ("modalities", "other than text", {"modalities": ["text", "audio"]}),
    ("audio", "not available", {"audio": {"voice": "x"}}),
    ("truncate_prompt_tokens", "not available", {"truncate_prompt_tokens": 5}),
    ("kv_transfer_params", "not available", {"kv_transfer_params": {"a": 1}}),
    ("user", "valid string", {"user": 5}),
    ("metadata", "must be an object", {"metadata": "x"}),
    ("temprature", "not a known field", {"temprature": 0.5}),
    ("response_format", "valid dictionary", {"response_format": "json"}),
    ("response_format.type", "json_schema", {"response_format": {"type": "xml"}}),
    ("response_format.json_schema", "object", {"response_format": {"type": "json_schema"}}),
    (
        "response_format.json_schema.schema.type",
        "must be one of",
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": {"type": "objekt"}},
            }
        },
    ),
    ("structured_outputs", "exactly one", {"structured_outputs": {}}),
    ("structured_outputs", "exactly one", {"structured_outputs": {"regex": "a", "choice": ["b"]}}),
    ("structured_outputs.regex", "not a regular", {"structured_outputs": {"regex": "(a"}}),
    ("structured_outputs.choice", "non-empty", {"structured_outputs": {"choice": []}}),
    ("structured_outputs.json", "not valid JSON", {"structured_outputs": {"json": "{"}}),
    ("structured_outputs.x", "not a known field", {"structured_outputs": {"x": 1}}),
    (
        "structured_outputs",
        "together with response_format",
        {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
    ),
]

ONLY_TEXT: list[tuple[str, str, dict[str, Any]]] = [
    ("prompt", "is required", {"prompt": None}),
    ("prompt", "is empty", {"prompt": ""}),
    ("prompt", "is empty", {"prompt": []}),
    ("prompt.0", "is empty", {"prompt": [""]}),
    ("prompt.0", "is empty", {"prompt": [[]]}),
    ("prompt", "at most 1 is taken", {"prompt": ["a", "b"]}),
    ("prompt", "at most 1 is taken", {"prompt": [[1], [2]]}),
    ("prompt.1", "must be a token id", {"prompt": [1, "a"]}),
    ("prompt.1", "must be a token id", {"prompt": [1, True]}),
    ("prompt.0.0", "must be a token id", {"prompt": [[None]]}),
    ("prompt", "must be a string or a list", {"prompt": {"a": 1}}),
    ("prompt", "must be a string or a list", {"prompt": 5}),
    ("prompt.2", "ids go from 0 to 255", {"prompt": [1, 2, 256]}),
    ("prompt.0", "ids go from 0 to 255", {"prompt": [-1]}),
    ("prompt.0", "an integer of 233 bits", {"prompt": [10**70]}),
    ("prompt", "at most 99 here", {"prompt": "x" * 100}),
    ("prompt", "at most 99 here", {"prompt": [1] * 100}),
    ("logprobs", "less than or equal to 20", {"logprobs": 21}),
    ("logprobs", "greater than or equal to 0", {"logprobs": -1}),
    ("logprobs", "valid integer", {"logprobs": True}),
    ("echo", "leave one of them out", {"echo": True, "logprobs": 1}),
    ("suffix", "not available", {"suffix": "end"}),
    ("messages", "not a known field", {"messages": HI}),
]

ONLY_CHAT: list[tuple[str, str, dict[str, Any]]] = [
    ("messages", "required", {"messages": ...}),
    ("messages", "at least 1 item", {"messages": []}),
    ("messages", "valid list", {"messages": "hi"}),
    ("messages.0", "valid dictionary", {"messages": ["hi"]}),
    ("messages.0.role", "'system'", {"messages": [{"role": "robot", "content": "x"}]}),
    ("messages.0.role", "required", {"messages": [{"content": "x"}]}),
    ("messages.0.content", "is required", {"messages": [{"role": "user"}]}),
    ("messages.0.content", "must be a string", {"messages": [{"role": "user", "content": 5}]}),
    ("messages.0.content", "non-empty list", {"messages": [{"role": "user", "content": []}]}),
    (
        "messages.0.content.0.type",
        "only text parts",
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
    ),
    (
        "messages.0.content.0.text",
        "must be a string",
        {"messages": [{"role": "user", "content": [{"type": "text", "text": 3}]}]},
    ),
    ("messages.0.x", "not permitted", {"messages": [{"role": "user", "content": "a", "x": 1}]}),
    (
        "messages.0.tool_calls",
        "not available",
        {"messages": [{"role": "assistant", "content": "a", "tool_calls": [{"id": "1"}]}]},
    ),
    ("messages", "at most 99 here", {"messages": [{"role": "user", "content": "x" * 100}]}),
    ("max_completion_tokens", "greater than or equal to 1", {"max_completion_tokens": 0}),
    ("logprobs", "valid boolean", {"logprobs": 5}),
    ("top_logprobs", "less than or equal to 20", {"logprobs": True, "top_logprobs": 21}),
    ("top_logprobs", "needs logprobs", {"top_logprobs": 2}),
    (
        "continue_final_message",
        "together with add_generation_prompt",
        {"continue_final_message": True, "add_generation_prompt": True},
    ),
    ("chat_template", "not available", {"chat_template": "{{ x }}"}),
    (
        "chat_template_kwargs.tokenize",
        "set by the server",
        {"chat_template_kwargs": {"tokenize": True}},
    ),
    ("prompt", "not a known field", {"prompt": "hi"}),
]


def cases() -> list[Any]:
    listed = [(TEXT, {"prompt": "hi"}, *case) for case in SHARED + ONLY_TEXT]
    listed += [(CHAT, {"messages": HI}, *case) for case in SHARED + ONLY_CHAT]
    return [
        pytest.param(*case, id=f"{case[0].split('/')[2]}-{index}-{case[2]}")
        for index, case in enumerate(listed)
    ]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_front() -> AsyncIterator[Front]:
    """One server for the whole table: nothing that is refused may leave a trace in it."""
    async with front(script("a")) as served:
        yield served
        assert served.inference.requests == []
        assert served.sample("pdd_requests_running") == 0


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(("path", "good", "field", "says", "bad"), cases())
async def test_a_bad_field_is_named_with_its_bound(
    shared_front: Front,
    path: str,
    good: dict[str, Any],
    field: str,
    says: str,
    bad: dict[str, Any],
) -> None:
    body = {name: value for name, value in {**good, **bad}.items() if value is not ...}
    status, answer, _ = await post(shared_front, path, body)
    error = answer["error"]
    assert status == 400, error
    assert error["type"] == "invalid_request_error"
    assert error["param"] == field, error
    assert says in error["message"], error
    assert error["message"].startswith(field.split(".")[0])
    assert shared_front.inference.requests == []


async def test_the_unknown_model_has_openai_s_code() -> None:
    async with front() as served:
        _, answer, _ = await post(served, TEXT, {"model": "gpt-9", "prompt": "x"})
        assert answer["error"]["code"] == "model_not_found"


async def test_a_too_long_prompt_has_openai_s_code() -> None:
    async with front() as served:
        _, answer, _ = await post(served, TEXT, {"prompt": "x" * 200})
        assert answer["error"]["code"] == "context_length_exceeded"
        assert "has 201 tokens" in answer["error"]["message"]


async def test_many_faults_are_told_at_once_but_not_without_end() -> None:
    async with front() as served:
        bad = {"prompt": "x", "temperature": 3, "top_p": 2, "max_tokens": 0, "stop": [1] * 9}
        _, answer, _ = await post(served, TEXT, bad)
        message = answer["error"]["message"]
        assert "temperature" in message
        assert "top_p" in message
        assert "and " in message
        assert len(message) < 1000


BODIES = {
    "empty": b"",
    "not JSON": b"{prompt: 1}",
    "cut short": b'{"prompt": "a',
    "two documents": b'{"prompt":"a"} {}',
    "a list": b"[1]",
    "a string": b'"prompt"',
    "null": b"null",
    "NaN": b'{"prompt":"a","temperature":NaN}',
    "Infinity": b'{"prompt":"a","temperature":Infinity}',
    "a float beyond all floats": b'{"prompt":"a","temperature":1e999}',
    "an integer of 5000 digits": b'{"prompt":"a","seed":' + b"9" * 5000 + b"}",
    "nested 100,000 deep": b'{"prompt":' + b"[" * 100_000,
    "nested and closed": b'{"prompt":' + b"[" * 5000 + b"]" * 5000 + b"}",
    "deep objects": b'{"x":' * 5000,
    "lone surrogate": b'{"prompt":"\\ud800"}',
    "lone surrogate in a key": b'{"\\ud800":1}',
    "invalid UTF-8": b'{"prompt":"\xff\xfe"}',
    "UTF-16": '{"prompt":"a"}'.encode("utf-16"),
    "zero bytes": b"\x00\x00",
}


@pytest.mark.parametrize("raw", BODIES.values(), ids=BODIES.keys())
async def test_a_body_that_is_not_strict_json_is_400(raw: bytes) -> None:
    async with front(script("a")) as served:
        for path in (TEXT, CHAT):
            async with served.http.post(
                served.url + path, data=raw, headers={"Content-Type": "application/json"}
            ) as response:
                assert response.status == 400
                assert (await response.json())["error"]["type"] == "invalid_request_error"
        assert served.inference.requests == []


async def test_forms_are_refused_and_a_missing_content_type_is_not() -> None:
    async with front(script("a")) as served:
        raw = json.dumps({"prompt": "a"})
        async with served.http.post(served.url + TEXT, data=raw.encode()) as response:
            assert response.headers["Content-Type"].startswith("application/json")
            assert response.status == 400  # aiohttp's client sends octet-stream
            assert "content-type" in (await response.json())["error"]["message"]
        async with served.http.post(
            served.url + TEXT, data=raw.encode(), skip_auto_headers=["Content-Type"]
        ) as response:
            assert response.status == 200


async def test_a_body_over_the_limit_is_413_whether_it_says_so_or_not() -> None:
    settings = GatewaySettings(max_body_bytes=1000)
    headers = {"Content-Type": "application/json"}

    async def chunks() -> Any:
        for _ in range(20):
            yield b" " * 100

    async with front(script("a"), settings=settings) as served:
        for data in (b" " * 1001, chunks()):
            async with served.http.post(served.url + TEXT, data=data, headers=headers) as response:
                assert response.status == 413
                assert "1000 bytes" in (await response.json())["error"]["message"]


async def test_a_compressed_body_counts_by_what_it_holds() -> None:
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    settings = GatewaySettings(max_body_bytes=10_000)
    bomb = gzip.compress(json.dumps({"prompt": "a" * 1_000_000}).encode())
    good = gzip.compress(json.dumps({"prompt": "a"}).encode())
    async with front(script("a"), settings=settings) as served:
        for data, status in ((good, 200), (bomb, 413), (b"not gzip at all", 400)):
            async with served.http.post(served.url + TEXT, data=data, headers=headers) as response:
                assert response.status == status, await response.text()


async def test_a_body_that_does_not_arrive_is_408() -> None:
    settings = GatewaySettings(body_timeout_s=0.05)
    async with front(settings=settings) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: 10\r\n\r\n{"
        )
        async with asyncio.timeout(10):
            head = await reader.readuntil(b"\r\n")
        writer.close()
        assert b"408" in head


ACCEPTED: list[dict[str, Any]] = [
    {"user": "u", "metadata": {"a": "b"}, "store": True, "service_tier": "auto"},
    {"prompt_cache_key": "k", "safety_identifier": "s", "reasoning_effort": "low"},
    {"n": 1, "tools": [], "tool_choice": "none", "parallel_tool_calls": False},
    {"modalities": ["text"], "logit_bias": {}, "stream_options": None, "stop": None},
    {"stream_options": {"include_usage": True}},
    {"temperature": 0, "top_p": 1, "top_k": -1, "seed": -(2**63), "max_tokens": None},
    {"use_beam_search": False, "length_penalty": 1.0, "response_format": {"type": "text"}},
    {"model": None},
    {"model": "tiny"},
]


@pytest.mark.parametrize("extra", ACCEPTED, ids=lambda extra: "-".join(extra))
async def test_fields_that_change_nothing_are_accepted(extra: dict[str, Any]) -> None:
    async with front(script("a")) as served:
        for path, good in ((TEXT, {"prompt": "hi"}), (CHAT, {"messages": HI})):
            status, answer, _ = await post(served, path, {**good, **extra})
            assert status == 200, answer
