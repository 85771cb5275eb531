"""What a scheduler says about one request, as values: for tests that look at all of it."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from pdd.core.errors import PddError
from pdd.core.frames import Frame, token_frame
from pdd.core.identity import RequestId
from pdd.core.ports import Inference
from pdd.core.requests import Ended, GenerateRequest, Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """``Sink.planned`` was called."""

    plan: Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """``Sink.tokens`` was called."""

    frame: Frame


GenerationEvent = Planned | Delta | Ended


class Collected:
    """A sink that keeps everything. ``news`` is set at each call."""

    def __init__(self) -> None:
        self.events: deque[GenerationEvent] = deque()
        self.error: PddError | None = None
        self.over = False
        self.news = asyncio.Event()

    def planned(self, plan: Plan) -> None:
        self._put(Planned(plan=plan))

    def tokens(self, frame: Frame) -> None:
        self._put(Delta(frame=frame))

    def token(
        self, request_id: RequestId, index: int, token_id: int, text_offset: int, text: str
    ) -> None:
        self.tokens(token_frame(request_id, index, token_id, text_offset, text))

    def ended(self, ended: Ended) -> None:
        self._put(ended)
        self.over = True

    def failed(self, error: PddError) -> None:
        assert not self.over, "a failure after the end"
        self.error = error
        self.over = True
        self.news.set()

    def _put(self, event: GenerationEvent) -> None:
        assert not self.over, f"{event} after the end"
        self.events.append(event)
        self.news.set()


async def generate(
    inference: Inference, request: GenerateRequest
) -> AsyncGenerator[GenerationEvent, None]:
    """Run a request; closing the iterator early cancels it. Raises the request's error."""
    sink = Collected()
    inference.start(request, sink)
    try:
        while True:
            while sink.events:
                yield sink.events.popleft()
            if sink.error is not None:
                raise sink.error
            if sink.over:
                return
            sink.news.clear()
            await sink.news.wait()
    finally:
        if not sink.over:
            inference.cancel(request.request_id)
