"""Whole answers, and the order of frames that every reply insists on."""

import json

import pytest

from pdd.core.errors import RequestFailed
from pdd.core.frames import FinishReason
from pdd.core.sampling import Sampling
from pdd.gateway.chat import ChatReply
from pdd.gateway.completions import CompletionReply
from tests.unit.gateway.builders import ended, frames, make_job


def test_a_whole_chat_answer_has_the_message_the_reason_and_the_usage() -> None:
    reply = ChatReply(make_job(stream=False), model_name="tiny")
    for delta in frames("Hel", "", "lo"):
        reply.collect(delta.frame)
    answer = json.loads(reply.document(ended(stop_reason="\n", completion_tokens=3)))
    assert answer["object"] == "chat.completion"
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": "\n",
        }
    ]
    assert answer["usage"]["pdd"]["transferred_bytes"] == 4096


def test_a_whole_completion_has_ids_and_logprobs_of_all_tokens() -> None:
    job = make_job(
        stream=False,
        sampling=Sampling(max_tokens=8, logprobs=0),
        return_token_ids=True,
        echo_text="Once",
    )
    reply = CompletionReply(job, model_name="tiny")
    for delta in frames(" a", " bc", logprobs=0):
        reply.collect(delta.frame)
    choice = json.loads(reply.document(ended()))["choices"][0]
    assert choice["text"] == "Once a bc"
    assert choice["token_ids"] == [100, 101]
    assert choice["prompt_token_ids"] == [7, 8, 9]
    assert choice["logprobs"] == {
        "text_offset": [0, 2],
        "token_logprobs": [-0.5, -0.5],
        "tokens": [" a", " bc"],
        "top_logprobs": [{" a": -0.5}, {" bc": -0.5}],
    }


@pytest.mark.parametrize("wrong", ["lost", "doubled", "text lost"])
def test_a_gap_or_an_overlap_is_an_error_and_never_shown(wrong: str) -> None:
    reply = ChatReply(make_job(), model_name="tiny")
    one, two, three = frames("aa", "bb", "cc")
    reply.event(one.frame)
    bad = {
        "lost": three.frame,
        "doubled": one.frame,
        "text lost": frames("x", "bb")[1].frame,
    }[wrong]
    with pytest.raises(RequestFailed, match="output lost or doubled"):
        reply.event(bad)
    assert two.frame.first_token_index == 1


@pytest.mark.parametrize("generated", [0, 2])
def test_another_number_of_tokens_than_were_generated_is_an_error(generated: int) -> None:
    one = frames("aa")[0]
    end = ended(completion_tokens=generated)
    stream = ChatReply(make_job(), model_name="tiny")
    stream.event(one.frame)
    with pytest.raises(RequestFailed, match="1 were shown"):
        stream.closing(end)
    whole = ChatReply(make_job(stream=False), model_name="tiny")
    whole.collect(one.frame)
    with pytest.raises(RequestFailed, match="1 were shown"):
        whole.document(end)


def test_a_sequence_that_the_cluster_aborted_does_not_end_well() -> None:
    reply = ChatReply(make_job(), model_name="tiny")
    with pytest.raises(RequestFailed, match="cancelled by the cluster"):
        reply.closing(ended(FinishReason.ABORT))


def test_infinite_logprobs_become_a_number_that_json_has() -> None:
    from pdd.gateway.json_text import finite_logprob

    assert [finite_logprob(value) for value in (float("-inf"), float("nan"), -20_000.0, -1.5)] == [
        -9999.0,
        -9999.0,
        -9999.0,
        -1.5,
    ]
