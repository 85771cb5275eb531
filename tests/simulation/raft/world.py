"""One seed, one universe: virtual time, a bad network, bad disks, crashes; then it heals.

`World(seed).run()` plays a phase of chaos, then lifts all faults and demands liveness: a leader,
every client answered again, all replicas at one state. Everything random comes from the seed, and
nothing from the host's clock or hash order, so a seed is a bug report: it replays bit for bit.
"""

from __future__ import annotations

import hashlib
import heapq
import random
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from pdd.raft.config import RaftConfig
from pdd.raft.messages import InstallSnapshot, Message
from pdd.raft.values import NodeId
from pdd.replication.linearizability import find_violation
from tests.simulation.raft.checker import Checker, Violation, check
from tests.simulation.raft.clients import Clients
from tests.simulation.raft.node import NodeSettings, SimNode

TICK_MS = 20
SKEWED_TICKS_MS = (8, 14, 20, 20, 35, 60)
HEAL_MS_MAX = 20_000
"""Virtual; about 50 election timeouts. A healed cluster needs two or three."""
QUORUM_SILENCE_TICKS = 2
"""A leader may lead at most this many election timeouts without hearing a majority."""


class World:
    def __init__(self, seed: int, *, chaos_ms: int = 8_000) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.now_ms = 0
        self.chaos = True
        self.chaos_ms = chaos_ms
        self.counts: Counter[str] = Counter()
        self._events: list[tuple[int, int, Callable[..., object], tuple[Any, ...]]] = []
        self._event_number = 0
        self._digest = hashlib.blake2b(digest_size=16)
        self.trace: list[str] = []
        rng = self.rng
        voter_count = rng.choice((1, 3, 3, 3, 3, 3, 5, 5))
        voters = tuple(NodeId(f"s{number}") for number in range(voter_count))
        self.checker = Checker(voters)
        settings = NodeSettings(
            snapshot_every=rng.choice((5, 15, 40, 200)),
            keep_entries=rng.choice((0, 3, 12)),
            segment_bytes=rng.choice((2_048, 4_096, 16_384)),
            steps_while_persisting=rng.random() < 0.5,
        )
        bounds = {
            "max_message_bytes": rng.choice((150, 600, 4_000)),
            "max_inflight_messages": rng.choice((1, 3, 16)),
            "max_inflight_bytes": rng.choice((400, 4_000)),
            "max_uncommitted_bytes": rng.choice((500, 5_000)),
            "max_apply_bytes": rng.choice((100, 2_000)),
            "max_pending_reads": rng.choice((1, 4, 64)),
            "snapshot_ticks": rng.choice((20, 60)),
            "state_hash_interval": rng.choice((1, 4, 16)),
        }
        self.nodes: dict[NodeId, SimNode] = {}
        for voter in voters:
            config = RaftConfig(
                node=voter, voters=voters, cluster_id="sim", heartbeat_ticks=2, **bounds
            )
            self.nodes[voter] = SimNode(self, config, settings)
        self.nodes_in_order = list(self.nodes.values())
        self.clients = Clients(self, rng.choice((2, 3, 5)))
        self.drop = rng.choice((0.0, 0.02, 0.1, 0.3))
        self.duplicate = rng.choice((0.0, 0.05, 0.2))
        self.latency_ms_max = rng.choice((5, 20, 80))
        self.strike = rng.choice((0.0, 0.0005, 0.002))
        self.blocked: dict[tuple[NodeId, NodeId], None] = {}
        self.tick_ms = dict.fromkeys(voters, TICK_MS)
        if rng.random() < 0.5:
            self.tick_ms = {voter: rng.choice(SKEWED_TICKS_MS) for voter in voters}
        self.heard: dict[tuple[NodeId, NodeId], int] = {}
        """(leader, peer) -> the leader's tick count when it last heard that peer."""
        self.ticks: Counter[NodeId] = Counter()
        self.led_since: dict[NodeId, tuple[int, int]] = {}

    # Time

    def after(self, delay_ms: int, call: Callable[..., object], *arguments: Any) -> None:
        self._event_number += 1
        heapq.heappush(self._events, (self.now_ms + delay_ms, self._event_number, call, arguments))

    def note(self, kind: str, *facts: object) -> None:
        """One line of the trace; all of them make the digest."""
        line = f"{self.now_ms} {kind} {' '.join(map(str, facts))}"
        self._digest.update(line.encode())
        self.trace.append(line)

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()

    # Running

    def run(self) -> World:
        try:
            self._run()
        except AssertionError as error:
            tail = "\n  ".join(self.trace[-25:])
            raise Violation(
                f"{error}\nseed {self.seed} at {self.now_ms} ms; replay with "
                f"python -m tests.simulation.raft.run {self.seed}; the last events:\n  {tail}"
            ) from error
        return self

    def _run(self) -> None:
        for node in self.nodes_in_order:
            node.boot()
            self.after(self.rng.randrange(TICK_MS), self._tick, node)
        self.clients.start()
        self.after(200, self._disturb)
        self._run_until(self.chaos_ms)
        self._heal()
        self._demand_liveness()
        self.clients.flush_unknown()
        violation = find_violation(self.clients.history)
        check(violation is None, 12, str(violation))

    def _run_until(self, end_ms: int, stop: Callable[[], bool] | None = None) -> None:
        while self._events and self._events[0][0] <= end_ms:
            self.now_ms, _, call, arguments = heapq.heappop(self._events)
            call(*arguments)
            if stop is not None and stop():
                return
        self.now_ms = max(self.now_ms, end_ms)

    def _tick(self, node: SimNode) -> None:
        self.after(self.tick_ms[node.name], self._tick, node)
        if not node.alive or node.paused:
            return
        self.ticks[node.name] += 1
        node.tick()
        if node.alive and node.core.state.is_leader:
            self._check_quorum_heard(node)

    # Network

    def send(self, message: Message) -> None:
        self.counts[type(message).__name__] += 1
        self.note("send", type(message).__name__, message.source, message.target, message.term)
        rng = self.rng
        copies = 1
        if self.chaos:
            if rng.random() < self.drop:
                copies = 0
            elif rng.random() < self.duplicate:
                copies = 2
        is_snapshot = isinstance(message, InstallSnapshot)
        for _ in range(copies):
            delay_ms = rng.randint(1, self.latency_ms_max)
            if self.chaos and rng.random() < 0.01:
                delay_ms *= 20  # a message from the past
            if is_snapshot:
                delay_ms += rng.randrange(100)
            self.after(delay_ms, self._deliver, message)
        if is_snapshot and rng.random() < 0.5:
            source = self.nodes[message.source]
            self.after(100, self._report_snapshot, source, source.life, message, copies > 0)

    def _deliver(self, message: Message) -> None:
        if (message.source, message.target) in self.blocked:
            self.counts["blocked"] += 1
            return
        self.nodes[message.target].receive(message)

    def has_heard(self, node: SimNode, message: Message) -> None:
        self.heard[node.name, message.source] = self.ticks[node.name]

    def _report_snapshot(
        self, source: SimNode, life: int, message: Message, delivered: bool
    ) -> None:
        if source.alive and source.life == life:
            source.report_snapshot(message.target, delivered=delivered)

    def _check_quorum_heard(self, node: SimNode) -> None:
        """Property 13, from outside: ticks since each peer was last heard."""
        term = node.core.term
        since_term, since_tick = self.led_since.get(node.name, (0, 0))
        now = self.ticks[node.name]
        if since_term != term:
            self.led_since[node.name] = (term, now)
            return
        limit = QUORUM_SILENCE_TICKS * node.config.election_ticks
        recent = 1 + sum(
            now - max(self.heard.get((node.name, peer), -1), since_tick) <= limit
            for peer in node.config.peers
        )
        check(recent >= node.config.quorum, 13, f"{node.name} leads, hearing {recent}")

    # Disks and deaths

    def fsync_ms(self, node: SimNode) -> int:
        if node.slow_fsync and self.chaos:
            return self.rng.randint(20, 300)
        return self.rng.randint(1, 4)

    def strikes(self, node: SimNode, point: str) -> bool:
        if not self.chaos or self.rng.random() >= self.strike:
            return False
        self.after(self.rng.randint(50, 1_000), self._restart, node)
        return True

    def _restart(self, node: SimNode) -> None:
        if not node.alive:
            self.note("boot", node.name)
            self.counts["boots"] += 1
            node.boot()

    # Faults

    def _disturb(self) -> None:
        if not self.chaos:
            return
        rng = self.rng
        self.after(rng.randint(50, 400), self._disturb)
        action = rng.choice(_ACTIONS)
        self.note("fault", action.__name__)
        action(self)
        for node in self.nodes_in_order:
            # Whoever died without a date for its return (a fuse) comes back some time.
            if not node.alive and rng.random() < 0.4:
                self._restart(node)

    def _some(self) -> SimNode:
        """Mostly the leader: that is where trouble hurts."""
        leaders = [n for n in self.nodes_in_order if n.alive and n.core.state.is_leader]
        if leaders and self.rng.random() < 0.6:
            return self.rng.choice(leaders)
        return self.rng.choice(self.nodes_in_order)

    def _isolate(self) -> None:
        one = self._some().name
        for other in self.nodes:
            self.blocked[one, other] = self.blocked[other, one] = None

    def _one_way(self) -> None:
        one = self._some().name
        for other in self.nodes:
            if other != one:
                pair = (one, other) if self.rng.random() < 0.5 else (other, one)
                self.blocked[pair] = None

    def _one_link(self) -> None:
        first, second = self.rng.choice(self.nodes_in_order), self._some()
        self.blocked[first.name, second.name] = None

    def _split(self) -> None:
        side = {name: self.rng.random() < 0.5 for name in self.nodes}
        for one in self.nodes:
            for other in self.nodes:
                if side[one] != side[other]:
                    self.blocked[one, other] = None

    def _mend(self) -> None:
        self.blocked.clear()

    def _crash_one(self) -> None:
        node = self._some()
        node.crash("fault")
        self.after(self.rng.randint(10, 1_500), self._restart, node)

    def _crash_all(self) -> None:
        for node in self.nodes_in_order:
            node.crash("all")
            self.after(self.rng.randint(10, 600), self._restart, node)

    def _pause(self) -> None:
        node = self._some()
        node.paused = True
        self.after(self.rng.randint(100, 1_500), self._resume, node)

    def _resume(self, node: SimNode) -> None:
        node.paused = False
        requests, node.waiting_requests = node.waiting_requests, []
        inbox, node.inbox = node.inbox, deque()
        for request in requests:
            # The driver may come to these before it hears what peers have said meanwhile.
            self.clients.arrive(node, request)
        if node.alive:
            node.inbox.extend(inbox)
            node.run()

    def _slow_disk(self) -> None:
        node = self._some()
        node.slow_fsync = not node.slow_fsync

    def _disk_fails(self) -> None:
        """The next write or fsync fails, and the replica must end rather than acknowledge."""
        node = self._some()
        node.files.failing = self.rng.choice(("fsync", "write", "create"))
        self.after(self.rng.randint(300, 1_500), self._disk_replaced, node)

    def _disk_replaced(self, node: SimNode) -> None:
        node.files.failing = None
        self._restart(node)

    def _skew(self) -> None:
        self.tick_ms[self._some().name] = self.rng.choice(SKEWED_TICKS_MS)

    def _transfer(self) -> None:
        for node in self.nodes_in_order:
            if node.alive and node.core.state.is_leader and node.config.peers:
                node.core.transfer(self.rng.choice(node.config.peers))
                node.run()

    # The end

    def _heal(self) -> None:
        self.note("heal")
        self.chaos = False
        self.blocked.clear()
        self.latency_ms_max = 5
        for node in self.nodes_in_order:
            self.tick_ms[node.name] = TICK_MS
            node.slow_fsync = False
            node.files.fuse = None
            node.files.failing = None
            if not node.alive:
                self._restart(node)
            self._resume(node)

    def _demand_liveness(self) -> None:
        answered = [client.answered_count for client in self.clients.clients]
        start_ms = self.now_ms

        def is_live() -> bool:
            return all(
                client.answered_count >= before + 3
                for client, before in zip(self.clients.clients, answered, strict=True)
            )

        self._run_until(start_ms + HEAL_MS_MAX, is_live)
        if not is_live():
            raise Violation(f"liveness: a healed cluster does not answer; {self._states()}")
        self.counts["heal_ms"] = self.now_ms - start_ms
        self._run_until(self.now_ms + HEAL_MS_MAX, self._has_converged)
        if not self._has_converged():
            raise Violation(f"liveness: replicas do not converge; {self._states()}")

    def _has_converged(self) -> bool:
        return (
            all(
                node.alive and node.applier.index == self.checker.chosen_index
                for node in self.nodes_in_order
            )
            and len({node.applier.machine.state_hash() for node in self.nodes_in_order}) == 1
        )

    def _states(self) -> str:
        return "; ".join(
            f"{n.name} alive={n.alive} {n.core.role} term {n.core.term} last "
            f"{n.core.state.log.last_index} commit {n.core.state.log.commit_index}"
            for n in self.nodes_in_order
        )


_ACTIONS = (
    World._isolate,
    World._isolate,
    World._one_way,
    World._one_link,
    World._split,
    World._mend,
    World._mend,
    World._mend,
    World._crash_one,
    World._crash_one,
    World._crash_all,
    World._pause,
    World._pause,
    World._slow_disk,
    World._disk_fails,
    World._skew,
    World._transfer,
)
