"""The scheduler's decisions: one event in, effects out.

The driver feeds it and obeys; a simulator can do the same with the same object. It keeps no clock
and draws no random numbers. Invariants, checked by ``check``:

* a request is queued, or holds leases on the nodes of its present attempt, or is gone;
* every accepted request gets exactly one ``Complete`` or ``Fail``;
* no effect names a node that is not a member.
"""

from collections import OrderedDict
from collections.abc import Collection
from typing import assert_never

from pdd.core.identity import NodeName, RequestId, Role
from pdd.scheduler import (
    admission,
    adoption,
    attempts,
    drains,
    endings,
    following,
    growth,
    invariants,
    leading,
    members,
)
from pdd.scheduler.cordons import Cordon
from pdd.scheduler.decision_record import DecisionRecord
from pdd.scheduler.decisions import DecisionLog
from pdd.scheduler.effects import Effect
from pdd.scheduler.estimates import Estimates
from pdd.scheduler.events import (
    BlocksEvicted,
    CacheCleared,
    DecodeReady,
    Event,
    FirstTokenSampled,
    JobFailed,
    NodeCordoned,
    NodeJoined,
    NodeLost,
    NodeReported,
    NodeRoleGiven,
    NodeRoleReleased,
    NodeRoleSet,
    NodeUncordoned,
    OutputRecovered,
    QuotasChanged,
    RequestArrived,
    RequestCancelled,
    SequenceFinished,
    SequenceFound,
    SequenceGrew,
    SequenceStarted,
    SettingsChanged,
    Tick,
)
from pdd.scheduler.group_events import (
    AttemptEnded,
    HolderLost,
    LeadershipChanged,
    PlaceGiven,
    PlaceTaken,
    RequestRefused,
    RequestTold,
)
from pdd.scheduler.policy.place import Policy
from pdd.scheduler.pools import Nodes
from pdd.scheduler.prefixes import NoDirectory, PrefixDirectory
from pdd.scheduler.requests import Request
from pdd.scheduler.roles import control, demand, switches
from pdd.scheduler.roles.book import RoleBook
from pdd.scheduler.roles.controller import Loads
from pdd.scheduler.settings import SchedulerSettings
from pdd.scheduler.state import Counts, State

_CHANGE_NO_ROOM = (SequenceStarted, SequenceGrew, BlocksEvicted, CacheCleared)
"""Events after which nobody who waits can be better off, unless they have effects."""


class SchedulerCore:
    """Owns nodes, leases and the phase of every request.

    What an event does is told by the module that it is handed to: ``members`` for nodes,
    ``admission`` for who comes in and who goes next, ``attempts`` for a request's way over the
    nodes, ``endings`` for its end, ``adoption`` for what a scheduler has left that is gone.
    """

    def __init__(
        self,
        settings: SchedulerSettings | None = None,
        *,
        directory: PrefixDirectory | None = None,
    ) -> None:
        """``directory``: which node holds which prefix, if somebody follows that."""
        settings = settings or SchedulerSettings()
        estimates = Estimates(settings.estimates)
        self._state = State(
            settings=settings,
            estimates=estimates,
            policy=Policy(settings, estimates=estimates, directory=directory or NoDirectory()),
            decisions=DecisionLog(
                memory_s=settings.decision_memory_s,
                count_max=settings.decision_count_max,
                size_bytes_max=settings.decision_size_bytes_max,
            ),
            roles=RoleBook.of(settings.roles),
        )

    def step(self, event: Event, *, now_s: float) -> list[Effect]:
        """Apply one event. ``now_s``: monotonic seconds from the driver's clock."""
        state = self._state
        state.now_s = now_s
        effects = self._apply(event, now_s)
        if state.roles.switches:
            effects += switches.advance(state, now_s)
        if isinstance(event, RequestArrived):
            # Alone looked at, unless too many wait for all of them to have been looked at before.
            may_place = len(state.queue) > state.settings.queue.examined_count_max
        else:
            may_place = bool(effects) or not isinstance(event, _CHANGE_NO_ROOM)
        if state.queue and may_place and state.leads:
            effects += admission.place_waiting(state, now_s)
        if state.cordons:
            effects += drains.tell_drained(state, now_s)
        return effects

    def _apply(self, event: Event, now_s: float) -> list[Effect]:
        state = self._state
        match event:
            case RequestArrived():
                return admission.arrived(state, event, now_s)
            case FirstTokenSampled():
                return attempts.first_token(state, event, now_s)
            case DecodeReady():
                return attempts.decode_ready(state, event, now_s)
            case SequenceStarted():
                return attempts.started(state, event, now_s)
            case SequenceGrew():
                return growth.grew(state, event) if state.leads else following.grew(state, event)
            case SequenceFinished():
                return endings.finished(state, event, now_s)
            case RequestCancelled():
                return endings.cancelled(state, event)
            case NodeJoined():
                return members.node_joined(state, event, now_s)
            case SequenceFound():
                return adoption.found(state, event, now_s)
            case OutputRecovered():
                return adoption.output_recovered(state, event, now_s)
            case NodeReported():
                return members.node_reported(state, event, now_s)
            case NodeLost():
                return members.node_lost(state, event, now_s)
            case BlocksEvicted():
                return members.blocks_evicted(state, event)
            case CacheCleared():
                return members.cache_cleared(state, event)
            case NodeCordoned():
                return drains.cordon(state, event, now_s)
            case NodeUncordoned():
                return drains.uncordon(state, event)
            case NodeRoleSet():
                return switches.set_by_hand(state, event, now_s)
            case NodeRoleGiven():
                return switches.given(state, event, now_s)
            case NodeRoleReleased():
                return switches.release(state, event, now_s)
            case SettingsChanged():
                state.settings = event.settings
                state.policy.change(event.settings)
                return []
            case QuotasChanged():
                state.quotas.change(event.quotas, now_s)
                return []
            case JobFailed():
                return attempts.job_failed(state, event, now_s)
            case LeadershipChanged():
                return following.leadership_changed(state, event, now_s)
            case RequestTold():
                return leading.told(state, event, now_s)
            case AttemptEnded():
                return leading.attempt_ended(state, event, now_s)
            case HolderLost():
                return leading.holder_lost(state, event)
            case PlaceGiven():
                return following.place_given(state, event, now_s)
            case PlaceTaken():
                return following.place_taken(state, event)
            case RequestRefused():
                return following.refused(state, event)
            case Tick():
                effects = [
                    *members.drop_silent(state, now_s),
                    *members.forget_lost(state, now_s),
                    *endings.end_overdue(state, now_s),
                ]
                effects += switches.follow_all(state, now_s)
                if not state.leads:
                    return effects
                return [
                    *effects,
                    *growth.make_room_for_short(state, now_s),
                    *control.control(state, now_s),
                ]
            case _:
                assert_never(event)

    @property
    def nodes(self) -> Nodes:
        """Members, and lost ones that are still listed. To be read only."""
        return self._state.nodes

    @property
    def requests(self) -> OrderedDict[RequestId, Request]:
        """Requests that have not ended, by arrival. To be read only."""
        return self._state.requests

    def requests_of_key(self, key: bytes) -> Collection[Request]:
        """Those of a client's key that have not ended. To be read only."""
        return self._state.keyed.get(key, {}).values()

    @property
    def leads(self) -> bool:
        """Whether it gives places; else those come from another scheduler's core."""
        return self._state.leads

    @property
    def queued_request_count(self) -> int:
        """Requests that wait for room."""
        return len(self._state.queue)

    @property
    def counts(self) -> Counts:
        """What happened since the start. To be read only."""
        return self._state.counts

    @property
    def estimates(self) -> Estimates:
        """What was measured. To be read only."""
        return self._state.estimates

    def cordon_of(self, node: NodeName) -> Cordon | None:
        """An operator's cordon on a node, if there is one. To be read only."""
        return self._state.cordons.get(node)

    @property
    def roles(self) -> RoleBook:
        """Who has which duty, and why. To be read only."""
        return self._state.roles

    def role_loads(self) -> Loads:
        """How much work each duty has, for operators and autoscalers."""
        return demand.loads(self._state)

    def role_refusal(self, node: NodeName, role: Role) -> str:
        """Why an operator cannot give a member this role; empty where nothing speaks against it."""
        return switches.refusal(self._state, self._state.nodes[node], role)

    def why(self, request_id: RequestId, *, now_s: float) -> tuple[DecisionRecord, ...]:
        """The decisions about a request of the last hour, oldest first; empty if none is known."""
        return self._state.decisions.of(request_id, now_s=now_s)

    def check(self) -> None:
        """Assert the invariants; for tests and for idle moments."""
        invariants.check(self._state)
