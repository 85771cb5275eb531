"""What stands between driver and front door: everything is shown once, and it ends once."""

from dataclasses import replace

import pytest

from pdd.core.errors import NodeUnavailable, RequestFailed
from pdd.core.frames import Finish, FinishReason, token_frame
from pdd.core.identity import NodeName, RequestId
from pdd.core.requests import Ended, Path, Plan, RequestUsage
from pdd.daemon.request_stream import RequestStream
from tests.builders import make_finish, make_frame
from tests.sinks import Collected, Delta, Planned

PLAN = Plan(path=Path.LOCAL, prefill_node=None, decode_node=NodeName("decode-0"), reason="a test")
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


async def test_calls_come_in_order_and_the_end_ends_them() -> None:
    sink = Collected()
    stream = RequestStream(sink)
    stream.plan(PLAN)
    stream.show(make_frame((1,), text="a"))
    stream.end(ENDED)
    assert [type(event) for event in sink.events] == [Planned, Delta, Ended]
    assert stream.ended


async def test_the_first_error_counts() -> None:
    sink = Collected()
    stream = RequestStream(sink)
    stream.plan(PLAN)
    stream.fail(NodeUnavailable("first"))
    stream.fail(RequestFailed("second"))
    assert str(sink.error) == "first"


async def test_a_failure_after_the_end_is_ignored() -> None:
    sink = Collected()
    stream = RequestStream(sink)
    stream.end(ENDED)
    stream.fail(RequestFailed("late"))
    assert list(sink.events) == [ENDED]
    assert sink.error is None


async def test_nothing_can_be_added_after_the_end() -> None:
    stream = RequestStream(Collected())
    stream.end(ENDED)
    with pytest.raises(AssertionError, match="after the end"):
        stream.end(ENDED)
    with pytest.raises(AssertionError, match="after the end"):
        stream.show(make_frame((1,), text="a"))


async def test_the_engines_end_is_not_shown_as_a_token() -> None:
    sink = Collected()
    RequestStream(sink).show(make_frame((1,), finish=make_finish()))
    (event,) = sink.events
    assert isinstance(event, Delta)
    assert event.frame.finish is None


async def test_a_frame_that_simply_goes_on_is_passed_on_as_it_is() -> None:
    sink = Collected()
    frame = make_frame((1,), text="a")
    RequestStream(sink).show(frame)
    (event,) = sink.events
    assert isinstance(event, Delta)
    assert event.frame is frame


async def test_a_token_that_simply_goes_on_is_passed_on_and_any_other_is_left_to_be_judged() -> (
    None
):
    sink = Collected()
    stream = RequestStream(sink)
    request_id = RequestId("r1")
    assert stream.show_token(request_id, 0, 7, 0, "ab")
    assert not stream.show_token(request_id, 0, 7, 0, "ab"), "it was shown before"
    assert not stream.show_token(request_id, 2, 9, 2, "c"), "one is missing"
    assert not stream.show_token(request_id, 1, 8, 1, "c"), "its text overlaps"
    assert stream.show_token(request_id, 1, 8, 2, "")
    assert (stream.choices[0].token_ids, stream.choices[0].text_length) == ([7, 8], 2)
    assert [event.frame for event in sink.events if isinstance(event, Delta)] == [
        token_frame(request_id, 0, 7, 0, "ab"),
        token_frame(request_id, 1, 8, 2, ""),
    ]


async def test_text_that_comes_without_tokens_is_shown() -> None:
    stream = RequestStream(Collected())
    stream.show(make_frame((1, 2), text="ab"))
    stream.show(make_frame((), first_token_index=2, text_offset=2, text="c"))
    assert (stream.choices[0].token_ids, stream.choices[0].text_length) == ([1, 2], 3)


async def test_a_gap_in_the_text_is_refused_too() -> None:
    stream = RequestStream(Collected())
    stream.show(make_frame((1,), text="a"))
    with pytest.raises(ValueError, match="character 5"):
        stream.show(make_frame((2,), first_token_index=1, text_offset=5, text="b"))


class TestSeveralChoices:
    async def test_each_has_offsets_and_an_end_of_its_own(self) -> None:
        sink = Collected()
        stream = RequestStream(sink, choice_count=2)
        stream.show(make_frame((1,), text="a"))
        stream.show(replace(make_frame((5,), text="x"), choice_index=1))
        stream.show(make_frame((2,), first_token_index=1, text_offset=1, finish=make_finish()))
        shown = [event.frame for event in sink.events if isinstance(event, Delta)]
        assert [(one.choice_index, one.finish is not None) for one in shown] == [
            (0, False),
            (1, False),
            (0, True),
        ]
        assert stream.token_count == 3

    async def test_a_token_of_one_of_them_is_no_plain_one(self) -> None:
        sink = Collected()
        stream = RequestStream(sink, choice_count=2)
        assert not stream.show_token(RequestId("r1"), 0, 7, 0, "a")
        assert not sink.events

    async def test_a_handover_is_no_end(self) -> None:
        sink = Collected()
        stream = RequestStream(sink, choice_count=2)
        stream.show(make_frame((1,), finish=make_finish(FinishReason.HANDOVER)))
        (event,) = sink.events
        assert isinstance(event, Delta)
        assert event.frame.finish is None

    async def test_an_end_without_news_is_shown_once(self) -> None:
        sink = Collected()
        stream = RequestStream(sink, choice_count=2)
        stream.show(make_frame((1,), text="a"))
        end = make_frame((1,), text="a", finish=make_finish())
        stream.show(end)
        stream.show(end)
        shown = [event.frame for event in sink.events if isinstance(event, Delta)]
        assert [(one.token_ids, one.finish is not None) for one in shown] == [
            ((1,), False),
            ((), True),
        ]

    async def test_tokens_after_the_end_of_a_choice_are_refused(self) -> None:
        stream = RequestStream(Collected(), choice_count=2)
        stream.show(make_frame((1,), finish=make_finish()))
        with pytest.raises(ValueError, match="choice 0 has ended"):
            stream.show(make_frame((2,), first_token_index=1))

    async def test_a_choice_that_nobody_asked_for_is_refused(self) -> None:
        stream = RequestStream(Collected(), choice_count=2)
        with pytest.raises(ValueError, match="choice 2 of 2"):
            stream.show(replace(make_frame((1,)), choice_index=2))
