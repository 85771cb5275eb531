"""What a drill finds wrong with what clients saw, and what it says that a fault has cost them."""

from dataclasses import replace
from typing import Any

import pytest

from pdd.drill.load import KNOCK_TOKENS, STREAM_TOKENS, Question, Stream
from pdd.drill.verdict import Cost, broken, cost_of, texts_of, without_the_lost

LONG = Question(prompt_index=0, token_count=STREAM_TOKENS)
SHORT = Question(prompt_index=1, token_count=KNOCK_TOKENS)
TEXTS = {LONG: "once upon a time", SHORT: "and"}


def stream(question: Question = LONG, **changes: Any) -> Stream:
    """One that ended as it should."""
    whole = Stream(
        home="s0",
        question=question,
        began_s=10.0,
        came_s=[11.0, 12.0, 13.0],
        text=TEXTS[question],
        finish_reasons=["length"],
        completion_tokens=[question.token_count],
        ended_s=13.0,
    )
    return replace(whole, **changes)


def test_whole_streams_break_no_promise() -> None:
    assert broken([stream(), stream(SHORT)], TEXTS) == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"error": "HTTP 500"}, "failed: HTTP 500"),
        ({"ended_s": None}, "has not ended after 3 events"),
        ({"text": "once upon a"}, "differs from character 11 of 16 on: '', not ' time'"),
        ({"text": "once once upon a time"}, "differs from character 5 of 16 on"),
        ({"text": "once upon a time time"}, "differs from character 16 of 16 on: ' time'"),
        ({"finish_reasons": ["length", "length"]}, "ended as ['length', 'length']"),
        ({"finish_reasons": []}, "ended as []"),
        ({"completion_tokens": [STREAM_TOKENS - 1]}, f"told of [{STREAM_TOKENS - 1}] tokens"),
    ],
)
def test_each_broken_promise_is_named(changes: dict[str, Any], said: str) -> None:
    (fault,) = broken([stream(), stream(**changes)], TEXTS)
    assert said in fault


def test_of_one_that_was_left_what_came_must_be_right() -> None:
    left = {"has_left": True, "finish_reasons": [], "completion_tokens": []}
    assert broken([stream(**left, text="once upon")], TEXTS) == []
    for wrong in ("once once", "once upon a time time"):
        (fault,) = broken([stream(**left, text=wrong)], TEXTS)
        assert "differs" in fault


def test_an_undisturbed_run_in_which_schedulers_differ_is_refused() -> None:
    texts, faults = texts_of([stream(), stream(home="s1", text="once more")])
    assert texts == {LONG: TEXTS[LONG]}
    (fault,) = faults
    assert "at s1" in fault


def test_costs_are_those_of_the_streams_that_ran_and_of_requests_that_came_later() -> None:
    streams = [
        stream(home="s0", came_s=[11.0, 11.5, 14.0, 14.5], ended_s=14.5),
        stream(home="s1", came_s=[8.0, 11.0, 11.75, 12.0, 12.5], ended_s=12.5),
        stream(home="s1", came_s=[10.5, 11.0], ended_s=11.25),  # over before
        stream(SHORT, home="s0", began_s=12.0, came_s=[12.25]),  # struck itself: went elsewhere
        stream(SHORT, home="s1", began_s=11.25, came_s=[11.5]),  # came before
        stream(SHORT, home="s1", began_s=12.0, came_s=[13.0]),
        stream(SHORT, home="s2", began_s=12.5, came_s=[12.75]),
    ]
    cost = cost_of(streams, at_s=11.5, struck="s0", new_leader_s=12.5)
    assert cost.new_leader_ms == [1000.0]
    assert cost.placed_ms == [1250.0]
    assert cost.others_gap_ms == [750.0]
    assert cost.went_on_ms == [2500.0]


def test_a_kind_of_fault_without_a_figure_says_so() -> None:
    cost = Cost()
    cost.add(Cost(placed_ms=[3.0, 1.0, 2.0]))
    assert cost.summary()["placed_ms"] == {"count": 3, "p50": 2.0, "max": 3.0}
    assert cost.summary()["new_leader_ms"] == {"count": 0, "p50": None, "max": None}


def test_only_what_two_dead_ones_knew_alone_is_left_out() -> None:
    unknown = "RequestFailed: HTTP 404: request r-1 is not known to this scheduler: it runs at"
    lost = stream(error=unknown)
    kept = [
        stream(),
        stream(error="RequestFailed: HTTP 500"),
        stream(error=unknown, home="s1"),
        stream(error=unknown, began_s=12.0),
        stream(error=unknown, request_id="r-7"),
    ]
    found = without_the_lost(
        [lost, *kept], struck="s0", at_s=11.5, decoding_elsewhere=["r-7", "r-8"]
    )
    assert found == (kept, 1)
