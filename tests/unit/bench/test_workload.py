"""Who asks for what, and the text it becomes."""

import json
import random

import pytest

from pdd.bench.prompts import UNMEASURED, Calibration, TextPool, calibration_of
from pdd.bench.target import BodyMaker, BodyOptions, Endpoint, Target, parse_url
from pdd.bench.traces import TraceRequest
from pdd.bench.workload import CHAT_REPLIES, Shape, requests_of_shape, requests_of_trace
from pdd.core.errors import ConfigError

ONE_TO_ONE = Calibration(tokens_per_word=1.0, overhead_tokens=0.0, measured=True)
POOL = TextPool(seed=1)


def rng(seed=1):
    return random.Random(seed)


def test_chat_replies_have_2210_tokens_of_which_1800_are_shared_and_one_persona_is_hot():
    requests = requests_of_shape(CHAT_REPLIES, [0.0] * 2000, rng=rng())
    assert {sum(p.token_count for p in (*r.shared, *r.own)) for r in requests} == {2210}
    assert {r.shared[0].token_count for r in requests} == {1800}
    assert {r.output_tokens for r in requests} == {30}
    hot = sum(r.persona == 0 for r in requests)
    assert hot == pytest.approx(1000, abs=80)
    assert {r.persona for r in requests} == set(range(20))
    assert len({r.own for r in requests}) == 2000


def test_the_servers_own_tokens_are_taken_off_the_prompt():
    [request] = requests_of_shape(CHAT_REPLIES, [0.0], rng=rng(), overhead_tokens=14.0)
    assert request.own[0].token_count == 2210 - 1800 - 14


def test_shared_tokens_beyond_the_prompt_are_refused():
    with pytest.raises(ConfigError, match="20 shared tokens are more than a prompt's 10"):
        requests_of_shape(
            Shape(input_tokens=10, output_tokens=1, shared_tokens=20), [0.0], rng=rng()
        )


def trace_requests(trace, **options):
    defaults = {"speed": 1.0, "duration_s": None, "request_count": None, "rng": rng()}
    return requests_of_trace(trace, **(defaults | options))


def test_equal_hash_ids_of_a_trace_become_equal_text_and_the_last_block_is_partial():
    trace = [
        TraceRequest(at_s=0.0, input_tokens=1100, output_tokens=3, hash_ids=(1, 2, 3)),
        TraceRequest(at_s=1.0, input_tokens=1100, output_tokens=0, hash_ids=(1, 2, 4)),
    ]
    one, two = trace_requests(trace, speed=2.0)
    assert [piece.token_count for piece in one.own] == [512, 512, 76]
    assert (one.due_s, two.due_s) == (0.0, 0.5)
    assert two.output_tokens == 1
    first, second = (POOL.prompt(r.own, ONE_TO_ONE).split(" ") for r in (one, two))
    assert len(first) == len(second) == 1100
    assert first[:1024] == second[:1024]
    assert first[1024:1028] != second[1024:1028]


def test_a_trace_without_hash_ids_shares_nothing():
    one, two = trace_requests([TraceRequest(at_s=0.0, input_tokens=50, output_tokens=1)] * 2)
    assert one.own[0].number != two.own[0].number


def test_a_trace_is_cut_by_duration_and_by_number():
    trace = [TraceRequest(at_s=float(at), input_tokens=5, output_tokens=1) for at in range(10)]
    assert len(trace_requests(trace, duration_s=4.0)) == 4
    assert len(trace_requests(trace, request_count=3)) == 3
    with pytest.raises(ConfigError, match="no request of the trace"):
        trace_requests(trace, duration_s=0.0)


@pytest.mark.parametrize("count", [1, 3, 4, 5, 100, 140_000])
def test_a_piece_has_the_wished_number_of_words(count):
    text = POOL.text(12345, count)
    assert len(text.split(" ")) == count
    assert text == TextPool(seed=1).text(12345, count)


def test_different_numbers_differ_in_their_first_four_words():
    numbers = [*range(3000), *(2**40 + n for n in range(3000))]
    assert len({POOL.text(number, 4) for number in numbers}) == len(numbers)


def test_calibration_finds_slope_and_overhead():
    found = calibration_of(words_short=32, tokens_short=54, words_long=288, tokens_long=374)
    assert found == Calibration(tokens_per_word=1.25, overhead_tokens=14.0, measured=True)
    assert found.word_count(1000) == 800
    assert found.word_count(0) == 1


def test_a_server_that_counts_nonsense_is_not_believed():
    found = calibration_of(words_short=32, tokens_short=9, words_long=288, tokens_long=9)
    assert found is UNMEASURED


@pytest.mark.parametrize("endpoint", list(Endpoint))
def test_a_body_is_json_with_the_prompt_and_the_wished_output(endpoint):
    options = BodyOptions(endpoint=endpoint, model='odd "name"', extra={"top_p": 0.5})
    maker = BodyMaker(options, calibration=ONE_TO_ONE, seed=1)
    [request] = requests_of_shape(
        Shape(input_tokens=30, output_tokens=7, shared_tokens=10), [0.0], rng=rng()
    )
    body = json.loads(maker.body(request))
    assert (body["model"], body["stream"], body["top_p"]) == ('odd "name"', True, 0.5)
    assert body["max_tokens"] == body["min_tokens"] == 7
    assert body["stream_options"] == {"include_usage": True}
    if endpoint is Endpoint.CHAT:
        system, user = body["messages"]
        words = [len(message["content"].split(" ")) for message in (system, user)]
        assert words == [10, 20]
    else:
        assert len(body["prompt"].split(" ")) == 30


def test_free_output_asks_for_no_minimum_and_a_whole_answer_for_no_stream_options():
    options = BodyOptions(endpoint=Endpoint.CHAT, model="m", fixed_output=False, stream=False)
    maker = BodyMaker(options, calibration=ONE_TO_ONE, seed=1)
    [request] = requests_of_shape(Shape(input_tokens=3, output_tokens=7), [0.0], rng=rng())
    body = json.loads(maker.body(request))
    assert "min_tokens" not in body
    assert "stream_options" not in body
    assert [message["role"] for message in body["messages"]] == ["user"]


def test_texts_of_shared_pieces_are_kept_within_a_bound():
    maker = BodyMaker(
        BodyOptions(endpoint=Endpoint.CHAT, model="m"), calibration=ONE_TO_ONE, seed=1
    )
    shape = Shape(input_tokens=9, output_tokens=1, shared_tokens=5, persona_count=1000)
    for request in requests_of_shape(shape, [0.0] * 2000, rng=rng()):
        assert maker.texts(request)[0] == POOL.prompt(request.shared, ONE_TO_ONE)
    assert len(maker._texts) <= 256


@pytest.mark.parametrize(
    ("url", "wanted"),
    [
        ("http://h:80", Target(host="h", port=80)),
        ("http://h:8000/v1/", Target(host="h", port=8000)),
        ("https://h/base/v1", Target(host="h", port=443, tls=True, base_path="/base")),
        ("http://[::1]:9", Target(host="::1", port=9)),
    ],
)
def test_a_url_is_read_with_or_without_v1(url, wanted):
    assert parse_url(url) == wanted


@pytest.mark.parametrize("url", ["h:80", "ftp://h", "http://", "http://h:99999", "http://h/?a=b"])
def test_another_url_is_refused_by_name(url):
    with pytest.raises(ConfigError, match=r"no URL|no place"):
        parse_url(url)


def test_the_api_key_is_sent_and_never_shown():
    target = parse_url("http://h:1", headers=(("Authorization", "Bearer secret"),))
    assert b"Authorization: Bearer secret\r\n" in target.request_head("POST", "/v1/x")
    assert "secret" not in repr(target)
