"""Byte-exact streams: what every SSE client in the world will have to read."""

from pdd.core.frames import FinishReason
from pdd.core.sampling import Sampling
from pdd.gateway.chat import ChatReply
from pdd.gateway.completions import CompletionReply
from pdd.gateway.reply import Reply
from tests.unit.gateway.builders import ended, frames, make_job

USAGE = (
    b'"usage":{"prompt_tokens":5,"completion_tokens":2,"total_tokens":7,'
    b'"prompt_tokens_details":{"cached_tokens":3},"pdd":{"request_id":"r-test",'
    b'"path":"disaggregated","prefill_node":"prefill-0","decode_node":"decode-0",'
    b'"queue_ms":0.25,"prefill_ms":12.5,"transfer_ms":1.5,"decode_ms":20.0,'
    b'"transferred_bytes":4096,"decode_computed_prompt_tokens":1,'
    b'"pulled_tokens":0,"pulled_bytes":0}}'
)
CHAT = (
    b'data: {"id":"chatcmpl-r-test","object":"chat.completion.chunk",'
    b'"created":17,"model":"tiny","choices":'
)
TEXT = (
    b'data: {"id":"cmpl-r-test","object":"text_completion","created":17,"model":"tiny","choices":'
)
DONE = b"data: [DONE]\n\n"


def at(place: str) -> bytes:
    """The id of an event."""
    return f"id: r-test:{place}\n".encode()


def stream(reply: Reply, *texts: str, reason: FinishReason = FinishReason.STOP) -> bytes:
    logprobs = reply.job.request.sampling.logprobs
    out = reply.opening()
    for delta in frames(*texts, logprobs=logprobs):
        out += reply.event(delta.frame)
    return out + reply.closing(ended(reason, completion_tokens=len(texts)))


def chat(**changes: object) -> ChatReply:
    return ChatReply(make_job(**changes), model_name="tiny")


def completion(**changes: object) -> CompletionReply:
    return CompletionReply(make_job(**changes), model_name="tiny")


def test_a_chat_stream_opens_with_the_role_and_ends_with_the_reason_the_usage_and_done() -> None:
    assert stream(chat(usage_chunk=True), "Hel", "lo") == b"".join(
        [
            at("0") + CHAT + b'[{"index":0,"delta":{"role":"assistant","content":""},'
            b'"logprobs":null,"finish_reason":null}]}\n\n',
            at("1") + CHAT + b'[{"index":0,"delta":{"content":"Hel"},'
            b'"logprobs":null,"finish_reason":null}]}\n\n',
            at("2") + CHAT + b'[{"index":0,"delta":{"content":"lo"},'
            b'"logprobs":null,"finish_reason":null}]}\n\n',
            at("2f") + CHAT + b'[{"index":0,"delta":{},"logprobs":null,'
            b'"finish_reason":"stop","stop_reason":null}]}\n\n',
            at("2fu") + CHAT + b"[]," + USAGE + b"}\n\n",
            at("2fu") + DONE,
        ]
    )


def test_a_completion_stream_without_usage_asked_for_has_none() -> None:
    tail = b'"logprobs":null,"finish_reason":null,"stop_reason":null}]}\n\n'
    assert stream(completion(), "a", "b", reason=FinishReason.LENGTH) == b"".join(
        [
            at("1") + TEXT + b'[{"index":0,"text":"a",' + tail,
            at("2") + TEXT + b'[{"index":0,"text":"b",' + tail,
            at("2f") + TEXT + b'[{"index":0,"text":"","logprobs":null,'
            b'"finish_reason":"length","stop_reason":null}]}\n\n',
            at("2f") + DONE,
        ]
    )


def test_text_that_is_held_back_makes_no_event() -> None:
    assert stream(completion(), "", "", "ab").count(b"data: ") == 3


def test_held_back_text_still_tells_its_token_ids() -> None:
    out = stream(completion(return_token_ids=True), "", "ab")
    tail = b'"logprobs":null,"finish_reason":null,"stop_reason":null,"token_ids":'
    assert out.startswith(
        at("1")
        + TEXT
        + b'[{"index":0,"text":"",'
        + tail
        + b'[100],"prompt_token_ids":[7,8,9]}]}\n\n'
        + at("2")
        + TEXT
        + b'[{"index":0,"text":"ab",'
        + tail
        + b"[101]}]}\n\n"
    )


def test_chat_has_prompt_ids_beside_the_choices_of_the_first_event_only() -> None:
    out = stream(chat(return_token_ids=True), "a", "b").split(b"\n\n")
    assert out[0].endswith(b'"finish_reason":null}],"prompt_token_ids":[7,8,9]}')
    assert out[1].endswith(b'"finish_reason":null,"token_ids":[100]}]}')
    assert b"prompt_token_ids" not in b"".join(out[1:])


def test_line_separators_and_surrogates_stay_inside_their_event() -> None:
    text = 'é\u2028\u2029\x85\r\n"\\\ud800'
    out = stream(completion(), text)
    first = out.split(b"\n\n")[0]
    assert len(first.decode().splitlines()) == 2
    other = stream(completion(), "é\u2028漢")
    assert '"text":"é\\u2028漢"'.encode() in other


def test_completion_logprobs_have_offsets_that_run_over_all_events() -> None:
    sampling = Sampling(max_tokens=8, logprobs=1)
    out = stream(completion(sampling=sampling), "ab", "c").split(b"\n\n")
    assert (
        b'"logprobs":{"text_offset":[0],"token_logprobs":[-0.5],"tokens":["ab"],'
        b'"top_logprobs":[{"ab":-0.5}]}' in out[0]
    )
    assert b'"text_offset":[2]' in out[1]


def test_chat_logprobs_carry_bytes_and_the_most_likely_candidates() -> None:
    sampling = Sampling(max_tokens=8, logprobs=2)
    out = stream(chat(sampling=sampling), "é").split(b"\n\n")
    assert (
        '"logprobs":{"content":[{"token":"é","logprob":-0.5,"bytes":[195,169],"top_logprobs":['
        '{"token":"é","logprob":-0.5,"bytes":[195,169]},'
        '{"token":"é2","logprob":-1.0,"bytes":[195,169,50]}]}]}'
    ).encode() in out[1]


def test_tokens_can_be_named_by_their_ids() -> None:
    sampling = Sampling(max_tokens=8, logprobs=0)
    out = stream(chat(sampling=sampling, tokens_as_ids=True), "x")
    assert b'"token":"token_id:100"' in out


def test_running_usage_counts_up_with_every_event() -> None:
    out = stream(chat(usage_chunk=True, running_usage=True), "a", "b").split(b"\n\n")
    counts = b'"usage":{"prompt_tokens":3,"completion_tokens":%d,"total_tokens":%d}}'
    assert out[0].endswith(counts % (0, 3))
    assert out[2].endswith(counts % (2, 5))


def test_echo_comes_first_and_once() -> None:
    out = stream(completion(echo_text="Once"), " upon")
    assert out.startswith(at("0") + TEXT + b'[{"index":0,"text":"Once","logprobs":null')
    assert out.count(b"Once") == 1
