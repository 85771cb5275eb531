"""All that one choice of a request has said so far, to be told again from any event on.

Columns, because whoever keeps a frame for each token of each request soon keeps gigabytes: 4 bytes
for a token's index and 4 for its text's, and what the token and its text need.
"""

from array import array
from bisect import bisect_left
from itertools import pairwise

from pdd.core.frames import Finish, Frame, TokenLogprobs
from pdd.core.identity import RequestId


class Record:
    """Frames in, frames out, cut wherever a frame ended.

    ``size`` counts tokens and log probabilities; some 50 to 100 bytes each.
    """

    __slots__ = (
        "_choice_index",
        "_finish",
        "_logprobs",
        "_request_id",
        "_text_ends",
        "_texts",
        "_token_ends",
        "_token_ids",
        "size",
    )

    def __init__(self, request_id: RequestId, *, choice_index: int = 0) -> None:
        self._request_id = request_id
        self._choice_index = choice_index
        self._finish: Finish | None = None
        self._token_ids: list[int] = []
        self._texts: list[str] = []
        self._logprobs: list[TokenLogprobs] = []
        self._token_ends = array("I", [0])
        self._text_ends = array("I", [0])
        self.size = 0

    @property
    def token_count(self) -> int:
        """Output tokens."""
        return len(self._token_ids)

    def add(self, frame: Frame) -> None:
        """The next frame."""
        self._token_ids.extend(frame.token_ids)
        self._texts.append(frame.text)
        self._token_ends.append(frame.first_token_index + len(frame.token_ids))
        self._text_ends.append(frame.text_offset + len(frame.text))
        self._finish = frame.finish
        self.size += len(frame.token_ids)
        if frame.logprobs:
            self._logprobs.extend(frame.logprobs)
            self.size += sum(1 + len(one.top) for one in frame.logprobs)

    def add_token(self, index: int, token_id: int, text_offset: int, text: str) -> None:
        """``add`` a frame of one token and nothing else."""
        self._token_ids.append(token_id)
        self._texts.append(text)
        self._token_ends.append(index + 1)
        self._text_ends.append(text_offset + len(text))
        self.size += 1

    def has(self, frame: Frame) -> bool:
        """Whether all that a frame says is here. (It ends where one of those here ended, or
        behind them all: a choice's frames are cut alike whoever tells them.)"""
        end = frame.first_token_index + len(frame.token_ids)
        if frame.finish is not None and self._finish is None:
            return False
        return end <= self.token_count

    def compact(self) -> None:
        """Keep the text so far as one string."""
        self._texts = ["".join(self._texts)]

    def parts(self, cut: int) -> list[Frame]:
        """All of it: what comes before token ``cut`` and what from there on; no empty parts.

        A cut in the middle of a frame is moved to its end: where the text of half of it ends is not
        known.
        """
        last = len(self._token_ends) - 1
        middle = min(bisect_left(self._token_ends, cut), last)
        return [
            self._frame(first, end) for first, end in ((0, middle), (middle, last)) if first != end
        ]

    def frames(self, cut: int, *, newest_count: int) -> list[Frame]:
        """All of it as it came, so that who keeps it can cut it wherever this record can.

        Of more than ``newest_count`` frames the oldest are one, or two that part at ``cut``.
        """
        last = len(self._token_ends) - 1
        middle = min(bisect_left(self._token_ends, cut), last)
        ends = sorted({0, middle, *range(max(0, last - newest_count), last + 1)})
        return [self._frame(first, end) for first, end in pairwise(ends)]

    def _frame(self, first: int, last: int) -> Frame:
        """What came between two ends."""
        if len(self._texts) > 1:
            self.compact()
        tokens = slice(self._token_ends[first], self._token_ends[last])
        return Frame(
            request_id=self._request_id,
            first_token_index=tokens.start,
            token_ids=tuple(self._token_ids[tokens]),
            text_offset=self._text_ends[first],
            text=self._texts[0][self._text_ends[first] : self._text_ends[last]],
            logprobs=tuple(self._logprobs[tokens]),
            finish=self._finish if last == len(self._token_ends) - 1 else None,
            choice_index=self._choice_index,
        )
