"""Joins a scheduler's core to those of the other schedulers of its group.

    leads      requests that others hold come as events, decisions about them go to their streams
    follows    events about requests that are held here go to the leader, its decisions come back

Nothing is kept for a leader that is not there: whoever comes to lead is told all that is held, as
it stands then. Running streams need none of this. All calls are on the driver's loop and return at
once.

* A new leader gives places when every other scheduler has told what it holds, or after SETTLE_S:
  the dead one will not tell. Else it would promise blocks that running streams fill.
* Whoever is not attached to a new leader after LOST_AFTER_S, the former one among them, is lost.
* What a lost scheduler held keeps its leases for HOLDER_MEMORY_S: nodes hold its sequences about so
  long for a client that comes back to another scheduler.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from pdd.cell.claims import HeardClaims
from pdd.control.group_convert import (
    all_told_to_proto,
    decision_from_proto,
    heard_claims_from_proto,
    news_from_proto,
    news_to_proto,
    place_to_proto,
    refused_to_proto,
    taken_to_proto,
    told_from_proto,
    told_to_proto,
)
from pdd.control.leader_client import LeaderLink
from pdd.control.leader_server import HolderSession, NotLeading
from pdd.core.errors import NodeUnavailable
from pdd.core.identity import RequestId
from pdd.core.ports import Clock
from pdd.rpc.v1 import decisions_pb2
from pdd.scheduler.core import SchedulerCore
from pdd.scheduler.effects import (
    Announce,
    Cancel,
    Complete,
    Disconnect,
    Effect,
    Fail,
    GiveFirstToken,
    Submit,
)
from pdd.scheduler.events import (
    Event,
    NodeJoined,
    NodeLost,
    RequestArrived,
    RequestCancelled,
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
from pdd.scheduler.requests import Phase, Request
from pdd.tls.security import Security

log = structlog.get_logger(__name__)

SETTLE_S = 0.5
LOST_AFTER_S = 2.0
"""A scheduler that is not attached to the leader for so long is lost; see ``elsewhere_desk``."""
HOLDER_MEMORY_S = 40.0


@dataclass(slots=True)
class _Other:
    """A request that another scheduler holds. ``known_generation``: its holder knows of it;
    ``placed_generation``: the latest whose place was sent."""

    holder: str
    known_generation: int
    placed_generation: int = -1


class GroupDesk:
    """Implements ``LeaderHandler`` and ``LeaderNews``; the driver calls ``takes`` for each effect
    and ``stepped`` after each event."""

    def __init__(
        self,
        *,
        name: str,
        addresses: dict[str, str],
        core: SchedulerCore,
        clock: Clock,
        security: Security,
        step: Callable[[Event], None],
        output_token_count: Callable[[RequestId], int],
        crashed: Callable[[BaseException], None],
    ) -> None:
        """
        Args:
            name: this scheduler's.
            addresses: of the schedulers' gRPC servers, by name.
            step: gives an event to the core and obeys what comes out.
            output_token_count: tokens that the client of a request held here has.
            crashed: told of a bug in what runs in the background.
        """
        self._name = name
        self._addresses = addresses
        self._core = core
        self._clock = clock
        self._security = security
        self._step = step
        self._output_token_count = output_token_count
        self._crashed = crashed
        self._leader: str | None = None
        self._settling: asyncio.TimerHandle | None = None
        self._others: dict[RequestId, _Other] = {}
        self._holders: dict[str, HolderSession] = {}
        self._untold: dict[str, set[RequestId]] = {}
        """Of a scheduler that is telling what it holds: what it had and has not named yet."""
        self._lost: dict[str, asyncio.TimerHandle] = {}
        """While this one leads, of each scheduler that is not attached: until it is noted as lost,
        or its requests are forgotten."""
        self._link: LeaderLink | None = None
        """To the leader, while it listens."""
        self._asking: asyncio.Task[None] | None = None
        self._told: dict[RequestId, int] = {}
        """Requests that the leader knows, and the generation that it knows of."""
        self._heard_s: dict[str, float] = {}
        """When schedulers that are not attached were; since it leads where they never were."""
        self._former_leader: str | None = None
        """Before this one. If it is lost, nodes tell what it had."""
        self._have_told: set[str] = set()
        """Since this one leads: schedulers that have told all they had."""
        self.heard_claims = HeardClaims()
        """Keys that leaders have claimed for themselves. Whoever comes to lead hears of them from
        all others before it grants any."""
        self.on_key_told: Callable[[bytes, str, Callable[[str], bool]], str] = _is_its_own
        """When this one leads: which scheduler has a request of a client's key. Returns which one
        may have: it, or who has claimed the key since, if the third says that this one runs it."""
        self.on_leader_attached: Callable[[], None] = _ignore
        """Told when there is a leader that takes what this scheduler says."""
        self.on_holder_lost: Callable[[str, bool], None] = _ignore
        """While this one leads: a scheduler is lost, or (True) its requests are forgotten."""

    @property
    def leader(self) -> str | None:
        """Who leads, as far as is known here."""
        return self._leader

    def leader_address(self) -> str:
        """Of the scheduler that gives places to this one; empty while it leads or knows nobody."""
        return "" if self._link is None else self._addresses.get(self._link.leader, "")

    @property
    def is_connected(self) -> bool:
        """Whether places can be had now."""
        return self._core.leads or self._link is not None

    @property
    def leads(self) -> bool:
        """Whether this one gives places."""
        return self._core.leads

    @property
    def unheard(self) -> list[str]:
        """While this one leads: schedulers that live and have not told what they hold; no longer
        than LOST_AFTER_S."""
        return [
            name
            for name in self._addresses
            if name not in (self._name, self._former_leader)
            and name not in self._have_told
            and (self.silent_s(name) or 0.0) < LOST_AFTER_S
        ]

    def silent_s(self, scheduler: str) -> float | None:
        """While this one leads: how long another one has not been attached; None: no such one."""
        if scheduler in self._holders:
            return 0.0
        heard_s = self._heard_s.get(scheduler)
        return None if heard_s is None else self._clock() - heard_s

    # --- who leads ---------------------------------------------------------------------------

    def leader_is(self, leader: str | None) -> None:
        """The log says so. None: nobody is known to; whoever was followed is followed on, and ends
        its streams itself when it leads no longer."""
        if leader == self._leader or (leader is None and self._leader != self._name):
            return
        log.info("leader_changed", leader=leader, former=self._leader)
        was_own = self._leader == self._name
        self._former_leader, self._leader = self._leader, leader
        self._have_told.clear()
        if was_own:
            self._stop_leading()
        self._stop_asking()
        if leader == self._name:
            self._settling = asyncio.get_running_loop().call_later(SETTLE_S, self._lead)
        elif leader is not None and (address := self._addresses.get(leader)) is not None:
            link = LeaderLink(
                scheduler=self._name,
                leader=leader,
                address=address,
                news=self,
                security=self._security,
            )
            self._asking = asyncio.get_running_loop().create_task(link.run())
            self._asking.add_done_callback(self._on_asked)

    def _on_asked(self, task: asyncio.Task[None]) -> None:
        """A link ends by being cancelled only."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._crashed(error)

    def _lead(self) -> None:
        if self._settling is not None:
            self._settling.cancel()
            self._settling = None
        self._heard_s = dict.fromkeys(self._addresses, self._clock())
        loop = asyncio.get_running_loop()
        for name in self._addresses:
            if name != self._name and name not in self._holders and name not in self._lost:
                self._lost[name] = loop.call_later(LOST_AFTER_S, self._note_lost, name)
        log.info("leading", held=len(self._core.requests), others=len(self._others))
        for request in list(self._core.requests.values()):
            key = request.request.resume_key
            if key and not request.holder and (has := self._who_has(key, self._name)) != self._name:
                self._step(RequestRefused(request_id=request.id, error=_taken(has, self._name)))
        self._step(LeadershipChanged(leads=True))
        self.on_leader_attached()

    def _stop_leading(self) -> None:
        if self._settling is not None:
            self._settling.cancel()
            self._settling = None
        for timer in self._lost.values():
            timer.cancel()
        self._lost.clear()
        self._untold.clear()
        for session in self._holders.values():
            session.close(f"{self._name} leads no longer")
        self._holders.clear()
        self._step(LeadershipChanged(leads=False))
        self._others.clear()

    def _stop_asking(self) -> None:
        self._link = None
        self._told.clear()
        if self._asking is not None:
            self._asking.cancel()
            self._asking = None

    async def close(self) -> None:
        """At the end of the process."""
        asking = self._asking
        self._stop_asking()
        if asking is not None:
            await asyncio.wait({asking})

    # --- leading: the others ask -------------------------------------------------------------

    def holder_attached(self, session: HolderSession) -> None:
        """See ``LeaderHandler``."""
        name = session.scheduler
        if self._leader != self._name:
            raise NotLeading(f"{self._name} does not lead; it follows {self._leader or 'nobody'}")
        if name not in self._addresses or name == self._name:
            raise NotLeading(f"{name} is none of the other schedulers of {self._name}'s group")
        former = self._holders.pop(name, None)
        if former is not None:
            former.close("this scheduler has opened another stream")
        if (timer := self._lost.pop(name, None)) is not None:
            timer.cancel()
        self._holders[name] = session
        self._untold[name] = {
            request_id for request_id, other in self._others.items() if other.holder == name
        }

    def holder_said(self, session: HolderSession, item: decisions_pb2.HolderItem) -> None:
        """See ``LeaderHandler``."""
        name = session.scheduler
        if self._holders.get(name) is not session:
            return
        match item.WhichOneof("item"):
            case "request":
                self._on_told(told_from_proto(item.request, holder=name))
            case "news":
                event = news_from_proto(item.news)
                other = self._others.get(RequestId(item.news.request_id))
                if other is not None and other.holder == name:
                    if isinstance(event, AttemptEnded):
                        other.known_generation = max(other.known_generation, event.generation + 1)
                    self._step(event)
                    if item.news.is_over:
                        self._step(RequestCancelled(request_id=RequestId(item.news.request_id)))
            case "all_told":
                for claim in heard_claims_from_proto(item.all_told):
                    self.heard_claims.note(claim, self._clock())
                self._have_told.add(name)
                for request_id in self._untold.pop(name, set()):
                    self._step(RequestCancelled(request_id=request_id))
                if self._settling is not None and self._all_have_told():
                    self._lead()
            case other_kind:
                raise ValueError(f"unknown item {other_kind!r} of {name}")

    def holder_detached(self, session: HolderSession, reason: str) -> None:
        """See ``LeaderHandler``."""
        name = session.scheduler
        if self._holders.get(name) is not session:
            return
        del self._holders[name]
        self._untold.pop(name, None)
        self._heard_s[name] = self._clock()
        log.info("holder_detached", scheduler=name, reason=reason)
        self._note_lost(name)

    def _note_lost(self, name: str) -> None:
        self.on_holder_lost(name, False)
        self._lost[name] = asyncio.get_running_loop().call_later(
            HOLDER_MEMORY_S, self._forget_holder, name
        )

    def _forget_holder(self, name: str) -> None:
        self._lost.pop(name, None)
        self._step(HolderLost(holder=name))
        self.on_holder_lost(name, True)

    def _all_have_told(self) -> bool:
        return not self._untold and len(self._holders) == len(self._addresses) - 1

    def drop_waiting(self, key: bytes, holder: str) -> bool:
        """Whether a scheduler that is not attached has a request of that key which waits for its
        first place. Only this one gives places, so it never runs: it is forgotten, and refused if
        its scheduler comes back with it."""
        for request in self._core.requests_of_key(key):
            if request.holder == holder:
                if request.phase is not Phase.QUEUED or request.generation:
                    return False
                self._others.pop(request.id, None)
                self._step(RequestCancelled(request_id=request.id))
                return True
        return False

    def _on_told(self, event: RequestTold) -> None:
        request_id = event.request.request_id
        if (rival := self._rival_of(event)) is not None:
            self._refuse(event.holder, request_id, rival)
            return
        other = self._others.get(request_id)
        if other is not None and other.holder != event.holder and other.holder in self._holders:
            self._refuse(other.holder, request_id, event.holder)
        self._others[request_id] = _Other(event.holder, event.generation)
        for untold in self._untold.values():
            untold.discard(request_id)
        self._step(event)
        self._tell_taken(request_id)
        self._tell_less(event)

    def _rival_of(self, event: RequestTold) -> str | None:
        """Who else has that request, or its client's key, since the teller was cut off. Of two that
        have the same one, who is further with it keeps it, or who told of it first."""
        request_id, key = event.request.request_id, event.request.resume_key
        present, other = self._core.requests.get(request_id), self._others.get(request_id)
        if present is not None and not present.holder:
            return self._name
        if present is not None and other is not None and other.holder != event.holder:
            is_behind = _told_progress(event) <= _known_progress(present)
            return other.holder if is_behind and other.holder in self._holders else None
        has = self._who_has(key, event.holder) if key else event.holder
        return has if has != event.holder else None

    def _who_has(self, key: bytes, holder: str) -> str:
        """``holder`` has a request of a client's key; of two that have one, who may go on."""

        def runs_it(other: str) -> bool:
            name = "" if other == self._name else other
            return any(one.holder == name for one in self._core.requests_of_key(key))

        return self.on_key_told(key, holder, runs_it)

    def _refuse(self, holder: str, request_id: RequestId, rival: str) -> None:
        log.warning("request_held_twice", request_id=request_id, scheduler=holder, kept=rival)
        self._send(holder, refused_to_proto(request_id, _taken(rival, holder)))

    def takes(self, effect: Effect) -> bool:
        """Whether an effect is about a request that another scheduler holds; then it is done."""
        if not self._others:
            return False
        match effect:
            case Submit():
                request_id = effect.request.request_id
            case Cancel() | GiveFirstToken() | Announce() | Complete() | Fail():
                request_id = effect.request_id
            case _:
                return False
        other = self._others.get(request_id)
        if other is None:
            return False
        request = self._core.requests.get(request_id)
        if request is not None and not request.holder:
            del self._others[request_id]  # it came to this scheduler meanwhile
            return False
        if isinstance(effect, Submit):
            self._tell_place(request_id, other)
        elif isinstance(effect, Cancel):
            self._tell_taken(request_id)
        elif isinstance(effect, Fail):
            self._send(other.holder, refused_to_proto(request_id, effect.error))
        return True

    def taken_over(self, request_id: RequestId) -> None:
        """Before the core hears of it: it is held here from now on, also if it ends in that very
        step."""
        self._others.pop(request_id, None)

    def _tell_place(self, request_id: RequestId, other: _Other) -> None:
        request = self._core.requests.get(request_id)
        if request is None or other.placed_generation >= request.generation:
            return  # it is over, or this is the second of its two jobs
        other.placed_generation = other.known_generation = request.generation
        self._send(other.holder, place_to_proto(request))

    def _tell_taken(self, request_id: RequestId) -> None:
        """If it waits here and its holder does not know."""
        request, other = self._core.requests.get(request_id), self._others.get(request_id)
        if request is None or other is None or request.phase is not Phase.QUEUED:
            return
        if request.generation > other.known_generation:
            other.known_generation = request.generation
            self._send(other.holder, taken_to_proto(request))

    def _tell_less(self, told: RequestTold) -> None:
        """If what runs was given less room here than its holder believes."""
        request = self._core.requests.get(told.request.request_id)
        if (
            request is not None
            and request.phase is not Phase.QUEUED
            and request.generation == told.generation
            and request.granted_tokens < told.granted_tokens
        ):
            self._send(told.holder, place_to_proto(request))

    def _send(self, holder: str, item: decisions_pb2.LeaderItem) -> None:
        session = self._holders.get(holder)
        if session is not None:  # else it tells what it has when it is back
            session.send(item)

    # --- following: the leader is told -------------------------------------------------------

    def leader_attached(self, link: LeaderLink) -> None:
        """See ``LeaderNews``."""
        self._link = link
        self._told.clear()
        log.info("leader_attached", leader=link.leader, held=len(self._core.requests))
        running = [one for one in self._core.requests.values() if one.phase is not Phase.QUEUED]
        for request in running:  # before anybody new is given their room
            self._tell(request.id)
        for request_id in self._core.requests:
            if request_id not in self._told:
                self._tell(request_id)
        link.send(all_told_to_proto(self.heard_claims.all(self._clock())))
        self.on_leader_attached()

    def leader_said(self, link: LeaderLink, item: decisions_pb2.LeaderItem) -> None:
        """See ``LeaderNews``."""
        if self._link is link:
            self._step(decision_from_proto(item))

    def leader_lost(self, link: LeaderLink, reason: str) -> None:
        """See ``LeaderNews``."""
        if self._link is link:
            self._link = None
            self._told.clear()
            log.warning("leader_lost", leader=link.leader, reason=reason)

    def stepped(self, event: Event, effects: list[Effect]) -> None:
        """An event has been decided and obeyed."""
        if self._core.leads:
            self._forget_ended()
        elif self._link is not None:
            self._report(self._link, event, effects)

    def _forget_ended(self) -> None:
        if len(self._others) > 2 * len(self._core.requests) + 64:
            requests = self._core.requests
            self._others = {
                request_id: other
                for request_id, other in self._others.items()
                if request_id in requests
            }

    def _report(self, link: LeaderLink, event: Event, effects: list[Effect]) -> None:
        match event:
            case RequestArrived():
                self._tell(event.request.request_id)
            case PlaceGiven() | PlaceTaken():
                if event.request_id in self._core.requests:
                    self._told[event.request_id] = event.generation
                    self._tell_ended(link, event.request_id)
                else:
                    self._tell_over(link, event.request_id)
            case NodeLost() | NodeJoined():
                self._tell_all_ended(link)
            case _:
                item = news_to_proto(event)
                if item is not None and item.news.request_id in self._told:
                    self._keep_told(item.news)
                    link.send(item)
        if any(isinstance(effect, Disconnect) for effect in effects):
            self._tell_all_ended(link)
        if not isinstance(event, RequestRefused):
            for effect in effects:
                if isinstance(effect, Fail):
                    self._tell_over(link, effect.request_id)
                elif isinstance(effect, Announce) and effect.request_id not in self._told:
                    self._tell(effect.request_id)  # taken over from a scheduler that is gone
        elif event.request_id in self._told:
            del self._told[event.request_id]

    def _keep_told(self, news: decisions_pb2.RequestNews) -> None:
        """The leader makes of the news what this core has made of it, or hears that it is over: the
        leader may be at a later attempt, to which news of this one mean nothing."""
        request_id = RequestId(news.request_id)
        request = self._core.requests.get(request_id)
        if request is None:
            news.is_over = True
            self._told.pop(request_id, None)
        else:
            self._told[request_id] = request.generation

    def _tell(self, request_id: RequestId) -> None:
        request = self._core.requests.get(request_id)
        if request is None or self._link is None:
            return  # refused at once
        self._told[request_id] = request.generation
        self._link.send(
            told_to_proto(
                request,
                output_token_count=self._output_token_count(request_id),
                now_s=self._clock(),
            )
        )

    def _tell_over(self, link: LeaderLink, request_id: RequestId) -> None:
        self._told.pop(request_id, None)
        item = news_to_proto(RequestCancelled(request_id=request_id))
        assert item is not None
        link.send(item)

    def _tell_all_ended(self, link: LeaderLink) -> None:
        for request_id in list(self._told):
            self._tell_ended(link, request_id)

    def _tell_ended(self, link: LeaderLink, request_id: RequestId) -> None:
        """If its attempt was given up here and the leader does not know."""
        request = self._core.requests.get(request_id)
        known = self._told[request_id]
        if request is None:
            self._tell_over(link, request_id)
        elif request.generation > known:
            self._told[request_id] = request.generation
            item = news_to_proto(
                AttemptEnded(
                    request_id=request_id,
                    generation=known,
                    why=request.interruption,
                    has_output=request.first_token_s is not None,
                )
            )
            assert item is not None
            link.send(item)


def _told_progress(told: RequestTold) -> int:
    """0: it waits. 1: it has a place. 2: it has output there."""
    if told.phase is Phase.QUEUED:
        return 0
    has_output = told.output_token_count or told.phase in (Phase.TRANSFERRING, Phase.DECODING)
    return 2 if has_output else 1


def _known_progress(request: Request) -> int:
    """Likewise."""
    if request.phase is Phase.QUEUED:
        return 0
    return 1 if request.first_token_s is None else 2


def _taken(rival: str, holder: str) -> NodeUnavailable:
    return NodeUnavailable(
        f"scheduler {rival} has this request since scheduler {holder} was cut off from the leader; "
        "send it again, or ask for its stream, to be told what it says"
    )


def _is_its_own(key: bytes, holder: str, runs_it: Callable[[str], bool]) -> str:
    """Nobody else is known."""
    return holder


def _ignore(*_: object) -> None:
    """Nobody is there to be told."""
