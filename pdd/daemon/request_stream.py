"""One request between the scheduler's driver and the front door.

Frames may come twice, or overlap after a sequence has changed engines; offsets are absolute, so
what was shown already is cut off here, in one place, and each token leaves exactly once.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import replace

from pdd.core.errors import PddError, RequestFailed
from pdd.core.frames import Frame
from pdd.core.requests import Delta, Ended, GenerationEvent, Planned

WAITING_EVENT_COUNT_MAX = 16_384
"""Events that a front door has not taken yet. At the bound the request is failed: its client reads
so slowly that the front door should have ended it long ago."""


class RequestStream:
    """Written by the driver, read once by the front door. All on one event loop."""

    def __init__(self) -> None:
        self._events: deque[GenerationEvent] = deque()
        self._error: PddError | None = None
        self._changed = asyncio.Event()
        self._ended = False
        self.token_ids: list[int] = []
        self.text_length = 0

    @property
    def ended(self) -> bool:
        """Nothing can be added any more."""
        return self._ended

    def plan(self, planned: Planned) -> None:
        """First event."""
        self._put(planned)

    def show(self, frame: Frame) -> bool:
        """Add a frame's news; False when the stream had to be failed at its bound.

        Raises:
            ValueError: the frame begins after what was shown: tokens are missing.
        """
        new = self._unseen(frame)
        if new is None:
            return True
        if len(self._events) >= WAITING_EVENT_COUNT_MAX:
            self.fail(
                RequestFailed(f"{len(self._events)} events wait for a client; it is too slow")
            )
            return False
        self.token_ids.extend(new.token_ids)
        self.text_length += len(new.text)
        self._put(Delta(frame=new))
        return True

    def end(self, ended: Ended) -> None:
        """Last event of a success."""
        self._put(ended)
        self._ended = True

    def fail(self, error: PddError) -> None:
        """The request is over without success. Ignored after the end."""
        if not self._ended:
            self._ended = True
            self._error = error
            self._changed.set()

    async def events(self) -> AsyncIterator[GenerationEvent]:
        """Every event in order, then the end or the error."""
        while True:
            while self._events:
                event = self._events.popleft()
                yield event
                if isinstance(event, Ended):
                    return
            if self._error is not None:
                raise self._error
            self._changed.clear()
            await self._changed.wait()

    def _put(self, event: GenerationEvent) -> None:
        assert not self._ended, f"{type(event).__name__} after the end"
        self._events.append(event)
        self._changed.set()

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
