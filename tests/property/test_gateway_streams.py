"""Whatever text and however cut: a stream says exactly what the engine said."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pdd.core.sampling import Sampling
from pdd.gateway.chat import ChatReply
from pdd.gateway.completions import CompletionReply
from pdd.gateway.reply import Reply
from tests.unit.gateway.builders import ended, frames, make_job

EXAMPLES = settings(max_examples=150, deadline=None, derandomize=True)
texts = st.lists(st.text(max_size=6), max_size=8)  # st.text has surrogates nowhere, the rest all


def documents(out: bytes) -> list[dict[str, Any]]:
    """Parse as a strict client does: one data line per event, no line break inside."""
    events = out.decode().split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    for event in events[:-1]:
        assert event.splitlines() == [event]
        assert event.startswith("data: ")
    return [json.loads(event[6:]) for event in events[:-2]]


def text_of(document: dict[str, Any]) -> str:
    if not document["choices"]:
        return ""
    choice = document["choices"][0]
    text: str = choice["text"] if "text" in choice else choice["delta"].get("content", "")
    return text


def reply(chat: bool, **changes: Any) -> Reply:
    kind = ChatReply if chat else CompletionReply
    return kind(make_job(**changes), model_name="tiny", created_s=17)


@EXAMPLES
@given(
    texts=texts,
    chat=st.booleans(),
    ids=st.booleans(),
    running=st.booleans(),
    logprobs=st.none() | st.integers(min_value=0, max_value=3),
    per_frame=st.integers(min_value=1, max_value=3),
)
def test_a_stream_and_a_whole_answer_say_the_same_as_the_engine(
    texts: list[str],
    chat: bool,
    ids: bool,
    running: bool,
    logprobs: int | None,
    per_frame: int,
) -> None:
    options: dict[str, Any] = {
        "sampling": Sampling(max_tokens=99, logprobs=logprobs),
        "return_token_ids": ids,
        "running_usage": running,
        "usage_chunk": True,
    }
    deltas = frames(*texts, logprobs=logprobs, tokens_per_frame=per_frame)
    streaming, whole = reply(chat, **options), reply(chat, stream=False, **options)
    out = streaming.opening()
    for delta in deltas:
        out += streaming.event(delta.frame)
        whole.collect(delta.frame)
    end = ended(completion_tokens=len(texts) * per_frame)
    shown = documents(out + streaming.closing(end))
    answer = json.loads(whole.document(end))

    said = "".join(texts)
    choice = answer["choices"][0]
    assert "".join(text_of(document) for document in shown) == said
    assert (choice["message"]["content"] if chat else choice["text"]) == said
    assert [d["choices"][0]["finish_reason"] for d in shown if d["choices"]][-1] == "stop"
    assert shown[-1]["usage"] == answer["usage"]
    token_ids = [token_id for delta in deltas for token_id in delta.frame.token_ids]
    if ids:
        streamed = [
            token_id
            for document in shown
            for part in document["choices"]
            for token_id in part.get("token_ids") or []
        ]
        assert streamed == choice["token_ids"] == token_ids
        assert sum("prompt_token_ids" in json.dumps(document) for document in shown) == 1
    if logprobs is not None:
        key = "content" if chat else "tokens"
        parts = [
            entry
            for document in shown
            for part in document["choices"]
            if part["logprobs"] is not None
            for entry in part["logprobs"][key]
        ]
        assert parts == choice["logprobs"][key]
        assert len(parts) == len(token_ids)
