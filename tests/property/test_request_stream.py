"""Whatever frames come twice, overlap or come late: the client sees each token once, in order."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdd.core.frames import Frame, Logprob, TokenLogprobs
from pdd.core.identity import RequestId
from pdd.daemon.request_stream import RequestStream
from tests.sinks import Collected, Delta

LENGTH = 12
# Token i adds i % 3 characters, some of them later than the token: text is held back at times.
TEXT = "".join(chr(ord("a") + index) for index in range(LENGTH))
SHOWN = [max(0, index - 2 + index % 3) for index in range(LENGTH + 1)]
SHOWN[-1] = LENGTH
SHOWN = [max(SHOWN[: index + 1]) for index in range(LENGTH + 1)]


def logprobs(token_id: int) -> TokenLogprobs:
    chosen = Logprob(token_id=token_id, logprob=-1.0, rank=1, text="x", token_bytes=b"x")
    return TokenLogprobs(chosen=chosen, top=())


def frame(start: int, end: int) -> Frame:
    """Tokens [start, end), with the text that an engine shows after them."""
    return Frame(
        request_id=RequestId("r1"),
        first_token_index=start,
        token_ids=tuple(range(100 + start, 100 + end)),
        text_offset=SHOWN[start],
        text=TEXT[SHOWN[start] : SHOWN[end]],
        logprobs=tuple(logprobs(100 + index) for index in range(start, end)),
    )


@given(
    cuts=st.lists(
        st.tuples(st.integers(0, LENGTH), st.integers(0, LENGTH)).map(sorted), max_size=30
    ),
)
def test_each_token_and_character_is_shown_once(cuts: list[list[int]]) -> None:
    asyncio.run(_check(cuts))


async def _check(cuts: list[list[int]]) -> None:
    sink = Collected()
    stream = RequestStream(sink)
    reached = 0
    for start, end in cuts:
        if start > reached:
            with pytest.raises(ValueError, match=f"token {start},.*are {reached} tokens"):
                stream.show(frame(start, end))
        else:
            stream.show(frame(start, end))
            reached = max(reached, end)
        assert stream.choices[0].token_ids == list(range(100, 100 + reached))
        assert stream.choices[0].text_length == SHOWN[reached]

    shown = [event.frame for event in sink.events if isinstance(event, Delta)]
    assert [token for one in shown for token in one.token_ids] == stream.choices[0].token_ids
    assert "".join(one.text for one in shown) == TEXT[: SHOWN[reached]]
    tokens, characters = 0, 0
    for one in shown:
        assert (one.first_token_index, one.text_offset) == (tokens, characters)
        assert [entry.chosen.token_id for entry in one.logprobs] == list(one.token_ids)
        assert one.token_ids or one.text, "an empty frame was shown"
        tokens += len(one.token_ids)
        characters += len(one.text)
