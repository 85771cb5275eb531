"""No body, however odd, gets anything but a checked request or an InvalidRequest."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdd.core.errors import InvalidRequest
from pdd.core.identity import RequestId
from pdd.gateway.body import parse_json_object
from pdd.gateway.door import Door
from pdd.gateway.errors import error_body
from pdd.gateway.job import Job
from pdd.gateway.json_text import json_bytes
from pdd.gateway.other_fields import _LATER, _NO_EFFECT
from pdd.gateway.schema_chat import ChatFields
from pdd.gateway.schema_completions import CompletionFields
from pdd.gateway.tokenizer import ChatPrompt
from tests.unit.gateway.builders import MODEL

EXAMPLES = settings(max_examples=200, deadline=None, derandomize=True)


class PlainTokenizer:
    """A letter is a token; no threads."""

    async def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [ord(letter) % 256 for letter in text]

    async def encode_chat(self, chat: ChatPrompt) -> list[int]:
        text = "".join(str(message["content"]) for message in chat.messages)
        return await self.encode(text, add_special_tokens=False)

    async def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(map(chr, token_ids))


DOOR = Door(model=MODEL, tokenizer=PlainTokenizer(), seed_source=lambda: 1)

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=-3, max_value=25)
    | st.floats()
    | st.floats(min_value=-3, max_value=3)
    | st.text(max_size=20)
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)
NAMES = sorted(
    {*CompletionFields.model_fields, *ChatFields.model_fields, *_LATER, *_NO_EFFECT, "bogus"}
)
messages = st.lists(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["user", "system", "assistant"]),
            "content": st.text(max_size=9) | values,
        },
        optional={"name": values, "refusal": values, "tool_calls": values},
    ),
    min_size=1,
    max_size=3,
)
schemas = st.recursive(
    st.booleans() | st.fixed_dictionaries({"type": st.sampled_from(["object", "string", "x"])}),
    lambda inner: st.dictionaries(
        st.sampled_from(
            [
                "properties",
                "items",
                "anyOf",
                "pattern",
                "enum",
                "required",
                "$ref",
                "minimum",
                "maxLength",
                "additionalProperties",
                "$defs",
            ]
        ),
        inner
        | st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=3), inner, max_size=2)
        | scalars,
        max_size=4,
    ),
    max_leaves=10,
)
constraints = st.fixed_dictionaries(
    {},
    optional={
        "response_format": values
        | st.fixed_dictionaries(
            {
                "type": st.just("json_schema"),
                "json_schema": st.fixed_dictionaries({"schema": schemas}),
            }
        ),
        "structured_outputs": st.dictionaries(
            st.sampled_from(["json", "regex", "choice", "grammar", "json_object"]),
            values | schemas,
            max_size=2,
        ),
    },
)


def checked(body: dict[str, Any], *, chat: bool) -> Job | InvalidRequest:
    check = DOOR.chat if chat else DOOR.completion
    running = check(body, request_id=RequestId("r"), deadline_s=1.0)
    try:
        running.send(None)  # this tokenizer never waits, so one step is all
    except StopIteration as done:
        job: Job = done.value
        return job
    except InvalidRequest as error:
        return error
    raise AssertionError("the door waited for something")


def hold(outcome: Job | InvalidRequest) -> None:
    """What must be true of every outcome."""
    if isinstance(outcome, InvalidRequest):
        assert str(outcome)
        told = json.loads(json_bytes(error_body(outcome)))["error"]
        assert told["type"] == "invalid_request_error"
        assert len(told["message"]) < 2000
        return
    request = outcome.request
    sampling = request.sampling
    assert 1 <= len(request.prompt_token_ids) < MODEL.max_model_len
    assert 1 <= sampling.max_tokens <= MODEL.max_model_len - len(request.prompt_token_ids)
    assert 0 <= sampling.min_tokens <= sampling.max_tokens
    assert all(0 <= token_id < MODEL.vocab_size for token_id in request.prompt_token_ids)
    assert 0 <= sampling.temperature <= 2
    assert 0 < sampling.top_p <= 1
    assert sampling.top_k >= 0
    assert sampling.logprobs is None or 0 <= sampling.logprobs <= 20
    assert isinstance(sampling.seed, int)


@pytest.mark.parametrize("chat", [True, False], ids=["chat", "completion"])
def test_any_single_field_with_any_value_is_checked_or_refused(chat: bool) -> None:
    good: dict[str, Any] = (
        {"messages": [{"role": "user", "content": "hi"}]} if chat else {"prompt": "hi"}
    )
    outcomes = {"accepted": 0, "refused": 0}

    @EXAMPLES
    @given(name=st.sampled_from(NAMES), value=values)
    def check(name: str, value: Any) -> None:
        outcome = checked({**good, name: value}, chat=chat)
        hold(outcome)
        outcomes["accepted" if isinstance(outcome, Job) else "refused"] += 1

    check()
    assert min(outcomes.values()) > 10, outcomes  # both ways were really taken


@EXAMPLES
@given(
    body=st.dictionaries(st.sampled_from(NAMES), values, max_size=6),
    chat=st.booleans(),
    prompt=messages | values,
    constraint=constraints,
)
def test_any_body_is_checked_or_refused(
    body: dict[str, Any], chat: bool, prompt: Any, constraint: dict[str, Any]
) -> None:
    hold(checked({**body, **constraint, "messages" if chat else "prompt": prompt}, chat=chat))


@EXAMPLES
@given(constraint=constraints)
def test_any_constraint_is_checked_or_refused(constraint: dict[str, Any]) -> None:
    hold(checked({"prompt": "hi", **constraint}, chat=False))


@EXAMPLES
@given(raw=st.binary(max_size=200) | values.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_an_object_or_refused(raw: bytes) -> None:
    try:
        parsed = parse_json_object(raw)
    except InvalidRequest as error:
        hold(error)
    else:
        assert isinstance(parsed, dict)
