"""The scheduler's decisions: one event in, effects out.

The driver feeds it and obeys; a simulator can do the same with the same object. It keeps no clock
and draws no random numbers. Invariants, checked by ``check``:

* a request is queued, or holds leases on the nodes of its present attempt, or is gone;
* every accepted request gets exactly one ``Complete`` or ``Fail``;
* no effect names a node that is not a member.
"""

from collections import OrderedDict
from typing import assert_never

from pdd.core.identity import NodeName, RequestId
from pdd.scheduler import admission, attempts, endings, invariants, members
from pdd.scheduler.effects import Effect
from pdd.scheduler.events import (
    DecodeReady,
    Event,
    FirstTokenSampled,
    JobFailed,
    NodeJoined,
    NodeLost,
    NodeReported,
    RequestArrived,
    RequestCancelled,
    SequenceFinished,
    SequenceStarted,
    Tick,
)
from pdd.scheduler.nodes import Node
from pdd.scheduler.requests import Request
from pdd.scheduler.settings import SchedulerSettings
from pdd.scheduler.state import State


class SchedulerCore:
    """Owns nodes, leases and the phase of every request.

    What an event does is told by the module that it is handed to: ``members`` for nodes,
    ``admission`` for who comes in and who goes next, ``attempts`` for a request's way over the
    nodes, ``endings`` for its end.
    """

    def __init__(self, settings: SchedulerSettings | None = None) -> None:
        self._state = State(settings=settings or SchedulerSettings())

    def step(self, event: Event, *, now_s: float) -> list[Effect]:
        """Apply one event. ``now_s``: monotonic seconds from the driver's clock."""
        effects = self._apply(event, now_s)
        return effects + admission.place_waiting(self._state, now_s)

    def _apply(self, event: Event, now_s: float) -> list[Effect]:
        state = self._state
        match event:
            case NodeJoined():
                return members.node_joined(state, event, now_s)
            case NodeReported():
                return members.node_reported(state, event, now_s)
            case NodeLost():
                return members.node_lost(state, event)
            case RequestArrived():
                return admission.arrived(state, event, now_s)
            case RequestCancelled():
                return endings.cancelled(state, event)
            case FirstTokenSampled():
                return attempts.first_token(state, event, now_s)
            case DecodeReady():
                return attempts.decode_ready(state, event, now_s)
            case SequenceStarted():
                return attempts.started(state, event, now_s)
            case SequenceFinished():
                return endings.finished(state, event, now_s)
            case JobFailed():
                return attempts.job_failed(state, event, now_s)
            case Tick():
                return [
                    *members.drop_silent(state, now_s),
                    *members.forget_lost(state, now_s),
                    *endings.end_overdue(state, now_s),
                ]
            case _:
                assert_never(event)

    @property
    def nodes(self) -> dict[NodeName, Node]:
        """Members, and lost ones that are still listed. To be read only."""
        return self._state.nodes

    @property
    def requests(self) -> OrderedDict[RequestId, Request]:
        """Requests that have not ended, by arrival. To be read only."""
        return self._state.requests

    @property
    def queued_request_count(self) -> int:
        """Requests that wait for room."""
        return len(self._state.queue)

    def check(self) -> None:
        """Assert the invariants; for tests and for idle moments."""
        invariants.check(self._state)
