"""One simulated replica: the real core, WAL, snapshots and sessions, around a small driver.

The driver keeps the order written on `Ready`; the seed decides how long an fsync takes and where
the machine dies. Named points: before_persist, after_persist (before send), after_send (before
apply), after_apply (before advance), and any file system call inside a write or a snapshot.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pdd.raft.config import RaftConfig
from pdd.raft.core import RaftCore, Refusal
from pdd.raft.machine import Applier
from pdd.raft.messages import InstallSnapshot, Message
from pdd.raft.proposals import Outcome, OutcomeKind, ProposalTracker
from pdd.raft.ready import Ready
from pdd.raft.sessions import SessionedStateMachine
from pdd.raft.state import Role
from pdd.raft.values import NodeId, Snapshot, SnapshotMeta
from pdd.replication.errors import StorageFailedError
from pdd.replication.storage import Storage, open_storage
from tests.simulation.raft.checker import check
from tests.simulation.raft.filesystem import PowerCut, SimFileSystem
from tests.simulation.raft.machine import ListMachine

if TYPE_CHECKING:
    from tests.simulation.raft.clients import Request
    from tests.simulation.raft.world import World

INBOX_MESSAGES_MAX = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """How this universe sets up its replicas."""

    snapshot_every: int
    keep_entries: int
    segment_bytes: int
    steps_while_persisting: bool
    """Whether inputs reach the core while a Ready is worked on; both are allowed."""
    session_idle_ms: int = 60_000
    sessions_max: int = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadContext:
    request: Request
    chosen_index: int
    """What had been chosen anywhere when the read arrived: the least it must see."""


class SimNode:
    def __init__(self, world: World, config: RaftConfig, settings: NodeSettings) -> None:
        self.world = world
        self.config = config
        self.name = config.node
        self.settings = settings
        self.files = SimFileSystem()
        self.rng = random.Random(f"{world.seed}/{config.node}")
        self.alive = False
        self.paused = False
        self.life = 0
        self.slow_fsync = False
        self.core: RaftCore
        self.storage: Storage
        self.applier: Applier
        self.lists: ListMachine
        self.inbox: deque[Message] = deque()
        self.persisting: Ready | None = None
        self.snapshot_under_way: SnapshotMeta | None = None
        self.saved_snapshot: Snapshot | None = None
        self.proposals: ProposalTracker[Request] = ProposalTracker()
        self.led_term = 0
        self.waiting_requests: list[Request] = []

    # Life and death

    def boot(self) -> None:
        """Recover from the disk, as the daemon would, and compare with what it must hold."""
        self.files.failing = None
        self.storage, restart = open_storage(
            self.files, self.config, may_create=True, segment_bytes=self.settings.segment_bytes
        )
        self.core = RaftCore(
            self.config,
            rng=self.rng,
            hard_state=restart.hard_state,
            snapshot=restart.snapshot.meta if restart.snapshot else SnapshotMeta(index=0, term=0),
            entries=restart.entries,
        )
        self.lists = ListMachine()
        machine = SessionedStateMachine(
            self.lists,
            idle_ms_max=self.settings.session_idle_ms,
            max_sessions=self.settings.sessions_max,
        )
        self.applier = Applier(machine=machine, hash_interval=self.config.state_hash_interval)
        if restart.snapshot is not None:
            self.applier.restore(restart.snapshot)
            self.world.checker.state_hash(self.name, self.applier.index, machine.state_hash())
        self.saved_snapshot = restart.snapshot
        checker = self.world.checker
        shadow = checker.shadows[self.name]
        possible = [shadow]
        if self.persisting is not None:
            unfinished = shadow.copy()
            unfinished.persist(self.persisting)
            possible.append(unfinished)
        if self.snapshot_under_way is not None:
            shadow = shadow.copy()
            shadow.snapshot_taken(self.snapshot_under_way)
            possible.append(shadow)
        checker.recovered(self.name, core=self.core, possible=possible)
        self.persisting = None
        self.snapshot_under_way = None
        self.alive = True
        self.paused = False

    def crash(self, why: str) -> None:
        if not self.alive:
            return
        self.world.note("crash", self.name, why)
        self.world.counts["disk_failed"] += "errno" in why
        self.alive = False
        self.life += 1
        self.inbox.clear()
        self.waiting_requests.clear()
        self.proposals = ProposalTracker()
        self.files.crash(self.rng)

    def _dies_at(self, point: str) -> bool:
        if self.world.strikes(self, point):
            self.crash(point)
            return True
        return False

    # Inputs

    def tick(self) -> None:
        self.core.tick()
        self._observe_and_run()

    def receive(self, message: Message) -> None:
        if not self.alive or len(self.inbox) >= INBOX_MESSAGES_MAX:
            return
        self.inbox.append(message)
        self.run()

    def report_snapshot(self, target: NodeId, *, delivered: bool) -> None:
        self.core.report_snapshot(target, delivered=delivered)
        self._observe_and_run()

    def request(self, request: Request) -> Refusal | None:
        """A client's command or read. None: an answer will come, unless the replica dies."""
        if request.body is None:
            context = ReadContext(request=request, chosen_index=self.world.checker.chosen_index)
            refusal = self.core.read_index(context)
            self._observe_and_run()
            return refusal
        outcome = self.core.propose(request.body)
        if isinstance(outcome, Refusal):
            return outcome
        self.proposals.track(outcome, request)
        self._observe_and_run()
        return None

    def _observe_and_run(self) -> None:
        self.world.checker.observe(self.name, self.core)
        self.run()

    # The driver's loop

    def run(self) -> None:
        """Drain the inbox, then work on one Ready; again while there is something to do."""
        while self.alive and not self.paused:
            if self.persisting is None or self.settings.steps_while_persisting:
                self._drain_inbox()
            if not self.core.has_ready():
                return
            self._begin(self.core.ready())

    def _drain_inbox(self) -> None:
        while self.inbox:
            message = self.inbox.popleft()
            self.core.step(message)
            self.world.has_heard(self, message)
            self.world.checker.observe(self.name, self.core, message)

    def _begin(self, ready: Ready) -> None:
        assert ready.divergence is None, f"diverged: {ready.divergence}"
        self._send(ready.early_messages)
        if not ready.must_sync:
            self._finish(ready)
            return
        self.persisting = ready
        try:
            self._maybe_light_fuse(0.3 if ready.snapshot else 0.01)
            self.storage.write(ready)
        except (PowerCut, StorageFailedError) as cut:
            self.crash(f"during write: {cut}")
            return
        life = self.life
        self.world.after(self.world.fsync_ms(self), self._synced, ready, life)

    def _synced(self, ready: Ready, life: int) -> None:
        if life != self.life:
            return
        if self.paused:
            self.world.after(20, self._synced, ready, life)
            return
        if self._dies_at("before_persist"):
            return
        try:
            self.storage.sync()
        except (PowerCut, StorageFailedError) as cut:
            self.crash(f"during sync: {cut}")
            return
        self.files.fuse = None
        self.persisting = None
        self.world.checker.persisted(self.name, ready)
        if ready.snapshot is not None:
            self.saved_snapshot = ready.snapshot
        if not self._dies_at("after_persist"):
            self._finish(ready)
            self.run()

    def _finish(self, ready: Ready) -> None:
        self._send(ready.messages)
        if self._dies_at("after_send"):
            return
        self._apply(ready)
        if self._dies_at("after_apply"):
            return
        self.core.advance(ready)
        self.world.checker.observe(self.name, self.core)
        self._maybe_save_snapshot()

    def _send(self, messages: object) -> None:
        for message in messages:  # type: ignore[attr-defined]
            if isinstance(message, InstallSnapshot):
                assert self.saved_snapshot is not None
                message = replace(
                    message, meta=self.saved_snapshot.meta, data=self.saved_snapshot.data
                )
            self.world.checker.sent(self.name, self.core, message)
            self.world.send(message)

    def _apply(self, ready: Ready) -> None:
        checker = self.world.checker
        if ready.snapshot is not None:
            self.applier.restore(ready.snapshot)
            checker.state_hash(self.name, self.applier.index, self.applier.machine.state_hash())
        for entry in ready.committed:
            checker.applied(self.name, entry)
        results, hashes = self.applier.apply(ready.committed)
        for index, state_hash in hashes:
            checker.state_hash(self.name, index, state_hash)
            self.core.report_state_hash(index, state_hash)
        for one, result in zip(ready.committed, results, strict=True):
            outcome = self.proposals.on_applied(one, result)
            if outcome is not None:
                self._check_outcome(outcome, one.index, one.term)
                self.world.clients.outcome(self, outcome)
        term = ready.term if ready.role is Role.LEADER else 0
        if self.led_term and term != self.led_term:
            for outcome in self.proposals.on_leadership_lost():
                self.world.clients.outcome(self, outcome)
        self.led_term = term
        for context in ready.reads:
            assert isinstance(context, ReadContext)
            check(
                self.applier.index >= context.chosen_index,
                12,
                f"{self.name} read at {self.applier.index}, chosen was {context.chosen_index}",
            )
            self.world.clients.read(self, context.request, self.lists)
        for context in ready.aborted_reads:
            assert isinstance(context, ReadContext)
            self.world.clients.refused(self, context.request)

    def _check_outcome(self, outcome: Outcome[Request], index: int, term: int) -> None:
        chosen = self.world.checker.chosen[index]
        same = chosen.data == outcome.token.body and chosen.term == term
        check(same is (outcome.kind is OutcomeKind.OK), 17, f"outcome {outcome} at {index}")

    def _maybe_save_snapshot(self) -> None:
        if self.applier.index - self.core.state.log.snapshot.index < self.settings.snapshot_every:
            return
        if self.core.state.log.unsaved_snapshot is not None:
            return  # a newer one is on its way to the disk
        snapshot = self.applier.snapshot()
        self.snapshot_under_way = snapshot.meta
        try:
            self._maybe_light_fuse(0.15)
            self.storage.save_snapshot(snapshot)
        except (PowerCut, StorageFailedError) as cut:
            self.crash(f"during snapshot: {cut}")
            return
        self.files.fuse = None
        self.snapshot_under_way = None
        self.world.checker.shadows[self.name].snapshot_taken(snapshot.meta)
        self.saved_snapshot = snapshot
        self.core.compact(snapshot.meta, keep_entries=self.settings.keep_entries)
        self.world.checker.observe(self.name, self.core)

    def _maybe_light_fuse(self, probability: float) -> None:
        if self.world.chaos and self.rng.random() < probability:
            self.files.fuse = self.rng.randrange(10)
