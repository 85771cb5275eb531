"""A cluster whose network and disks the test moves by hand, for scripts random search would miss.

    cluster = Cluster(3)
    cluster.elect("s0")                       # campaign, deliver everything
    cluster.propose("s0", b"x")
    late = cluster.take(target="s1")          # held back by the network
    cluster.run()                             # everything else arrives, until nothing moves
    cluster.give(late)

Every event passes the same `Checker` as in the simulator, so a script fails on any broken property,
not only on what it asserts itself. Disks are perfect here: what `settle` persisted is durable.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from pdd.raft.config import RaftConfig
from pdd.raft.core import Proposed, RaftCore
from pdd.raft.messages import (
    InstallSnapshot,
    Message,
    PreVoteRequest,
    PreVoteResponse,
    VoteRequest,
    VoteResponse,
)
from pdd.raft.ready import Ready
from pdd.raft.state import Role
from pdd.raft.values import Entry, EntryKind, HardState, NodeId, Snapshot, SnapshotMeta
from tests.simulation.raft.checker import Checker

STEPS_MAX = 10_000


class Cluster:
    def __init__(self, count: int = 3, *, seed: int = 1, **config: Any) -> None:
        self.voters = tuple(NodeId(f"s{number}") for number in range(count))
        self.seed = seed
        self.config = config
        self.checker = Checker(self.voters)
        self.cores: dict[str, RaftCore] = {}
        self.wire: list[Message] = []
        self.applied: dict[str, list[Entry]] = {voter: [] for voter in self.voters}
        self.snapshots: dict[str, Snapshot] = {}
        self.reads: dict[str, list[object]] = {voter: [] for voter in self.voters}
        self.aborted_reads: dict[str, list[object]] = {voter: [] for voter in self.voters}
        self.cut_links: set[tuple[str, str]] = set()
        self.down: set[str] = set()
        for voter in self.voters:
            self._boot(voter)

    # Disks

    def _boot(self, name: str) -> None:
        node = NodeId(name)
        disk = self.checker.shadows[node]
        self.cores[name] = RaftCore(
            RaftConfig(node=node, voters=self.voters, cluster_id="script", **self.config),
            rng=random.Random(f"{self.seed}/{name}"),
            hard_state=disk.hard_state,
            snapshot=disk.snapshot,
            entries=[disk.entries[i] for i in range(disk.snapshot.index + 1, disk.last_index + 1)],
        )
        del self.applied[name][disk.snapshot.index :]
        self.checker.booted(node, self.cores[name])

    def given(
        self, name: str, *, terms: Sequence[int] = (), term: int = 0, commit_index: int = 0
    ) -> None:
        """Start ``name`` from a disk whose entries 1, 2, ... have these terms."""
        disk = self.checker.shadows[NodeId(name)]
        disk.entries = {
            index: Entry(index=index, term=t, kind=EntryKind.COMMAND, data=f"{index}@{t}".encode())
            for index, t in enumerate(terms, start=1)
        }
        disk.last_index = len(terms)
        disk.hard_state = HardState(term=max([term, *terms]), vote=None, commit_index=commit_index)
        for entry in disk.entries.values():
            before = disk.entries[entry.index - 1].term if entry.index > 1 else 0
            fact = (entry.kind, entry.data, before)
            self.checker.known_entries[entry.index, entry.term] = fact
            if entry.index <= commit_index:
                self.checker.chosen[entry.index] = entry
                self.checker.chosen_in_term[entry.index] = entry.term
                self.checker.chosen_index = max(self.checker.chosen_index, entry.index)
        self._boot(name)

    def set_term(self, name: str, term: int) -> None:
        """As if ``name`` had campaigned in vain up to ``term``."""
        disk = self.checker.shadows[NodeId(name)]
        disk.hard_state = replace(disk.hard_state, term=term, vote=NodeId(name))
        self._boot(name)

    def crash(self, *names: str) -> None:
        self.down.update(names)
        for name in names:
            # What it sent is on the wire; what it had not persisted is gone.
            self.cores.pop(name)

    def restart(self, *names: str) -> None:
        for name in names:
            self.down.discard(name)
            self._boot(name)
            self.settle(name)

    def snapshot(self, name: str, *, keep_entries: int = 0) -> SnapshotMeta:
        """Take one at the applied index and compact the log."""
        log = self.cores[name].state.log
        term = log.term_at(log.applied_index)
        assert term is not None
        meta = SnapshotMeta(index=log.applied_index, term=term)
        self.snapshots[name] = Snapshot(meta=meta, data=b"state")
        self.checker.shadows[NodeId(name)].snapshot_taken(meta)
        self.cores[name].compact(meta, keep_entries=keep_entries)
        self.observe(name)
        return meta

    # Driver

    def observe(self, name: str, message: Message | None = None) -> None:
        self.checker.observe(NodeId(name), self.cores[name], message)

    def begin(self, name: str) -> Ready:
        """The Ready of ``name``; early messages are on the wire, nothing is persisted."""
        ready = self.cores[name].ready()
        self._send(name, ready.early_messages)
        return ready

    def finish(self, name: str, ready: Ready) -> None:
        self.persist(name, ready)
        self._send(name, ready.messages)
        self._apply(name, ready)
        self.cores[name].advance(ready)
        self.observe(name)

    def persist(self, name: str, ready: Ready) -> None:
        self.checker.persisted(NodeId(name), ready)

    def settle(self, *names: str) -> None:
        """Work off every Ready of these replicas (of all, without names)."""
        for name in names or self.voters:
            while name in self.cores and self.cores[name].has_ready():
                self.finish(name, self.begin(name))

    def _send(self, name: str, messages: Sequence[Message]) -> None:
        for message in messages:
            if isinstance(message, InstallSnapshot):
                saved = self.snapshots[name]
                message = replace(message, meta=saved.meta, data=saved.data)
            self.checker.sent(NodeId(name), self.cores[name], message)
            self.wire.append(message)

    def _apply(self, name: str, ready: Ready) -> None:
        if ready.snapshot is not None:
            self.snapshots[name] = ready.snapshot
            source = max(self.applied.values(), key=len)
            self.applied[name] = source[: ready.snapshot.meta.index]
        for entry in ready.committed:
            self.checker.applied(NodeId(name), entry)
            assert entry.index == len(self.applied[name]) + 1, "applied out of order"
            self.applied[name].append(entry)
        self.reads[name] += ready.reads
        self.aborted_reads[name] += ready.aborted_reads

    # Network

    def isolate(self, *names: str) -> None:
        """Cut these off from all others, both ways; not from each other."""
        for name in names:
            for other in self.voters:
                if other not in names:
                    self.cut_links |= {(name, other), (other, name)}

    def cut(self, source: str, target: str) -> None:
        self.cut_links.add((source, target))

    def heal(self) -> None:
        self.cut_links.clear()

    def run(self) -> None:
        """Deliver in order until nothing is under way. What meets a cut link or a dead replica
        is lost."""
        self.settle()
        for _ in range(STEPS_MAX):
            if not self.wire:
                return
            self.give(self.wire.pop(0))
        raise AssertionError("messages never cease")

    def run_without(self, kind: type[Message]) -> None:
        """As `run`, but messages of this kind stay on the wire."""
        held: list[Message] = []
        self.settle()
        for _ in range(STEPS_MAX):
            held += self.take(kind)
            if not self.wire:
                self.wire = held
                return
            self.give(self.wire.pop(0))
        raise AssertionError("messages never cease")

    def give(self, messages: Message | Sequence[Message]) -> None:
        for message in [messages] if isinstance(messages, Message) else messages:
            cut = (message.source, message.target) in self.cut_links
            if not cut and message.target not in self.down:
                self.step(message)
                self.settle(message.target)

    def step(self, message: Message) -> None:
        """Input only; its Ready stays for `begin` or `settle`."""
        self.cores[message.target].step(message)
        self.observe(message.target, message)

    def take(
        self,
        kind: type[Message] = Message,
        *,
        source: str | None = None,
        target: str | None = None,
        where: Callable[[Any], bool] = lambda message: True,
    ) -> list[Any]:
        """Remove messages from the wire: to lose them, or to give them later."""
        taken = [
            m
            for m in self.wire
            if isinstance(m, kind)
            and source in (None, m.source)
            and target in (None, m.target)
            and where(m)
        ]
        self.wire = [m for m in self.wire if not any(m is one for one in taken)]
        return taken

    # Doing things

    def tick(self, *names: str, count: int = 1) -> None:
        for _ in range(count):
            for name in names or [v for v in self.voters if v not in self.down]:
                self.cores[name].tick()
                self.observe(name)
                self.settle(name)

    def time_out(self, name: str) -> None:
        """Let the election timeout of ``name`` pass, for it alone; its messages wait."""
        state = self.cores[name].state
        self.tick(name, count=state.election_timeout_ticks - state.election_elapsed_ticks)

    def forget_leader(self, name: str) -> None:
        """As if nothing had come from the leader for one election timeout."""
        state = self.cores[name].state
        state.election_elapsed_ticks = max(
            state.election_elapsed_ticks, state.config.election_ticks
        )

    def elect(self, name: str) -> None:
        """All others' loyalty has run out; ``name`` campaigns and everything arrives."""
        for other in self.voters:
            if other not in self.down and not self._is_leader(other):
                self.forget_leader(other)
        self.time_out(name)
        self.run()
        assert self._is_leader(name), f"{name} did not win: {self.cores[name].state.role}"

    def deliver_votes(self, name: str) -> None:
        """Only what an election needs; appends stay on the wire."""
        for kind in (PreVoteRequest, PreVoteResponse, VoteRequest, VoteResponse):
            self.give(self.take(kind))
        assert self._is_leader(name), f"{name} did not win: {self.cores[name].state.role}"

    def elect_with(self, name: str, *, voter: str) -> None:
        """``name`` wins by the vote of ``voter``; its appends stay on the wire."""
        self.forget_leader(voter)
        self.time_out(name)
        for kind in (PreVoteRequest, PreVoteResponse, VoteRequest, VoteResponse):
            self.give(self.take(kind, target=voter) + self.take(kind, source=voter))
        assert self._is_leader(name), f"{name} did not win: {self.cores[name].state.role}"

    def elect_after_refusals(self, name: str) -> None:
        """Campaign until it wins: the first attempts may only teach ``name`` the newer term."""
        for _ in range(5):
            for other in self.cores:
                self.forget_leader(other)
            self.time_out(name)
            self.run()
            if self._is_leader(name):
                return
        raise AssertionError(f"{name} did not win: {self.cores[name].state.role}")

    def _is_leader(self, name: str) -> bool:
        return self.cores[name].role is Role.LEADER

    def propose(self, name: str, data: bytes) -> Proposed:
        outcome = self.cores[name].propose(data)
        assert isinstance(outcome, Proposed), outcome
        self.observe(name)
        self.settle(name)
        return outcome

    def read(self, name: str, context: object) -> None:
        refusal = self.cores[name].read_index(context)
        assert refusal is None, refusal
        self.settle(name)

    def entries(self, *, first: int, terms: Sequence[int], mark: bytes) -> list[Entry]:
        return [
            Entry(index=index, term=term, kind=EntryKind.COMMAND, data=mark + b"%d" % index)
            for index, term in enumerate(terms, start=first)
        ]

    # Looking

    def role(self, name: str) -> Role:
        return self.cores[name].role

    def term(self, name: str) -> int:
        return self.cores[name].term

    def commit(self, name: str) -> int:
        return self.cores[name].state.log.commit_index

    def terms(self, name: str) -> list[int]:
        """Terms of the entries held in memory."""
        return [entry.term for entry in self.cores[name].state.log.entries]

    def commands(self, name: str) -> list[bytes]:
        """Commands applied, in order."""
        return [e.data for e in self.applied[name] if e.kind is EntryKind.COMMAND]
