"""What the rooms need from each other, as protocols. ``daemon`` fills them with real objects."""

from typing import Protocol

from pdd.core.errors import PddError
from pdd.core.frames import Frame
from pdd.core.identity import RequestId
from pdd.core.requests import Ended, GenerateRequest, Plan


class Clock(Protocol):
    """Monotonic seconds. Injected, so that tests and simulations own the time."""

    def __call__(self) -> float: ...


class Sink(Protocol):
    """Where one request's output goes: ``planned``, then ``tokens``..., then ``ended``; or, at any
    point, ``failed`` instead of the rest. After the last of them nothing comes any more.

    Calls, not an iterator: a task switch per token costs more than writing the token. All come on
    the event loop, some of them from within ``Inference.start``. A sink returns at once, may call
    ``Inference.cancel``, and raises nothing: what it raises is a bug and ends the process.
    """

    def planned(self, plan: Plan) -> None:
        """The request was placed; the first call of every accepted request."""
        ...

    def tokens(self, frame: Frame) -> None:
        """What is new: begins exactly where the last frame of its choice ended.

        Where a request has several choices, the last frame of each has a ``finish``, and perhaps
        no tokens; the end of a single choice is told by ``ended`` alone.
        """
        ...

    def token(
        self, request_id: RequestId, index: int, token_id: int, text_offset: int, text: str
    ) -> None:
        """``tokens`` with one token of an only choice and nothing else: nearly every call. No frame
        is made for it; that would cost as much as half of what a sink does with it. See
        ``token_frame``.
        """
        ...

    def ended(self, ended: Ended) -> None:
        """The last call of a request that finished by itself."""
        ...

    def failed(self, error: PddError) -> None:
        """The request is over on every node. Before ``planned``: InvalidRequest (no node of this
        cluster could ever hold it), AdmissionRejected, NodeUnavailable; nothing was started. At
        any time: InvalidRequest (an engine refuses its parameters), RequestFailed,
        DeadlineExceeded."""
        ...


class Adopter(Protocol):
    """The front door, as who takes requests over sees it."""

    def __call__(self, request: GenerateRequest) -> tuple[GenerateRequest, Sink]:
        """The request as it was, from what its work carried along (``resume``), and who is told
        all of it, from its plan and first token on. Raises ValueError: it cannot be read."""
        ...


class Inference(Protocol):
    """The scheduler as the front door (HTTP, gRPC) sees it."""

    def start(self, request: GenerateRequest, sink: Sink) -> None:
        """Run one request. Its id has never been used before."""
        ...

    def cancel(self, request_id: RequestId) -> None:
        """End a request on every node, in whatever phase; its sink is not called any more.

        Idempotent; void for a request that is over.
        """
        ...
