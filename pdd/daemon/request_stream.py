"""One request between the scheduler's driver and the front door.

Frames may come twice, or overlap after a sequence has changed engines; offsets are absolute, so
what was shown already is cut off here, in one place, and each token leaves exactly once.

Nothing waits here: what is new goes straight on to the front door's sink, which has the bounds.
"""

from pdd.core.errors import PddError
from pdd.core.frames import FinishReason, Frame, TokenLogprobs
from pdd.core.identity import RequestId
from pdd.core.ports import Sink
from pdd.core.requests import Ended, Plan


class Shown:
    """What of one choice was shown."""

    __slots__ = ("finished", "logprobs", "text_length", "token_ids")

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprobs] = []
        self.text_length = 0
        self.finished = False


class RequestStream:
    """What of a request was shown, and to whom. All on one event loop."""

    __slots__ = ("_ended", "_only", "_sink", "choices", "first_frame")

    def __init__(self, sink: Sink, *, choice_count: int = 1) -> None:
        self._sink = sink
        self._ended = False
        self.choices = tuple(Shown() for _ in range(choice_count))
        self._only = self.choices[0] if choice_count == 1 else None
        self.first_frame: Frame | None = None  # a prefill node's, for who goes on

    @property
    def ended(self) -> bool:
        """Nothing can be added any more."""
        return self._ended

    @property
    def token_count(self) -> int:
        """Output tokens that were shown, over all choices."""
        return sum(len(shown.token_ids) for shown in self.choices)

    @property
    def open_token_count(self) -> int:
        """Of those, what choices have had that have not ended."""
        return sum(len(shown.token_ids) for shown in self.choices if not shown.finished)

    def plan(self, plan: Plan) -> None:
        """Before any token."""
        assert not self._ended, "a plan after the end"
        self._sink.planned(plan)

    def show(self, frame: Frame) -> None:
        """Pass a frame's news on.

        Raises:
            ValueError: the frame begins after what was shown: tokens are missing. Or it is of a
                choice that there is not, or that has ended before.
        """
        assert not self._ended, "tokens after the end"
        if not 0 <= frame.choice_index < len(self.choices):
            raise ValueError(f"choice {frame.choice_index} of {len(self.choices)}")
        shown = self.choices[frame.choice_index]
        token_ids = shown.token_ids
        if (
            frame.first_token_index != len(token_ids)
            or frame.text_offset != shown.text_length
            or frame.finish is not None
            or shown.finished
            or not frame.token_ids
        ):
            new = self._unseen(frame, shown)
            if new is None:
                return
            frame = new
        token_ids.extend(frame.token_ids)
        shown.text_length += len(frame.text)
        if frame.logprobs:
            shown.logprobs.extend(frame.logprobs)
        self._sink.tokens(frame)

    def show_token(
        self, request_id: RequestId, index: int, token_id: int, text_offset: int, text: str
    ) -> bool:
        """``show`` a frame of one token and nothing else, if it goes on where the only choice is:
        nearly always. False: it is for ``show`` to judge, and nothing was done."""
        assert not self._ended, "tokens after the end"
        shown = self._only
        if shown is None or index != len(shown.token_ids) or text_offset != shown.text_length:
            return False
        shown.token_ids.append(token_id)
        shown.text_length += len(text)
        self._sink.token(request_id, index, token_id, text_offset, text)
        return True

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

    def _unseen(self, frame: Frame, shown: Shown) -> Frame | None:
        seen_tokens = len(shown.token_ids) - frame.first_token_index
        seen_text = shown.text_length - frame.text_offset
        if seen_tokens < 0 or seen_text < 0:
            raise ValueError(
                f"frame begins at token {frame.first_token_index}, character {frame.text_offset}; "
                f"shown are {len(shown.token_ids)} tokens and {shown.text_length} characters"
            )
        is_new = seen_tokens < len(frame.token_ids) or seen_text < len(frame.text)
        if shown.finished:
            if is_new:
                raise ValueError(
                    f"choice {frame.choice_index} has ended, and there are more tokens"
                )
            return None
        # A handover is no end to the client. The end of an only choice is told by ``end``.
        finish = frame.finish
        if finish is not None:
            is_handover = finish.reason is FinishReason.HANDOVER
            finish = None if is_handover or len(self.choices) == 1 else finish
        if not is_new and finish is None:
            return None
        shown.finished = finish is not None
        return Frame(
            request_id=frame.request_id,
            choice_index=frame.choice_index,
            first_token_index=frame.first_token_index + seen_tokens,
            token_ids=frame.token_ids[seen_tokens:],
            text_offset=frame.text_offset + seen_text,
            text=frame.text[seen_text:],
            logprobs=frame.logprobs[seen_tokens:],
            finish=finish,
        )
