"""One request between the scheduler's driver and the front door.

Frames may come twice, or overlap after a sequence has changed engines; offsets are absolute, so
what was shown already is cut off here, in one place, and each token leaves exactly once.

Nothing waits here: what is new goes straight on to the front door's sink, which has the bounds.
"""

from dataclasses import replace

from pdd.core.errors import PddError
from pdd.core.frames import Frame, TokenLogprobs
from pdd.core.ports import Sink
from pdd.core.requests import Ended, Plan


class RequestStream:
    """What of a request was shown, and to whom. All on one event loop."""

    __slots__ = ("_ended", "_sink", "first_frame", "logprobs", "text_length", "token_ids")

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._ended = False
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprobs] = []
        self.first_frame: Frame | None = None  # a prefill node's, for who goes on
        self.text_length = 0

    @property
    def ended(self) -> bool:
        """Nothing can be added any more."""
        return self._ended

    def plan(self, plan: Plan) -> None:
        """Before any token."""
        assert not self._ended, "a plan after the end"
        self._sink.planned(plan)

    def show(self, frame: Frame) -> None:
        """Pass a frame's news on.

        Raises:
            ValueError: the frame begins after what was shown: tokens are missing.
        """
        assert not self._ended, "tokens after the end"
        token_ids = self.token_ids
        if (
            frame.first_token_index != len(token_ids)
            or frame.text_offset != self.text_length
            or frame.finish is not None
            or not frame.token_ids
        ):
            new = self._unseen(frame)
            if new is None:
                return
            frame = new
        token_ids.extend(frame.token_ids)
        self.text_length += len(frame.text)
        if frame.logprobs:
            self.logprobs.extend(frame.logprobs)
        self._sink.tokens(frame)

    def end(self, ended: Ended) -> None:
        """Last event of a success."""
        assert not self._ended, "an end after the end"
        self._ended = True
        self._sink.ended(ended)

    def fail(self, error: PddError) -> None:
        """The request is over without success. Ignored after the end."""
        if not self._ended:
            self._ended = True
            self._sink.failed(error)

    def _unseen(self, frame: Frame) -> Frame | None:
        seen_tokens = len(self.token_ids) - frame.first_token_index
        seen_text = self.text_length - frame.text_offset
        if seen_tokens < 0 or seen_text < 0:
            raise ValueError(
                f"frame begins at token {frame.first_token_index}, character {frame.text_offset}; "
                f"shown are {len(self.token_ids)} tokens and {self.text_length} characters"
            )
        if seen_tokens >= len(frame.token_ids) and seen_text >= len(frame.text):
            return None
        return replace(
            frame,
            first_token_index=frame.first_token_index + seen_tokens,
            token_ids=frame.token_ids[seen_tokens:],
            text_offset=frame.text_offset + seen_text,
            text=frame.text[seen_text:],
            logprobs=frame.logprobs[seen_tokens:],
            finish=None,
        )
