"""What the rooms need from each other, as protocols. ``daemon`` fills them with real objects."""

from collections.abc import AsyncGenerator
from typing import Protocol

from pdd.core.requests import GenerateRequest, GenerationEvent


class Clock(Protocol):
    """Monotonic seconds. Injected, so that tests and simulations own the time."""

    def __call__(self) -> float: ...


class Inference(Protocol):
    """The scheduler as the front door (HTTP, gRPC) sees it."""

    def generate(self, request: GenerateRequest) -> AsyncGenerator[GenerationEvent, None]:
        """Run one request: ``Planned``, then ``Delta``s, then one ``Ended``.

        Closing the iterator early (``aclose``) cancels the request on every node.

        Raises:
            InvalidRequest: no node of this cluster could ever hold it, before ``Planned``; or an
                engine refuses its parameters, then at any time.
            AdmissionRejected, NodeUnavailable: before ``Planned``; nothing was started.
            RequestFailed, DeadlineExceeded: at any time; the request is over on every node.
        """
        ...
