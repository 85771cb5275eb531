"""Three scheduler cores in one seed's world: leaders change, streams break, nodes die, time passes.

Real cores and the real desk between them; the network is a queue per direction that a seed empties
in bits. In the end one leads, everything is delivered, and then: every request has ended exactly
once at its holder, and the leader holds nothing for anybody.
"""

import asyncio
import os
import random
from collections import deque
from dataclasses import replace
from typing import Any

import pytest

from pdd.control.leader_server import HolderSession, NotLeading
from pdd.core.frames import FinishReason
from pdd.core.identity import Forking, NodeName, RequestId
from pdd.core.requests import Path
from pdd.daemon import group_desk
from pdd.daemon.group_desk import GroupDesk
from pdd.rpc.v1 import decisions_pb2
from pdd.scheduler.core import SchedulerCore
from pdd.scheduler.effects import Cancel, Complete, Effect, Fail, GiveFirstToken, Submit
from pdd.scheduler.events import (
    DecodeReady,
    Event,
    FailureKind,
    FirstTokenSampled,
    JobFailed,
    NodeLost,
    NodeReported,
    RequestArrived,
    RequestCancelled,
    SequenceFinished,
    SequenceGrew,
    SequenceStarted,
    Tick,
)
from pdd.scheduler.group_events import LeadershipChanged
from pdd.scheduler.requests import Phase
from pdd.scheduler.settings import PathMode, PathSettings, SchedulerSettings
from pdd.tls.security import PLAIN
from tests.builders import make_finish, make_identity, make_joined, make_request

NAMES = ("s0", "s1", "s2")
NODES = ("prefill-0", "decode-0", "decode-1")
SEEDS = int(os.environ.get("PDD_SEEDS", "60"))
EVENTS = 400


class Wire:
    """What one scheduler and the one that it takes for the leader have said and not read yet."""

    def __init__(self, holder: "Scheduler", leader: "Scheduler", link: "Link") -> None:
        self.holder, self.leader, self.link = holder, leader, link
        self.session = HolderSession(holder.name)
        self.up: deque[bytes] = deque()
        self.down: deque[bytes] = deque()
        self.session.send = lambda item: self.down.append(  # type: ignore[method-assign]
            item.SerializeToString()
        )
        self.is_open = True

    def deliver_up(self) -> None:
        item = decisions_pb2.HolderItem.FromString(self.up.popleft())
        self.leader.desk.holder_said(self.session, item)

    def deliver_down(self) -> None:
        item = decisions_pb2.LeaderItem.FromString(self.down.popleft())
        self.link.news.leader_said(self.link, item)

    def cut(self, reason: str) -> None:
        if self.is_open:
            self.is_open = False
            self.link.wire = None
            self.link.news.leader_lost(self.link, reason)
            self.leader.desk.holder_detached(self.session, reason)


class Link:
    """Stands in for ``LeaderLink``: connected when the world lets it."""

    world: "World"

    def __init__(self, *, scheduler: str, leader: str, news: Any, **_: Any) -> None:
        self.scheduler, self.leader, self.news = scheduler, leader, news
        self.wire: Wire | None = None
        self.is_wanted = True
        self.world.links.append(self)

    def send(self, item: decisions_pb2.HolderItem) -> None:
        assert self.wire is not None
        self.wire.up.append(item.SerializeToString())

    async def run(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.is_wanted = False
            if self.wire is not None:
                self.wire.cut("another one leads")

    def connect(self) -> None:
        world = self.world
        wire = Wire(world.schedulers[self.scheduler], world.schedulers[self.leader], self)
        try:
            wire.leader.desk.holder_attached(wire.session)
        except NotLeading:
            return
        self.wire = wire
        self.news.leader_attached(self)


class Scheduler:
    """A core, its desk, and a driver that knows no tokens, only how far each job is."""

    def __init__(self, world: "World", name: str) -> None:
        self.world, self.name = world, name
        self.core = SchedulerCore(SchedulerSettings(path=PathSettings(mode=PathMode.DISAGGREGATED)))
        self.output: dict[RequestId, int] = {}
        self.jobs: dict[RequestId, tuple[int, dict[str, NodeName]]] = {}
        """Present generation, and node by kind of job."""
        self.ended: dict[RequestId, str] = {}
        self._events: deque[Event] = deque()
        self._is_stepping = False
        self.desk = GroupDesk(
            name=name,
            addresses={one: one for one in NAMES},
            core=self.core,
            clock=lambda: world.now_s,
            security=PLAIN,
            step=self.step,
            output_token_count=lambda request_id: self.output.get(request_id, 0),
            crashed=world.crashed,
        )
        self.step(LeadershipChanged(leads=False))

    def step(self, event: Event) -> None:
        self._events.append(event)
        if self._is_stepping:
            return
        self._is_stepping = True
        try:
            while self._events:
                event = self._events.popleft()
                effects = self.core.step(event, now_s=self.world.now_s)
                for effect in effects:
                    if not self.desk.takes(effect):
                        self.obey(effect)
                self.desk.stepped(event, effects)
                self.core.check()
        finally:
            self._is_stepping = False

    def obey(self, effect: Effect) -> None:
        match effect:
            case Submit():
                request_id = effect.request.request_id
                assert request_id in self.output, "only a holder submits"
                assert effect.kind == "local" or self.output[request_id] == 0
                generation, nodes = self.jobs.get(request_id, (-1, {}))
                if generation != effect.generation:
                    nodes = {}
                self.jobs[request_id] = (effect.generation, {**nodes, effect.kind: effect.node})
            case Complete() | Fail():
                assert effect.request_id not in self.ended, "ended twice"
                self.ended[effect.request_id] = type(effect).__name__
            case Cancel() | GiveFirstToken():
                pass

    # What its clients and nodes do

    def arrive(self, number: int, rng: random.Random) -> None:
        request = make_request(
            f"{self.name}-{number}",
            prompt_token_count=rng.choice([16, 64, 300, 5000]),
            max_tokens=rng.choice([1, 16, 400]),
            deadline_s=1e6,
        )
        request = replace(request, choice_count=rng.choice([1, 1, 3]))
        self.output[request.request_id] = 0
        self.step(RequestArrived(request=request))

    def advance(self, request_id: RequestId, rng: random.Random) -> None:
        """One step of an engine, if one runs this request."""
        request = self.core.requests.get(request_id)
        if request is None or request.phase is Phase.QUEUED:
            return
        generation = request.generation
        runs_on = request.runs_on()
        assert runs_on is not None
        assert self.jobs[request_id][0] == generation
        if rng.random() < 0.05:
            self.step(
                JobFailed(
                    request_id=request_id,
                    generation=generation,
                    node=runs_on,
                    message="chance",
                    kind=FailureKind.ENGINE,
                )
            )
        elif request.phase is Phase.PREFILLING and request.path() is Path.DISAGGREGATED:
            assert request.prefill is not None
            hands_over = request.decode is not None and rng.random() < 0.9
            choice = next(one for one in request.open_choices if request.awaits_first_token(one))
            reason = FinishReason.HANDOVER if hands_over else FinishReason.LENGTH
            self.output[request_id] = 1
            self.step(
                FirstTokenSampled(
                    request_id=request_id,
                    generation=generation,
                    node=request.prefill,
                    token_id=7,
                    finish=make_finish(reason),
                    choice_index=choice,
                )
            )
        elif request.phase is Phase.PREFILLING:
            self.output[request_id] = max(self.output[request_id], 1)
            self.step(SequenceStarted(request_id=request_id, generation=generation))
        elif request.phase is Phase.TRANSFERRING:
            self.step(DecodeReady(request_id=request_id, generation=generation))
        else:
            self._decode(request_id, generation, runs_on, rng)

    def _decode(
        self, request_id: RequestId, generation: int, node: NodeName, rng: random.Random
    ) -> None:
        request = self.core.requests[request_id]
        max_tokens = request.request.sampling.max_tokens
        count = min(self.output[request_id] + rng.choice([1, 40]), max_tokens)
        self.output[request_id] = count
        if count == max_tokens or rng.random() < 0.2:
            self.step(
                SequenceFinished(
                    request_id=request_id,
                    generation=generation,
                    node=node,
                    finish=make_finish(),
                    output_token_count=count,
                    choice_index=rng.choice(request.open_choices),
                )
            )
        elif count >= request.grows_at_tokens:
            self.step(
                SequenceGrew(request_id=request_id, generation=generation, output_token_count=count)
            )


class World:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now_s = 1000.0
        self.links: list[Link] = []
        self.bugs: list[BaseException] = []
        Link.world = self
        self.schedulers = {name: Scheduler(self, name) for name in NAMES}
        self.boot = dict.fromkeys(NODES, 1)
        self.count = 0
        for node in NODES:
            self.join(node)

    def crashed(self, error: BaseException) -> None:
        self.bugs.append(error)

    def all(self) -> list[Scheduler]:
        return list(self.schedulers.values())

    def join(self, node: str) -> None:
        joined = make_joined(
            node, boot_epoch=self.boot[node], block_count=400, forking=Forking.SHARED
        )
        for one in self.all():
            one.step(joined)

    def wires(self) -> list[Wire]:
        return [link.wire for link in self.links if link.wire is not None]

    async def elect(self, leader: str | None) -> None:
        order = self.all()
        self.rng.shuffle(order)
        for one in order:
            one.desk.leader_is(leader)
            await asyncio.sleep(0)  # a link that is not wanted any more ends
        for wire in self.wires():
            if wire.session.closed.is_set():
                wire.cut(wire.session.close_reason)

    def connect(self) -> None:
        self.links = [link for link in self.links if link.is_wanted]
        for link in self.links:
            if link.wire is None:
                link.connect()

    def open_requests(self) -> list[tuple[Scheduler, RequestId]]:
        return [
            (one, request_id)
            for one in self.all()
            for request_id in one.output
            if request_id not in one.ended and request_id in one.core.requests
        ]

    async def something(self) -> None:
        rng, kind = self.rng, self.rng.random()
        self.now_s += rng.random() * 0.2
        if kind < 0.12:
            self.count += 1
            rng.choice(self.all()).arrive(self.count, rng)
        elif kind < 0.45:
            if wires := [wire for wire in self.wires() if wire.up or wire.down]:
                wire = rng.choice(wires)
                if wire.up and (not wire.down or rng.random() < 0.5):
                    wire.deliver_up()
                else:
                    wire.deliver_down()
        elif kind < 0.85:
            if some := self.open_requests():
                one, request_id = rng.choice(some)
                one.advance(request_id, rng)
        elif kind < 0.89:
            await self.elect(rng.choice([*NAMES, None]))
        elif kind < 0.93:
            self.connect()
        elif kind < 0.94:
            if wires := self.wires():
                rng.choice(wires).cut("chance")
        elif kind < 0.96:
            if some := self.open_requests():
                one, request_id = rng.choice(some)
                one.ended[request_id] = "cancelled"
                one.step(RequestCancelled(request_id=request_id))
        elif kind < 0.98:
            node = rng.choice(NODES)
            identity = make_identity(node, boot_epoch=self.boot[node])
            order = self.all()
            rng.shuffle(order)
            for one in order[: rng.choice([1, 3, 3])]:
                one.step(NodeLost(identity=identity, reason="chance"))
            self.boot[node] += 1
            self.join(node)
        else:
            self.tick()

    def tick(self) -> None:
        for one in self.all():
            for node in NODES:
                one.step(
                    NodeReported(
                        node=NodeName(node),
                        free_block_count=399,
                        running_sequence_count=0,
                        waiting_sequence_count=0,
                    )
                )
            one.step(Tick())

    async def settle(self) -> None:
        """One leads, everything is delivered, everything runs to its end."""
        await self.elect("s1")
        for _ in range(600):
            self.connect()
            await asyncio.sleep(0)
            self.now_s += 0.3
            for wire in self.wires():
                while wire.up:
                    wire.deliver_up()
                while wire.down:
                    wire.deliver_down()
            for one, request_id in self.open_requests():
                if request_id in one.core.requests:
                    one.advance(request_id, self.rng)
            self.tick()
            if not any(one.core.requests for one in self.all()):
                return
        left = {
            one.name: [
                (r.id, r.phase.value, r.generation, r.interruption, r.prefill, r.decode)
                for r in one.core.requests.values()
            ][:3]
            for one in self.all()
        }
        raise AssertionError(f"still open: {left}")


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_every_request_ends_once_whoever_leads(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    print(f"seed {seed}")
    monkeypatch.setattr(group_desk, "LeaderLink", Link)
    monkeypatch.setattr(group_desk, "SETTLE_S", 0.0)
    world = World(seed)
    for _ in range(EVENTS):
        await world.something()
        await asyncio.sleep(0)
        assert not world.bugs
    await world.settle()
    for one in world.all():
        assert one.ended.keys() == one.output.keys()
        for node in one.core.nodes.values():
            assert not node.leases
        await one.desk.close()
    assert world.count > 20
