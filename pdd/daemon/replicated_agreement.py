"""The agreement of a scheduler with itself or with the other schedulers, through its replica.

    driver, operator ── say() ──► Pacing ──► sessions ──► GroupClient ──► who leads
          ▲                                                                   │ commit, fsync
          └── follow(): CellMachine ◄── Watch ◄── this scheduler's replica ◄──┘

``say`` returns when its operation is committed and has come back by Watch, so that whoever hears
"done" finds it in ``state``. Nothing of a request waits for any of this.

The replica is a process of its own, and this one outlives it. If it ends (killed, or it cannot
write to its disk any more) it is started again, soon at first and then every ten seconds; what was
on its way has an unknown outcome, what waits goes on waiting. Meanwhile ``state`` stays as it was
last seen, requests are served by it, and ``fault`` says what is wrong. Only a replica that will not
run from the very start ends the daemon: nobody should be served before cordons are known.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import grpc.aio
import structlog

from pdd.cell.codec import CODEC, EntryError, checked_size_bytes, decode_result
from pdd.cell.machine import CellMachine
from pdd.cell.operations import Operation, Status
from pdd.cell.pacing import HardBatch, Pacing, SoftBatch
from pdd.cell.sequences import SequenceTable, SoftOperation, encode_rows, size_bytes
from pdd.cell.state import CellState
from pdd.core.errors import NodeUnavailable
from pdd.core.ports import Clock
from pdd.daemon.agreement import AgreementUnavailable, Follower, NotSayable
from pdd.daemon.replica_child import (
    BEAT,
    HAND_OVER,
    QUICK_RESTARTS_MAX,
    ReplicaChild,
    ReplicaDied,
    ReplicaRefused,
    RestartPauses,
    start_replica,
)
from pdd.replication.client import (
    CommandRefusedError,
    GroupClient,
    OutcomeUnknownError,
    Session,
    SessionLostError,
)
from pdd.replication.grpc_options import CHANNEL_OPTIONS, RECONNECT_MAX_S
from pdd.rpc.v1 import raft_pb2 as pb
from pdd.rpc.v1.raft_pb2_grpc import ReplicaStub
from pdd.tls.security import Security

log = structlog.get_logger(__name__)

SAY_TIMEOUT_S = 4.5
"""Longer than an election; shorter than a command (``cluster_admin``) and a node wait. A hard entry
is waited for as long: by then whoever asked for what is in it has been told "not agreed on", and
the next entry goes, in another session. The own replica may be stopped or far behind; that must not
keep this scheduler from saying things to the others."""
ENTRY_TIMEOUT_S = 4.0
READY_TIMEOUT_S = 10.0
BEAT_INTERVAL_S = 0.25

Waiter = asyncio.Future[Status]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaPlan:
    """How to start the own replica, and how to reach the group."""

    settings: Mapping[str, Any]
    """Of `pdd.daemon.replica_process`."""
    environment: Mapping[str, str]
    security: Security

    @property
    def node(self) -> str:
        """The own replica's name."""
        return str(self.settings["node"])

    @property
    def addresses(self) -> dict[str, str]:
        """Of all replicas by name, the own one as it was asked to listen."""
        return dict(self.settings["addresses"])


class ReplicatedAgreement:
    """Implements ``Agreement``."""

    def __init__(
        self, plan: ReplicaPlan, *, clock: Clock, sequences: SequenceTable | None = None
    ) -> None:
        """``sequences``: fed with what schedulers say of their requests; None: nobody looks."""
        self._plan = plan
        self._sequences = sequences
        self._on_heard: Callable[[], None] = _ignore
        self._on_soft_lost: Callable[[], None] = _ignore
        self._clock = clock
        self._machine = CellMachine()
        self._followers: list[Follower] = []
        self._pacing: Pacing[Waiter] = Pacing()
        self._wake = asyncio.Event()
        self._seen = asyncio.Condition()
        self._ready = asyncio.Event()
        self.replica_pid = 0
        self.replica_address = ""
        self.leader: str | None = None
        """The scheduler whose replica leads, as far as the own replica knows."""
        self._leader_followers: list[Callable[[str | None], None]] = []
        self._child: ReplicaChild | None = None
        self.longest_pause_s = 0.0
        """Of the own replica's loop, in all its lives."""
        self.fault = ""
        """Why there is no replica at the moment; empty while there is one."""

    # --- for the driver ----------------------------------------------------------------------

    @property
    def state(self) -> CellState:
        """See ``Agreement``."""
        return self._machine.state

    @property
    def addresses(self) -> dict[str, str]:
        """Of all replicas by name, the own one where it listens now."""
        addresses = self._plan.addresses
        if self.replica_address:
            addresses[self._plan.node] = self.replica_address
        return addresses

    @property
    def security(self) -> Security:
        """To reach them."""
        return self._plan.security

    @property
    def dropped_soft_count(self) -> int:
        """Soft operations that found no room."""
        return self._pacing.dropped_count

    def follow(self, follower: Follower) -> None:
        """See ``Agreement``."""
        self._followers.append(follower)
        follower(self._machine.state)

    def follow_leader(self, follower: Callable[[str | None], None]) -> None:
        """Call it now, and whenever another one leads. None: the own replica knows of nobody."""
        self._leader_followers.append(follower)
        follower(self.leader)

    def hand_over(self) -> None:
        """This scheduler is about to stop: let another one lead. A hint, not awaited."""
        if self._child is not None:
            self._child.say(HAND_OVER)

    async def say(self, operation: Operation) -> Status:
        """See ``Agreement``."""
        waiter: Waiter = asyncio.get_running_loop().create_future()
        try:
            size = checked_size_bytes(operation)
        except EntryError as error:
            raise NotSayable(f"this cannot be agreed on: {error}") from error
        if not self._pacing.put_hard(operation, waiter, size_bytes=size):
            raise AgreementUnavailable("too many changes wait to be agreed on; try again later")
        self._wake.set()
        try:
            async with asyncio.timeout(SAY_TIMEOUT_S):
                return await waiter
        except TimeoutError as error:
            raise AgreementUnavailable(
                f"not agreed on within {SAY_TIMEOUT_S:g} s; it may be yet. 'pdd raft status' tells "
                "who leads; saying it again does no harm"
            ) from error

    def say_soft(self, operation: SoftOperation) -> None:
        """Some time soon, or never: see ``follow_soft``."""
        size = size_bytes(operation)
        if not self._pacing.put_soft(operation, size_bytes=size, now_s=self._clock()):
            self._on_soft_lost()
        self._wake.set()

    def follow_soft(self, *, heard: Callable[[], None], lost: Callable[[], None]) -> None:
        """``heard``: something was said and is in ``sequences``. ``lost``: what was said here may
        not have come to anybody: there was no room for it, or its outcome is not known."""
        self._on_heard, self._on_soft_lost = heard, lost

    async def ready(self) -> None:
        """Until ``state`` is what was last agreed on, or until that has taken too long: without a
        majority it stays as this replica knew it."""
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                await self._ready.wait()
        except TimeoutError:
            log.warning(
                "agreement_is_stale",
                waited_s=READY_TIMEOUT_S,
                advice="no majority of schedulers answers; what this one knew is used",
            )

    # --- the replica and its lives -----------------------------------------------------------

    async def run(self) -> None:
        """For ever. Raises, if it has never listened: ReplicaRefused, ReplicaDied."""
        pauses = RestartPauses()
        failed_starts = 0
        try:
            while True:
                try:
                    reason = await self._live()
                    failed_starts = -1  # it has listened
                except (ReplicaRefused, ReplicaDied) as error:
                    reason = str(error)
                    if failed_starts >= 0:
                        failed_starts += 1
                        if isinstance(error, ReplicaRefused) or failed_starts > QUICK_RESTARTS_MAX:
                            raise
                pause_s = pauses.next_s(now_s=self._clock())
                self.fault = reason
                log.error("replica_ended", reason=reason, again_in_s=pause_s)
                await asyncio.sleep(pause_s)
        finally:
            self._fail(self._pacing.take_waiting(), "this scheduler is stopping")

    async def _live(self) -> str:
        """One life of the replica; why it ended. Raises, if it did not get so far as to listen:
        ReplicaRefused, ReplicaDied."""
        child = await start_replica(self._plan.settings, environment=self._plan.environment)
        try:
            address = await child.address()
            self.replica_pid, self.replica_address, self._child = child.pid, address, child
            self.fault = ""
            addresses = list(self.addresses.values())
            async with GroupClient(addresses, security=self._plan.security) as client:
                ended = asyncio.create_task(child.ended(self._on_leader, self._on_pause))
                work = {
                    asyncio.create_task(self._beat(child)),
                    asyncio.create_task(self._watch(address)),
                    asyncio.create_task(self._propose(client)),
                    asyncio.create_task(self._catch_up(client)),
                }
                try:
                    await asyncio.wait({ended, *work}, return_when=asyncio.FIRST_COMPLETED)
                    for one in work:
                        if one.done():
                            one.result()  # a bug: they end only by raising
                    return ended.result()
                finally:
                    for task in (ended, *work):
                        task.cancel()
                    await asyncio.wait({ended, *work})
        finally:
            self.replica_pid, self.replica_address, self._child = 0, "", None
            self._on_leader(None)
            await child.stop()

    async def _beat(self, child: ReplicaChild) -> None:
        """While this loop turns, its replica may lead."""
        while True:
            child.say(BEAT)
            await asyncio.sleep(BEAT_INTERVAL_S)

    def _on_pause(self, pause_s: float) -> None:
        self.longest_pause_s = max(self.longest_pause_s, pause_s)

    def _on_leader(self, leader: str | None) -> None:
        self.leader = leader
        for follower in self._leader_followers:
            follower(leader)

    # --- from the replica --------------------------------------------------------------------

    async def _watch(self, address: str) -> None:
        """Follow the own replica. A stream that breaks is opened anew, and begins with the state
        as it is then."""
        while True:
            async with self._plan.security.channel(address, options=CHANNEL_OPTIONS) as channel:
                seen = CellMachine(soft=self._sequences)
                try:
                    async for response in ReplicaStub(channel).Watch(pb.WatchRequest()):
                        await self._see(seen, response)
                except grpc.aio.AioRpcError as error:
                    log.info(
                        "replica_watch_broke", reason=f"{error.code().name}: {error.details()}"
                    )
            await asyncio.sleep(RECONNECT_MAX_S)

    async def _see(self, seen: CellMachine, response: pb.WatchResponse) -> None:
        """``seen``: what this stream has told. A replica that has just started tells old news
        until it has caught up: cordons are not taken back for that moment."""
        before = seen.index
        if response.HasField("snapshot"):
            seen.restore(response.snapshot)
            before = -1
        for entry in response.entries:
            seen.apply(entry.index, entry.body)
        self._on_heard()
        if seen.index == before or seen.index < self._machine.index:
            return
        self._machine = seen
        for follower in self._followers:
            follower(seen.state)
        async with self._seen:
            self._seen.notify_all()

    async def _until_seen(self, index: int) -> None:
        async with self._seen:
            await self._seen.wait_for(lambda: self._machine.index >= index)

    async def _catch_up(self, client: GroupClient) -> None:
        """Once in each life: what is agreed on now must be seen before ``ready``."""
        while True:
            try:
                read = await client.read(b"", timeout_s=ENTRY_TIMEOUT_S)
                newest = CellMachine()
                newest.restore(read)
                async with asyncio.timeout(ENTRY_TIMEOUT_S):
                    await self._until_seen(newest.index)
            except (NodeUnavailable, TimeoutError):
                continue  # nobody waits longer than ``ready`` does
            self._ready.set()
            await asyncio.Event().wait()

    # --- to the group ------------------------------------------------------------------------

    async def _propose(self, client: GroupClient) -> None:
        hard, soft = _Lane(client), _Lane(client)
        tasks: set[asyncio.Task[None]] = set()
        try:
            while True:
                self._wake.clear()
                if (batch := self._pacing.next_hard()) is not None:
                    _start(tasks, self._send_hard(hard, batch))
                if (soft_batch := self._pacing.next_soft(now_s=self._clock())) is not None:
                    _start(tasks, self._send_soft(soft, soft_batch))
                due_s = self._pacing.soft_due_s()
                wait_s = None if due_s is None else max(due_s - self._clock(), 0.0)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._wake.wait()
                for task in [task for task in tasks if task.done()]:
                    tasks.discard(task)
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)

    async def _send_hard(self, lane: "_Lane", batch: HardBatch[Waiter]) -> None:
        committed_index = 0
        try:
            # Whoever was told "not agreed on" before it was sent must not see it happen hours
            # later, when the replica is back.
            wanted = [
                (operation, waiter)
                for operation, waiter in zip(batch.operations, batch.tokens, strict=True)
                if not waiter.done()
            ]
            if not wanted:
                return
            entry = CODEC.encode([operation for operation, _ in wanted])
            async with asyncio.timeout(SAY_TIMEOUT_S):
                applied = decode_result(await lane.execute(entry))
                committed_index = applied.index
                await self._until_seen(applied.index)
            for (_, waiter), status in zip(wanted, applied.statuses, strict=True):
                if not waiter.done():
                    waiter.set_result(status)
        except TimeoutError:
            log.warning(
                "hard_entry_given_up", count=len(batch.operations), committed_index=committed_index
            )
            what = (
                f"committed at {committed_index}, not seen here" if committed_index else "unknown"
            )
            self._fail(batch.tokens, f"{what} for {SAY_TIMEOUT_S:g} s")
        except (
            NodeUnavailable,
            OutcomeUnknownError,
            SessionLostError,
            CommandRefusedError,
            EntryError,
        ) as error:
            self._fail(batch.tokens, str(error))
        except asyncio.CancelledError:
            self._fail(batch.tokens, "the replica ended meanwhile")
            raise
        finally:
            self._pacing.hard_answered()
            self._wake.set()

    async def _send_soft(self, lane: "_Lane", batch: SoftBatch) -> None:
        try:
            await lane.execute(encode_rows(batch.operations))
        except (
            NodeUnavailable,
            OutcomeUnknownError,
            SessionLostError,
            CommandRefusedError,
        ) as error:
            log.info("soft_entry_lost", count=len(batch.operations), reason=str(error))
            self._on_soft_lost()
        finally:
            self._pacing.soft_answered()
            self._wake.set()

    def _fail(self, waiters: tuple[Waiter, ...] | list[Waiter], reason: str) -> None:
        for waiter in waiters:
            if not waiter.done():
                waiter.set_exception(
                    AgreementUnavailable(f"{reason}; saying it again does no harm")
                )


class _Lane:
    """A session, opened when it is needed; another one after an outcome that is not known."""

    def __init__(self, client: GroupClient) -> None:
        self._client = client
        self._session: Session | None = None

    async def execute(self, data: bytes) -> bytes:
        """The entry's result. Said once more if the group had forgotten the session, as it does
        after 15 idle minutes: every operation is idempotent.

        Raises: NodeUnavailable, OutcomeUnknownError, SessionLostError, CommandRefusedError.
        """
        try:
            return await self._execute_once(data)
        except SessionLostError:
            return await self._execute_once(data)

    async def _execute_once(self, data: bytes) -> bytes:
        session, self._session = self._session, None
        if session is None:
            session = await self._client.open_session(timeout_s=ENTRY_TIMEOUT_S)
        result = await session.execute(data, timeout_s=ENTRY_TIMEOUT_S)
        self._session = session
        return result


def _ignore() -> None:
    """Nobody is there to be told."""


def _start(tasks: set[asyncio.Task[None]], work: Any) -> None:
    tasks.add(asyncio.create_task(work))
