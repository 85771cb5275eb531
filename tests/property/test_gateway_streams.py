"""Whatever text and however cut: a stream says exactly what the engine said."""

import json
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pdd.core.frames import Frame
from pdd.core.identity import RequestId
from pdd.core.sampling import Sampling
from pdd.gateway.chat import ChatReply
from pdd.gateway.completions import CompletionReply
from pdd.gateway.event_ids import START, Position, position_of
from pdd.gateway.reply import Reply
from tests.unit.gateway.builders import ended, frames, make_job

EXAMPLES = settings(max_examples=150, deadline=None, derandomize=True)
texts = st.lists(st.text(max_size=6), max_size=8)  # st.text has surrogates nowhere, the rest all


def documents(out: bytes) -> list[dict[str, Any]]:
    """Parse as a strict client does: an id and a data line per event, no line break inside."""
    events = out.decode().split("\n\n")
    assert events[-1] == ""
    lines = [event.splitlines() for event in events[:-1]]
    assert all(len(pair) == 2 for pair in lines)
    assert all(name.startswith("id: r-test:") for name, _ in lines)
    assert all(data.startswith("data: ") for _, data in lines)
    assert lines[-1][1] == "data: [DONE]"
    return [json.loads(data[6:]) for _, data in lines[:-1]]


def text_of(document: dict[str, Any]) -> str:
    if not document["choices"]:
        return ""
    choice = document["choices"][0]
    text: str = choice["text"] if "text" in choice else choice["delta"].get("content", "")
    return text


def ids_of(out: bytes) -> list[str]:
    return [line[4:] for line in out.decode().split("\n") if line.startswith("id: ")]


def reply(chat: bool, *, position: Position = START, **changes: Any) -> Reply:
    kind = ChatReply if chat else CompletionReply
    return kind(make_job(**changes), model_name="tiny", position=position)


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


@EXAMPLES
@given(
    texts=texts,
    chat=st.booleans(),
    ids=st.booleans(),
    running=st.booleans(),
    usage=st.booleans(),
    logprobs=st.none() | st.integers(min_value=0, max_value=3),
    per_frame=st.integers(min_value=1, max_value=3),
)
def test_a_stream_cut_behind_any_event_goes_on_byte_for_byte(
    texts: list[str],
    chat: bool,
    ids: bool,
    running: bool,
    usage: bool,
    logprobs: int | None,
    per_frame: int,
) -> None:
    options: dict[str, Any] = {
        "sampling": Sampling(max_tokens=99, logprobs=logprobs),
        "return_token_ids": ids,
        "running_usage": running,
        "usage_chunk": usage,
        "echo_text": "" if chat else "Once",
    }
    deltas = frames(*texts, logprobs=logprobs, tokens_per_frame=per_frame)
    end = ended(completion_tokens=len(texts) * per_frame)

    def told(position: Position) -> bytes:
        one = reply(chat, position=position, **options)
        return one.opening() + b"".join(one.event(d.frame) for d in deltas) + one.closing(end)

    whole = told(START)
    places = ids_of(whole)
    for index, place in enumerate(places[:-1]):  # the last one closes the stream
        rest = told(position_of(place, request_id=RequestId("r-test")))
        seen = whole.split(b"\n\n")[: index + 1]
        assert b"\n\n".join(seen) + b"\n\n" + rest == whole
    assert len(set(places[:-1])) == len(places) - 1, "no two events have the same id but DONE"


@EXAMPLES
@given(
    texts=st.lists(st.lists(st.text(max_size=4), max_size=4), min_size=2, max_size=3),
    order=st.randoms(use_true_random=False),
    chat=st.booleans(),
    ids=st.booleans(),
    logprobs=st.none() | st.integers(min_value=0, max_value=2),
)
def test_a_stream_of_several_choices_goes_on_behind_any_event(
    texts: list[list[str]], order: Any, chat: bool, ids: bool, logprobs: int | None
) -> None:
    """Choice by choice: the order between them may be another one when it is told again."""
    count = len(texts)
    base = make_job(
        sampling=Sampling(max_tokens=99, logprobs=logprobs), return_token_ids=ids, usage_chunk=True
    )
    job = replace(base, request=replace(base.request, choice_count=count))
    queues = [
        [replace(d.frame, choice_index=i) for d in frames(*one, logprobs=logprobs)]
        for i, one in enumerate(texts)
    ]
    for index, queue in enumerate(queues):
        end = frames("")[0].frame
        last = queue[-1] if queue else None
        first = 0 if last is None else last.first_token_index + len(last.token_ids)
        offset = 0 if last is None else last.text_offset + len(last.text)
        finish = ended().finish
        queue.append(
            replace(
                end,
                choice_index=index,
                first_token_index=first,
                text_offset=offset,
                token_ids=(),
                finish=finish,
            )
        )
    mixed = []
    waiting = [list(queue) for queue in queues]
    while any(waiting):
        mixed.append(order.choice([queue for queue in waiting if queue]).pop(0))
    end = ended(completion_tokens=sum(map(len, texts)))

    def told(position: Position, all_frames: list[Frame]) -> bytes:
        kind = ChatReply if chat else CompletionReply
        one = kind(job, model_name="tiny", position=position)
        events = one.opening()
        for frame in all_frames:
            events += one.event(frame)
        return events + one.closing(end)

    def said(events: list[bytes]) -> Any:
        by_choice: dict[int, list[str]] = {}
        for event in events:
            data = event.partition(b"data: ")[2]
            if data not in (b"", b"[DONE]"):
                document = json.loads(data)
                document.pop("prompt_token_ids", None)
                for choice in document["choices"]:
                    choice.pop("prompt_token_ids", None)
                index = document["choices"][0]["index"] if document["choices"] else -1
                by_choice.setdefault(index, []).append(json.dumps(document))
        return by_choice

    whole = told(START, mixed).split(b"\n\n")
    places = ids_of(b"\n\n".join(whole))
    assert len(set(places[:-1])) == len(places) - 1
    again = [frame for queue in queues for frame in queue]  # as a record tells it
    for index, place in enumerate(places[:-1]):
        position = position_of(place, request_id=RequestId("r-test"), choice_count=count)
        rest = told(position, again).split(b"\n\n")
        assert said([*whole[: index + 1], *rest]) == said(whole), place
