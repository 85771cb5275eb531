"""One run of ``Inference.generate``, the same for HTTP and gRPC.

It keeps the order of events (plan, tokens, end), counts, and sees to it that the iterator is
closed in every case: whoever leaves this context early has cancelled the request on every node.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager

from pdd.core.errors import RequestFailed
from pdd.core.frames import Frame
from pdd.core.ports import Clock, Inference
from pdd.core.requests import Delta, Ended, GenerateRequest, GenerationEvent, Plan, Planned
from pdd.gateway.metrics import RequestMeter


class Run:
    """A planned request. ``plan`` is known; ``next`` gives frames and then the end."""

    def __init__(
        self,
        events: AsyncGenerator[GenerationEvent, None],
        plan: Plan,
        meter: RequestMeter,
        clock: Clock,
    ) -> None:
        self.plan = plan
        self._events = events
        self._meter = meter
        self._clock = clock

    async def next(self) -> Frame | Ended:
        """The next frame, or the end, after which it must not be called again.

        Raises:
            RequestFailed, DeadlineExceeded: the request is over on every node.
        """
        event = await anext(self._events, None)
        match event:
            case Delta(frame=frame):
                self._meter.tokens(len(frame.token_ids), now_s=self._clock())
                return frame
            case Ended():
                return event
            case None:
                raise RequestFailed("the scheduler ended the stream without an end")
            case Planned():
                raise RequestFailed("the scheduler planned the request twice")


@asynccontextmanager
async def running(
    inference: Inference, request: GenerateRequest, *, meter: RequestMeter, clock: Clock
) -> AsyncIterator[Run]:
    """Start a request and wait for its plan; leaving the context ends it everywhere.

    Raises:
        AdmissionRejected, NodeUnavailable: nothing was started.
    """
    # The port promises an iterator with aclose, which is what a generator is.
    events = inference.generate(request)
    async with aclosing(events):
        first = await anext(events, None)
        if not isinstance(first, Planned):
            raise RequestFailed("the scheduler started the stream without a plan")
        meter.path = first.plan.path
        yield Run(events, first.plan, meter, clock)


async def wait_briefly(task: "asyncio.Task[Frame | Ended]", *, timeout_s: float) -> bool:
    """True if the task ended within ``timeout_s``. It is left running if not."""
    await asyncio.wait({task}, timeout=timeout_s)
    return task.done()


async def discard(task: "asyncio.Task[Frame | Ended]") -> None:
    """End a task whose result nobody wants any more, and see it end."""
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()  # it was read; asyncio would warn otherwise
