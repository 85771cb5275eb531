"""The pipe between driver and front door: ends once, is bounded, wakes its reader."""

import asyncio

import pytest

from pdd.core.errors import NodeUnavailable, RequestFailed
from pdd.core.frames import Finish, FinishReason
from pdd.core.identity import NodeName
from pdd.core.requests import Delta, Ended, Path, Plan, Planned, RequestUsage
from pdd.daemon import request_stream
from pdd.daemon.request_stream import RequestStream
from tests.builders import make_finish, make_frame

PLANNED = Planned(
    plan=Plan(path=Path.LOCAL, prefill_node=None, decode_node=NodeName("decode-0"), reason="a test")
)
ENDED = Ended(
    finish=Finish(reason=FinishReason.STOP),
    usage=RequestUsage(
        prompt_tokens=1,
        completion_tokens=1,
        cached_tokens=0,
        path=Path.LOCAL,
        prefill_node=None,
        decode_node=NodeName("decode-0"),
        queue_ms=0.0,
        prefill_ms=0.0,
        transfer_ms=0.0,
        decode_ms=0.0,
        transferred_bytes=0,
        decode_computed_prompt_tokens=0,
    ),
)


async def test_events_come_in_order_and_the_end_ends_them() -> None:
    stream = RequestStream()
    stream.plan(PLANNED)
    stream.show(make_frame((1,), text="a"))
    stream.end(ENDED)
    kinds = [type(event) async for event in stream.events()]
    assert kinds == [Planned, Delta, Ended]
    assert stream.ended


async def test_a_waiting_reader_is_woken() -> None:
    stream = RequestStream()
    reader = asyncio.create_task(anext(stream.events()))
    await asyncio.sleep(0)
    assert not reader.done()
    stream.plan(PLANNED)
    assert await reader is PLANNED


async def test_an_error_comes_after_what_was_shown() -> None:
    stream = RequestStream()
    stream.plan(PLANNED)
    stream.fail(NodeUnavailable("gone"))
    events = stream.events()
    assert await anext(events) is PLANNED
    with pytest.raises(NodeUnavailable, match="gone"):
        await anext(events)


async def test_the_first_error_counts() -> None:
    stream = RequestStream()
    stream.fail(NodeUnavailable("first"))
    stream.fail(RequestFailed("second"))
    with pytest.raises(NodeUnavailable, match="first"):
        await anext(stream.events())


async def test_a_failure_after_the_end_is_ignored() -> None:
    stream = RequestStream()
    stream.end(ENDED)
    stream.fail(RequestFailed("late"))
    assert [event async for event in stream.events()] == [ENDED]


async def test_nothing_can_be_added_after_the_end() -> None:
    stream = RequestStream()
    stream.end(ENDED)
    with pytest.raises(AssertionError, match="after the end"):
        stream.end(ENDED)


async def test_the_engines_end_is_not_shown_as_a_token() -> None:
    stream = RequestStream()
    stream.show(make_frame((1,), finish=make_finish()))
    event = await anext(stream.events())
    assert isinstance(event, Delta)
    assert event.frame.finish is None


async def test_text_that_comes_without_tokens_is_shown() -> None:
    stream = RequestStream()
    stream.show(make_frame((1, 2), text="ab"))
    stream.show(make_frame((), first_token_index=2, text_offset=2, text="c"))
    assert (stream.token_ids, stream.text_length) == ([1, 2], 3)


async def test_a_client_that_never_reads_is_failed_at_the_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(request_stream, "WAITING_EVENT_COUNT_MAX", 3)
    stream = RequestStream()
    for index in range(3):
        assert stream.show(make_frame((index,), first_token_index=index))
    assert not stream.show(make_frame((9,), first_token_index=3))
    assert stream.ended
    assert stream.token_ids == [0, 1, 2]
    events = stream.events()
    for _ in range(3):
        await anext(events)
    with pytest.raises(RequestFailed, match="3 events wait"):
        await anext(events)


def test_a_gap_in_the_text_is_refused_too() -> None:
    stream = RequestStream()
    stream.show(make_frame((1,), text="a"))
    with pytest.raises(ValueError, match="character 5"):
        stream.show(make_frame((2,), first_token_index=1, text_offset=5, text="b"))
