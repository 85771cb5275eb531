"""Server-sent events, cut anywhere."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from pdd.client.sse import Event, EventStream

TEXT = (
    'data: {"a": "grüß"}\r\n\r\n: a comment\n\ndata: two\ndata: lines\n\n'
    "id: 7\nevent: x\ndata:tight\n\ndata: [DONE]\n\ndata: unfinished"
).encode()
EVENTS = [
    Event(data='{"a": "grüß"}', last_id=""),
    Event(data="two\nlines", last_id=""),
    Event(data="tight", last_id="7"),
    Event(data="[DONE]", last_id="7"),
]


def test_events_of_one_piece():
    assert list(EventStream().feed(TEXT)) == EVENTS


@given(cuts=st.lists(st.integers(0, len(TEXT)), max_size=20))
def test_events_do_not_depend_on_where_the_bytes_were_cut(cuts):
    stream, found = EventStream(), []
    places = [0, *sorted(cuts), len(TEXT)]
    for begin, end in pairwise(places):
        found += stream.feed(TEXT[begin:end])
    assert found == EVENTS
