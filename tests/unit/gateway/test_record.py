"""What a choice has said, as whoever keeps it elsewhere is told it."""

from itertools import accumulate

import pytest

from pdd.core.frames import Finish, FinishReason, Frame
from pdd.core.identity import RequestId
from pdd.gateway.record import Record

R1 = RequestId("r-1")
SIZES = (1, 1, 2, 1, 3, 1)
"""Tokens of each frame; each token's text is its digit."""


def recorded() -> Record:
    record = Record(R1)
    for end, size in zip(accumulate(SIZES), SIZES, strict=True):
        tokens = range(end - size, end)
        record.add(
            Frame(
                request_id=R1,
                first_token_index=tokens.start,
                token_ids=tuple(tokens),
                text_offset=tokens.start,
                text="".join(map(str, tokens)),
                finish=Finish(reason=FinishReason.LENGTH) if end == sum(SIZES) else None,
            )
        )
    return record


@pytest.mark.parametrize(
    ("cut", "newest_count", "texts"),
    [
        (0, 100, ["0", "1", "23", "4", "567", "8"]),
        (0, 6, ["0", "1", "23", "4", "567", "8"]),
        (0, 2, ["01234", "567", "8"]),
        (2, 2, ["01", "234", "567", "8"]),
        (9, 1, ["01234567", "8"]),
        (0, 0, ["012345678"]),
    ],
)
def test_it_is_told_in_the_frames_that_it_came_in_but_for_the_oldest(
    cut: int, newest_count: int, texts: list[str]
) -> None:
    frames = recorded().frames(cut, newest_count=newest_count)
    assert [frame.text for frame in frames] == texts
    kept = Record(R1)
    for frame in frames:
        kept.add(frame)
    assert kept.parts(cut) == recorded().parts(cut)


def test_what_has_said_nothing_has_no_frames() -> None:
    assert Record(R1).frames(0, newest_count=5) == []
