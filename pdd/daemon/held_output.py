"""What a job has put out, so that another scheduler can be told all of it again.

Token ids are kept and not frames: those of 500 sequences of some hundred tokens each would take
gigabytes. The frames are made anew, by the same replay as after a change of nodes, one token each:
wherever a former frame ended, one of these ends, with the same text.
"""

from collections.abc import Callable, Iterator, Sequence

from pdd.core.frames import Frame, TokenLogprobs
from pdd.engine.output_stream import OutputStream


class HeldOutput:
    """Token ids from output token 0 on, log probabilities if there are any, and the last frame.

    ``last``: the frame with the end, as it was sent; it can hold text that no replay gives.
    ``size`` counts tokens and log probabilities; some 50 to 250 bytes each.
    """

    __slots__ = ("last", "logprobs", "size", "token_ids")

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprobs] = []
        self.last: Frame | None = None
        self.size = 0

    def add(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> None:
        """More output, of this node or of one before it."""
        self.token_ids.extend(token_ids)
        self.size += size_of(token_ids, logprobs)
        if logprobs:
            self.logprobs.extend(logprobs)

    def frames(self, make_stream: Callable[[], OutputStream]) -> Iterator[Frame]:
        """All that there is, while it grows. Ends when it has caught up.

        ``make_stream``: gives a stream that has seen nothing.
        """
        stream = make_stream()
        index = 0
        while index < self._replayable_count():
            yield stream.push(
                [self.token_ids[index]], self.logprobs[index : index + 1], finish=None
            )
            index += 1
        if self.last is not None:
            yield self.last

    def _replayable_count(self) -> int:
        return len(self.token_ids) if self.last is None else self.last.first_token_index


def size_of(token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> int:
    """See ``HeldOutput``."""
    return len(token_ids) + sum(1 + len(one.top) for one in logprobs)
