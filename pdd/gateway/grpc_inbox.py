"""What the scheduler has said for one gRPC call and the client was not told yet.

A message on a client's gRPC stream costs several times what a token costs; tokens that come while
the last message is young travel together (``grpc_flush_s``).
"""

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from pdd.core.errors import PddError
from pdd.core.frames import Frame, token_frame
from pdd.core.identity import RequestId
from pdd.core.ports import Clock
from pdd.core.requests import Ended, Plan
from pdd.gateway.event_ids import invalid_position
from pdd.gateway.joining import joined
from pdd.gateway.metrics import RequestMeter

WAITING_FRAME_COUNT_MAX = 16_384
"""At the bound the client is given up: it reads far too slowly."""


class ClientStalled(Exception):
    """The client took nothing for too long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """What is to be told, in this order. ``frames``: all tokens since the last time, one frame for
    each choice that has new ones or has ended. ``passed``: those before, which the client has
    already."""

    plan: Plan | None
    passed: list[Frame]
    frames: list[Frame]
    end: Ended | None


class GrpcInbox:
    """A sink with one reader. Bound: ``WAITING_FRAME_COUNT_MAX`` frames."""

    def __init__(
        self, *, meter: RequestMeter, clock: Clock, first_indexes: Sequence[int] = ()
    ) -> None:
        """``first_indexes``: of each choice's first token that the client lacks; empty: of all."""
        self._first_indexes = first_indexes
        self._passed: list[Frame] = []
        self._meter = meter
        self._clock = clock
        self._plan: Plan | None = None
        self._frames: list[Frame] = []
        self._end: Ended | None = None
        self._error: Exception | None = None
        self._changed = asyncio.Event()
        self._over = asyncio.Event()

    @property
    def is_over(self) -> bool:
        """The scheduler has said its last word on this request."""
        return self._over.is_set()

    # --- Sink --------------------------------------------------------------------------------

    def planned(self, plan: Plan) -> None:
        self._meter.path = plan.path
        self._plan = plan
        self._changed.set()

    def tokens(self, frame: Frame) -> None:
        if self._error is not None:
            return  # nothing that would be told after it
        if self._first_indexes:
            first_index = self._first_indexes[frame.choice_index]
            if frame.first_token_index < first_index:
                self._pass_over(frame, first_index)
                return
        self._meter.tokens(len(frame.token_ids), self._clock(), frame.choice_index)
        if len(self._frames) < WAITING_FRAME_COUNT_MAX:
            self._frames.append(frame)
        else:
            self._error = ClientStalled(f"{len(self._frames)} frames wait for the client")
        self._changed.set()

    def token(
        self, request_id: RequestId, index: int, token_id: int, text_offset: int, text: str
    ) -> None:
        self.tokens(token_frame(request_id, index, token_id, text_offset, text))

    def _pass_over(self, frame: Frame, first_index: int) -> None:
        self._passed.append(frame)
        end = frame.first_token_index + len(frame.token_ids)
        if end > first_index:
            why = "no message ended there"
            self._error = invalid_position(frame.choice_index, first_index, why)
            self._changed.set()

    def ended(self, ended: Ended) -> None:
        self._end = ended
        self._changed.set()
        self._over.set()

    def failed(self, error: PddError) -> None:
        self._error = error
        self._changed.set()
        self._over.set()

    # --- the reader --------------------------------------------------------------------------

    async def take(self, *, not_before_s: float) -> News:
        """Wait for news; for tokens alone at least until ``not_before_s``.

        Raises:
            PddError: the request has failed; what came before was told.
            ClientStalled: the bound was reached.
        """
        await self._changed.wait()
        wait_s = not_before_s - self._clock()
        if wait_s > 0 and not self.is_over:
            # What has come by then goes together.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._over.wait()
        self._changed.clear()
        if isinstance(self._error, ClientStalled):
            raise self._error
        news = News(
            plan=self._plan,
            passed=joined(self._passed),
            frames=joined(self._frames),
            end=None if self._error is not None else self._end,
        )
        self._plan, self._passed, self._frames = None, [], []
        if news.plan is None and not news.frames and self._error is not None:
            raise self._error
        if self._error is not None:
            self._changed.set()  # to be raised next time
        return news
