"""Reading server-sent events, cut anywhere, against a plain reading of the same bytes."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdd.bench.token_events import StreamFault, TokenEvents


def completion(text, **more):
    choice = {"index": 0, "text": text, "finish_reason": None}
    return {"id": "cmpl-1", "model": "text", "choices": [choice | more]}


def chat(delta, **more):
    return {"id": "c", "choices": [{"index": 0, "delta": delta, "finish_reason": None} | more]}


def event(document, *, separators=(",", ":"), ascii_only=True):
    encoded = json.dumps(document, separators=separators, ensure_ascii=ascii_only)
    return b"data: " + encoded.encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


def read(chunks):
    reader = TokenEvents(keep_texts=True)
    for number, chunk in enumerate(chunks):
        reader.feed(chunk, float(number))
    return reader


STREAM = b"".join(
    (
        b": a comment\n\n",
        event(chat({"role": "assistant", "content": ""})),
        event(chat({"role": "assistant", "content": " first"})),
        event(chat({"content": " content"})),
        event(chat({"content": ' "quoted" \\ and\nnew line'})),
        event(chat({"content": " né"}), ascii_only=False),
        event(chat({"content": " né"})),
        event(chat({"content": " word"})),
        event(chat({"content": " word"})),
        event(chat({}, finish_reason="length")),
        event({"choices": [], "usage": {"completion_tokens": 7}}),
        DONE,
    )
)
TEXTS = [
    " first",
    " content",
    ' "quoted" \\ and\nnew line',
    " né",
    " né",
    " word",
    " word",
]


def check(reader):
    assert reader.texts == TEXTS
    assert len(reader.times_s) == len(TEXTS)
    assert reader.usage == {"completion_tokens": 7}
    assert reader.done
    assert reader.finish_reason == "length"
    assert reader.fault is StreamFault.NONE


@pytest.mark.parametrize("cut", range(len(STREAM) + 1))
def test_a_stream_cut_in_two_anywhere_reads_the_same(cut):
    check(read([STREAM[:cut], STREAM[cut:]]))


@pytest.mark.parametrize("ending", [b"\r\n", b"\r"])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 10_000])
def test_a_stream_in_small_pieces_and_with_other_line_ends_reads_the_same(size, ending):
    for stream in (STREAM, STREAM.replace(b"\n", ending)):
        if stream.endswith(b"\r"):
            stream += b"x"  # a line's end by itself may still become CRLF
        check(read([stream[at : at + size] for at in range(0, len(stream), size)]))


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(
    ["text", "content", '"', "\\", "null", '","usage":{', "cmpl-1", "length", "\x7f"]
)


@given(
    texts=st.lists(TEXT, max_size=12),
    is_chat=st.booleans(),
    ascii_only=st.booleans(),
    spaced=st.booleans(),
    cuts=st.lists(st.integers(0, 4000), max_size=6),
    whole=st.booleans(),
)
def test_every_text_is_read_as_json_reads_it(texts, is_chat, ascii_only, spaced, cuts, whole):
    separators = (", ", ": ") if spaced else (",", ":")
    events = [
        event(
            chat({"content": text}) if is_chat else completion(text),
            separators=separators,
            ascii_only=ascii_only,
        )
        for text in texts
    ]
    stream = b"".join(events)
    places = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    chunks = events if whole else [stream[a:b] for a, b in itertools.pairwise(places)]
    reader = read(chunks)
    assert reader.texts == [text for text in texts if text]
    assert reader.fault is StreamFault.NONE


def test_an_event_has_the_time_of_the_bytes_that_completed_it():
    one = event(completion(" a"))
    reader = read([one, one[:20], one[20:] + one, one])
    assert list(reader.times_s) == [0.0, 2.0, 2.0, 3.0]


def test_two_events_in_one_read_are_not_taken_for_one():
    one = event(completion(" a"))
    assert read([one, one + one]).texts == [" a"] * 3


def test_a_reason_to_end_is_never_part_of_the_learned_frame():
    last = event(completion(" b", finish_reason="stop"))
    other = event(completion(" c", finish_reason="length"))
    reader = read([event(completion(" a")), last, other])
    assert reader.texts == [" a", " b", " c"]
    assert reader.finish_reason == "length"


def test_running_usage_is_read_from_every_event():
    events = [event(completion(f" {n}") | {"usage": {"completion_tokens": n}}) for n in range(1, 6)]
    reader = read(events)
    assert reader.usage == {"completion_tokens": 5}
    assert len(reader.texts) == 5


def test_reasoning_counts_as_output():
    reader = read([event(chat({"reasoning_content": "hm"})), event(chat({"content": "so"}))])
    assert reader.texts == ["hm", "so"]


def test_an_error_event_is_a_fault_with_its_message():
    reader = read([event(completion(" a")), event({"error": {"message": "no node left"}})])
    assert (reader.fault, reader.fault_text) == (StreamFault.ERROR_EVENT, "no node left")


@pytest.mark.parametrize("data", [b"data: {nonsense\n\n", b"data: 5\n\n"])
def test_what_is_no_json_object_is_a_fault(data):
    assert read([data]).fault is StreamFault.BAD_EVENT


def test_an_event_without_an_end_is_given_up_at_a_bound():
    reader = read([b"data: " + b"x" * (5 << 20)])
    assert reader.fault is StreamFault.BAD_EVENT
    assert reader._rest == b""


def test_stages_are_read_from_pdds_usage_only():
    assert read([DONE]).stages_ms() is None
    costs = {"queue_ms": 1, "prefill_ms": 2.5, "transfer_ms": 0, "decode_ms": 4}
    told = read([event({"choices": [], "usage": {"pdd": costs}})])
    assert told.stages_ms() == (1.0, 2.5, 0.0, 4.0)
    del costs["queue_ms"]
    assert read([event({"choices": [], "usage": {"pdd": costs}})]).stages_ms() is None
