"""The asyncio driver of one replica: the only place where core, disk, network and clients meet.

    peers, clients --> inbox --+
                               v  one turn
    tick, at most one --> drain the inbox --> ready() --> early messages (overlap the own fsync)
                                                      --> persist: one thread, one fdatasync
                                                      --> messages (they promise what is durable)
                                                      --> apply, answer
                                                      --> advance()

Everything that arrives during an fsync waits in the inbox and shares the next one (group commit).
The order within a turn is `pdd.raft.ready`'s; the simulator drives the same core in the same order.
A storage error or a state that differs from the leader's ends `run`, and must end the process:
neither is retried.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Protocol

import structlog

from pdd.core.errors import PddError
from pdd.core.ports import Clock
from pdd.raft.core import RaftCore, Refusal
from pdd.raft.machine import Applier
from pdd.raft.messages import InstallSnapshot, Message
from pdd.raft.proposals import OutcomeKind, ProposalTracker
from pdd.raft.ready import Ready
from pdd.raft.sessions import encode_command
from pdd.raft.state import Role
from pdd.raft.values import Entry, NodeId, Snapshot, size_bytes_of
from pdd.replication.disk_thread import DiskThread
from pdd.replication.inbox import Inbox
from pdd.replication.storage import Storage
from pdd.replication.submissions import (
    INBOX_FULL,
    SUPERSEDED,
    Answer,
    Asker,
    CommandSubmission,
    QuerySubmission,
    Submission,
)
from pdd.replication.ticks import Ticks

log = structlog.get_logger(__name__)

TICK_S = 0.05
SNAPSHOT_EVERY_ENTRIES = 50_000
SNAPSHOT_EVERY_BYTES = 64 * 1024 * 1024
KEEP_ENTRIES = 10_000
KEEP_BYTES = 16 * 1024 * 1024
GATHER_S = 0.002
"""About a commit on one rack."""


class DivergenceError(PddError):
    """This replica applied the same log as the leader and holds another state: a bug."""


class Outbound(Protocol):
    """The network. Neither call blocks or raises; either may lose what it is given."""

    def send(self, message: Message) -> None: ...

    def send_snapshot(self, message: InstallSnapshot) -> None:
        """Ends in `Driver.report_snapshot`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverSettings:
    tick_s: float = TICK_S
    snapshot_every_entries: int = SNAPSHOT_EVERY_ENTRIES
    """Applied since the last snapshot; then the next is taken."""
    snapshot_every_bytes: int = SNAPSHOT_EVERY_BYTES
    """The same in bytes of log, which is in memory and on disk: soft entries are large, and a
    snapshot without them small."""
    keep_entries: int = KEEP_ENTRIES
    """Kept behind a snapshot, for followers that lag a little, ..."""
    keep_bytes: int = KEEP_BYTES
    """... if they are not more than this."""
    gather_s: float = GATHER_S
    """While a leader's entries are on their way to a majority, what comes next waits for them, at
    most so long, and travels together: a batch costs as much as some fifty entries in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverStatus:
    node: NodeId
    role: Role
    term: int
    leader: NodeId | None
    commit_index: int
    applied_index: int
    last_index: int
    snapshot_index: int
    state_hash: bytes
    longest_pause_s: float
    dropped_message_count: int


class Driver:
    def __init__(
        self,
        *,
        core: RaftCore,
        storage: Storage,
        applier: Applier,
        outbound: Outbound,
        query: Callable[[bytes], bytes],
        addresses: Mapping[NodeId, str],
        clock: Clock,
        wall_clock_ms: Callable[[], int],
        settings: DriverSettings,
        saved_snapshot: Snapshot | None,
        on_role: Callable[[Role, int], None] = lambda role, term: None,
        on_leader: Callable[[NodeId | None, int], None] = lambda leader, term: None,
    ) -> None:
        """
        Args:
            applier: holds the state as of ``saved_snapshot`` (empty without one).
            query: answers a client's read from the applied state. Must be quick and must not
                raise: it runs in the loop.
            addresses: of every voter, where clients reach it; for hints.
            clock: monotonic seconds, for ticks only.
            wall_clock_ms: stamps commands, so that sessions expire by log-carried time.
            on_role: told of every change of role or term, before anything is sent in it.
            on_leader: told of every change of who is known to lead.
        """
        self._core = core
        self._storage = storage
        self._applier = applier
        self._outbound = outbound
        self._query = query
        self._addresses = addresses
        self._clock = clock
        self._wall_clock_ms = wall_clock_ms
        self._settings = settings
        self._saved_snapshot = saved_snapshot
        self._on_role = on_role
        self._on_leader = on_leader
        self._shown_leader: tuple[NodeId | None, int] = (None, 0)
        self._inbox = Inbox()
        self._wake = asyncio.Event()
        self._disk = DiskThread("raft-disk")
        self._snapshot_disk = ThreadPoolExecutor(max_workers=1, thread_name_prefix="raft-snap")
        self._proposals: ProposalTracker[Asker] = ProposalTracker()
        self._led_term = 0
        self._shown: tuple[Role, int] | None = None
        self._fresh_bytes = 0
        """Of entries applied since the last snapshot began."""
        self._snapshot_task: asyncio.Task[None] | None = None
        self._written_snapshot: Snapshot | None = None
        """Its file is durable; the log does not say so yet."""
        self._snapshot_waiters: list[tuple[int, asyncio.Future[int]]] = []
        """(least index wanted, waiter). Bounded by the callers of `take_snapshot`."""
        self._is_tick_due = False
        self._gathering: asyncio.TimerHandle | None = None
        self._has_gathered = False
        self._stopping = False
        self._longest_pause_s = 0.0
        self._ticks = Ticks(tick_s=settings.tick_s, now_s=clock())

    # Inputs, all from the loop's thread

    def receive(self, message: Message, *, size_bytes: int) -> None:
        self._inbox.put_message(message, size_bytes=size_bytes)
        self._wake.set()

    def submit(self, submission: Submission) -> None:
        """The asker is answered once, unless the process ends first."""
        if not self._inbox.put_submission(submission):
            self._refuse(submission.asker, INBOX_FULL)
        self._wake.set()

    def stale_query(self, query: bytes) -> bytes:
        """From whatever is applied here; may be old."""
        return self._query(query)

    def report_snapshot(self, target: NodeId, delivered: bool) -> None:
        self._core.report_snapshot(target, delivered=delivered)
        self._wake.set()

    def transfer_leadership(self, target: NodeId) -> Refusal | None:
        refusal = self._core.transfer(target)
        self._wake.set()
        return refusal

    def hand_over(self) -> NodeId | None:
        """Begin to pass leadership on, to whoever has most of the log; None: it does not lead, or
        nobody else has any of it."""
        leadership = self._core.state.leadership
        if leadership is None:
            return None
        own = self._core.state.config.node
        others = {
            peer: progress.match_index
            for peer, progress in leadership.progress.items()
            if peer != own and progress.match_index > 0
        }
        if not others:
            return None
        target = max(others, key=lambda peer: others[peer])
        return target if self.transfer_leadership(target) is None else None

    async def take_snapshot(self) -> int:
        """Index of a durable snapshot of everything that is applied now, or of more."""
        raft_log = self._core.state.log
        if raft_log.unsaved_snapshot is None and raft_log.snapshot.index >= self._applier.index:
            return raft_log.snapshot.index
        waiter: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._snapshot_waiters.append((self._applier.index, waiter))
        self._wake.set()
        return await waiter

    def stop(self) -> None:
        """Let `run` return after the present turn. Safe at any time, like a crash."""
        self._stopping = True
        self._wake.set()

    # Looking

    @property
    def leader_address(self) -> str:
        leader = self._core.leader
        return self._addresses.get(leader, "") if leader is not None else ""

    def status(self) -> DriverStatus:
        state = self._core.state
        return DriverStatus(
            node=state.config.node,
            role=state.role,
            term=state.term,
            leader=state.leader,
            commit_index=state.log.commit_index,
            applied_index=self._applier.index,
            last_index=state.log.last_index,
            snapshot_index=state.log.snapshot.index,
            state_hash=self._applier.machine.state_hash(),
            longest_pause_s=self._longest_pause_s,
            dropped_message_count=self._inbox.dropped_count,
        )

    # The loop

    async def run(self) -> None:
        """Until `stop`. Raises: StorageError, DivergenceError; the process must end then."""
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._settings.tick_s, self._on_timer)
        try:
            while not self._stopping:
                await self._wake.wait()
                self._wake.clear()
                await self._turn()
        finally:
            self._timer.cancel()
            self._end_gathering()
            if self._snapshot_task is not None:
                self._snapshot_task.cancel()
            # Waits for a write under way, so that nobody closes the file below it.
            await asyncio.shield(asyncio.to_thread(self._close))

    def _close(self) -> None:
        self._snapshot_disk.shutdown(wait=True)
        self._disk.close()
        self._storage.close()

    @property
    def longest_pause_s(self) -> float:
        """By how much this loop was late at most: what could look like a dead leader."""
        return self._longest_pause_s

    def _on_timer(self) -> None:
        now_s = self._clock()
        self._longest_pause_s = max(self._longest_pause_s, now_s - self._ticks.next_s)
        if self._ticks.take_due(now_s):
            self._is_tick_due = True  # several during one slow fsync count as one
            self._wake.set()
        delay_s = max(self._ticks.next_s - now_s, 0.0)
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._on_timer)

    async def _turn(self) -> None:
        self._take_inputs()
        while self._core.has_ready() and not self._stopping:
            await self._obey(self._core.ready())
            await self._finish_snapshot()
            self._maybe_take_snapshot()
            self._take_inputs()
        await self._finish_snapshot()
        self._maybe_take_snapshot()

    def _take_inputs(self) -> None:
        """Messages before the tick: after a pause, a leader's heartbeat is read before the
        election clock moves. Then clients', which the messages may have made pointless."""
        for message in self._inbox.take_messages():
            self._core.step(message)
        if self._is_tick_due:
            self._is_tick_due = False
            self._core.tick()
        if not self._inbox.submission_count or self._gathers():
            return
        submissions = self._inbox.take_submissions()
        stamp_ms = self._wall_clock_ms()
        for submission in submissions:
            if isinstance(submission, CommandSubmission):
                self._propose(submission, stamp_ms)
            else:
                self._read(submission)

    def _gathers(self) -> bool:
        """Whether what clients have submitted waits; see `DriverSettings.gather_s`."""
        raft_log = self._core.state.log
        is_under_way = self._core.state.is_leader and raft_log.commit_index < raft_log.last_index
        if is_under_way and not self._has_gathered:
            if self._gathering is None:
                loop = asyncio.get_running_loop()
                self._gathering = loop.call_later(self._settings.gather_s, self._on_gathered)
            return True
        self._end_gathering()
        return False

    def _on_gathered(self) -> None:
        self._has_gathered = True
        self._wake.set()

    def _end_gathering(self) -> None:
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
        self._has_gathered = False

    def _propose(self, submission: CommandSubmission, stamp_ms: int) -> None:
        data = encode_command(
            client_id=submission.session_id,
            sequence=submission.sequence,
            stamp_ms=stamp_ms,
            body=submission.body,
        )
        proposed = self._core.propose(data)
        if isinstance(proposed, Refusal):
            self._refuse(submission.asker, proposed)
        else:
            self._proposals.track(proposed, submission.asker)

    def _read(self, submission: QuerySubmission) -> None:
        refusal = self._core.read_index(submission)
        if refusal is not None:
            self._refuse(submission.asker, refusal)

    def _refuse(self, asker: Asker, reason: str) -> None:
        asker.answer(
            Answer(
                kind=OutcomeKind.REJECTED,
                reason=str(reason),
                leader_address=self.leader_address,
            )
        )

    async def _obey(self, ready: Ready) -> None:
        if ready.divergence is not None:
            raise DivergenceError(
                f"state differs from the leader's at index {ready.divergence.index} "
                f"({ready.divergence.own_hash.hex()}, leader "
                f"{ready.divergence.leader_hash.hex()}): replace this replica offline, and report "
                "it: two replicas must never differ"
            )
        self._show_role(ready)
        self._send(ready.early_messages)
        if ready.must_sync:
            await self._persist(ready)
            if ready.snapshot is not None:
                self._saved_snapshot = ready.snapshot
            self._send(ready.messages)
            await asyncio.sleep(0)  # lets the acks leave before the time goes into applying
            self._apply(ready)
        else:
            # Nothing to wait for, so either may be first: clients wait for answers, while these
            # messages mostly pass on a commit index.
            self._apply(ready)
            self._send(ready.messages)
            await asyncio.sleep(0)  # a long catch-up must not starve heartbeats and pings
        self._core.advance(ready)

    async def _persist(self, ready: Ready) -> None:
        """The sync always in the disk's thread. The write too when it may block; else here: two
        threads that take turns at Python's lock cost more than the copy (7,300 instead of 5,400
        entries/s at window 64 on two busy cores)."""
        if self._storage.is_quick(ready):
            self._storage.write(ready)
            await self._disk.do(self._storage.sync)
        else:
            await self._disk.do(lambda: self._write_and_sync(ready))

    def _write_and_sync(self, ready: Ready) -> None:
        self._storage.write(ready)
        self._storage.sync()

    def _send(self, messages: Sequence[Message]) -> None:
        for message in messages:
            if isinstance(message, InstallSnapshot):
                saved = self._saved_snapshot
                assert saved is not None, "compacted without a saved snapshot"
                self._outbound.send_snapshot(replace(message, meta=saved.meta, data=saved.data))
            else:
                self._outbound.send(message)

    def _apply(self, ready: Ready) -> None:
        if ready.snapshot is not None:
            self._applier.restore(ready.snapshot)
            log.info("raft_snapshot_installed", index=ready.snapshot.meta.index)
        results, hashes = self._applier.apply(ready.committed)
        self._fresh_bytes += size_bytes_of(ready.committed)
        for index, state_hash in hashes:
            self._core.report_state_hash(index, state_hash)
        if len(self._proposals):
            for entry, result in zip(ready.committed, results, strict=True):
                outcome = self._proposals.on_applied(entry, result)
                if outcome is not None:
                    self._answer(*outcome)
        self._end_leadership(ready)
        for context in ready.reads:
            assert isinstance(context, QuerySubmission)
            result = self._query(context.query)
            context.asker.answer(Answer(kind=OutcomeKind.OK, result=result))
        for context in ready.aborted_reads:
            assert isinstance(context, QuerySubmission)
            self._refuse(context.asker, Refusal.NOT_LEADER)

    def _answer(self, asker: Asker, kind: OutcomeKind, result: bytes) -> None:
        if kind is OutcomeKind.OK:
            asker.answer(Answer(kind, result))
            return
        reason = SUPERSEDED if kind is OutcomeKind.REJECTED else ""
        asker.answer(Answer(kind=kind, reason=reason, leader_address=self.leader_address))

    def _end_leadership(self, ready: Ready) -> None:
        """What was proposed in a leadership that is over has an unknown outcome."""
        term = ready.term if ready.role is Role.LEADER else 0
        if self._led_term and term != self._led_term:
            for outcome in self._proposals.on_leadership_lost():
                self._answer(outcome.token, outcome.kind, b"")
        self._led_term = term

    def _show_role(self, ready: Ready) -> None:
        if (ready.leader, ready.term) != self._shown_leader:
            self._shown_leader = (ready.leader, ready.term)
            self._on_leader(ready.leader, ready.term)
        if (ready.role, ready.term) == self._shown:
            return
        self._shown = (ready.role, ready.term)
        self._on_role(ready.role, ready.term)
        log.info("raft_role_changed", role=str(ready.role), term=ready.term, leader=ready.leader)

    # Snapshots of the own state

    def _maybe_take_snapshot(self) -> None:
        if self._snapshot_task is not None:
            return
        raft_log = self._core.state.log
        if raft_log.unsaved_snapshot is not None:
            return  # one from the leader is on its way to the disk
        self._answer_snapshot_waiters(raft_log.snapshot.index)  # one from the leader may do
        fresh_entries = self._applier.index - raft_log.snapshot.index
        is_wanted = bool(self._snapshot_waiters) and fresh_entries > 0
        is_long = (
            fresh_entries >= self._settings.snapshot_every_entries
            or self._fresh_bytes >= self._settings.snapshot_every_bytes
        )
        if not is_wanted and not (is_long and fresh_entries > 0):
            return
        # Built in this turn: an immutable view of exactly what is applied.
        snapshot = self._applier.snapshot()
        self._fresh_bytes = 0
        loop = asyncio.get_running_loop()
        self._snapshot_task = loop.create_task(self._write_snapshot(snapshot))

    async def _write_snapshot(self, snapshot: Snapshot) -> None:
        """The large file beside the log's turns; its marker within one (`_finish_snapshot`)."""
        try:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(
                self._snapshot_disk, self._storage.write_snapshot_file, snapshot
            )
            self._written_snapshot = snapshot
        finally:
            self._wake.set()

    async def _finish_snapshot(self) -> None:
        """Raises: StorageFailedError, the writing task's too."""
        task = self._snapshot_task
        if task is None or not task.done():
            return
        self._snapshot_task = None
        task.result()
        snapshot, self._written_snapshot = self._written_snapshot, None
        assert snapshot is not None, "a finished write left no snapshot"
        await self._disk.do(lambda: self._storage.mark_snapshot(snapshot.meta))
        if snapshot.meta.index > self._core.state.log.snapshot.index:
            self._saved_snapshot = snapshot
        keep_entries = fitting_count(
            self._core.state.log.entries_up_to(snapshot.meta.index),
            entries_max=self._settings.keep_entries,
            bytes_max=self._settings.keep_bytes,
        )
        self._core.compact(snapshot.meta, keep_entries=keep_entries)
        index = self._core.state.log.snapshot.index
        log.info("raft_snapshot_taken", index=index, size_bytes=len(snapshot.data))
        self._answer_snapshot_waiters(index)

    def _answer_snapshot_waiters(self, index: int) -> None:
        still_waiting = []
        for wanted_index, waiter in self._snapshot_waiters:
            if wanted_index > index:
                still_waiting.append((wanted_index, waiter))
            elif not waiter.done():
                waiter.set_result(index)
        self._snapshot_waiters = still_waiting


def fitting_count(entries: Sequence[Entry], *, entries_max: int, bytes_max: int) -> int:
    """How many of the last entries are within both bounds."""
    size_bytes = 0
    for count, entry in enumerate(reversed(entries[-entries_max:] if entries_max else ())):
        size_bytes += entry.size_bytes
        if size_bytes > bytes_max:
            return count
    return min(entries_max, len(entries))
