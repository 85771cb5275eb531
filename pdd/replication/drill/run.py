"""The rounds of a drill: load, a fault, everything up again; at the end the verdict.

The seed decides what happens and when; the machine's timing stays its own, so a failing drill is
repeated rather than replayed. The group's directory is kept for whoever looks into a failure.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import grpc.aio

from pdd.core.errors import PddError
from pdd.replication.client import GroupClient
from pdd.replication.drill.faults import FAILOVERS, Fault, Round, plan_rounds
from pdd.replication.drill.soft_load import SoftFigures, SoftLoad
from pdd.replication.drill.verdict import (
    lost_writes,
    misplaced_writes,
    terms_with_two_leaders,
)
from pdd.replication.drill.workload import Record, run_client
from pdd.replication.kv_machine import Value, decode_value, encode_get
from pdd.replication.linearizability import find_violation
from pdd.replication.local_group import POLL_S, LocalGroup
from pdd.replication.percentiles import percentile
from pdd.rpc.v1 import raft_pb2 as pb

CLIENT_COUNT = 6
DRIVER = {"snapshot_every_entries": 1500, "keep_entries": 200}
"""Snapshots every second or two, and logs so short that a follower that was down needs one."""
LEADER_TIMEOUT_S = 20.0
RECOVERY_TIMEOUT_S = 30.0
SNAPSHOT_SEEN_TIMEOUT_S = 2.0
READ_TIMEOUT_S = 10.0


class DrillStuckError(PddError):
    """The group did not come back; that is a failure of its own. The message says where to look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillReport:
    rounds: int
    seed: int
    acknowledged: int
    acknowledged_lost: int
    leaders_per_term_max: int
    state_hashes_equal: bool
    linearizable: bool
    failover_ms_p50: float
    failover_ms_max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillResult:
    report: DrillReport
    faults: Sequence[str]
    """Everything that must not be; empty when the drill passed."""
    snapshots_hit: int
    """Leaders that were killed while their snapshot was half written."""
    failover_ms: Sequence[float] = field(default_factory=tuple)
    soft: SoftFigures


async def run_drill(
    directory: Path, *, rounds: int, seed: int, say: Callable[[str], None]
) -> DrillResult:
    """Raises: DrillStuckError, NodeUnavailable."""
    record = Record(clock_us=lambda: time.monotonic_ns() // 1000)
    stopping = asyncio.Event()
    async with LocalGroup(directory, driver=DRIVER) as group:
        await group.leader(timeout_s=LEADER_TIMEOUT_S)
        addresses = list(group.addresses.values())
        soft = SoftLoad(addresses, seed=seed)
        drill = _Drill(group, record, soft, say)
        async with asyncio.TaskGroup() as tasks:
            for number in range(CLIENT_COUNT):
                tasks.create_task(
                    run_client(number, addresses, record, seed=seed, stopping=stopping)
                )
            tasks.create_task(soft.run(stopping))
            for round_ in plan_rounds(rounds, seed=seed):
                await drill.run(round_)
            stopping.set()
        hashes_equal = await _settled_hashes_equal(group)
        found = await _read_all(group, list(record.own_writes))
        leaders = group.leaders_by_term()
    violation = await asyncio.to_thread(find_violation, record.history)
    lost = lost_writes(record.own_writes, found)
    faults = [
        *lost,
        *misplaced_writes(record.own_writes, found),
        *record.repeated,
        *drill.soft_faults,
        *terms_with_two_leaders(leaders),
        *([] if hashes_equal else ["the replicas' states differ"]),
        *([violation] if violation is not None else []),
    ]
    report = DrillReport(
        rounds=rounds,
        seed=seed,
        acknowledged=record.acknowledged_count,
        acknowledged_lost=len(lost),
        leaders_per_term_max=max((len(names) for names in leaders.values()), default=0),
        state_hashes_equal=hashes_equal,
        linearizable=violation is None,
        failover_ms_p50=round(percentile(drill.failover_ms, 50), 1),
        failover_ms_max=round(max(drill.failover_ms, default=0.0), 1),
    )
    return DrillResult(
        report=report,
        faults=faults,
        snapshots_hit=drill.snapshots_hit,
        failover_ms=tuple(drill.failover_ms),
        soft=SoftFigures(
            committed_count=soft.committed_count,
            committed_bytes=soft.committed_bytes,
            lost_count=soft.lost_count,
            with_ms=drill.calm_ms[True],
            without_ms=drill.calm_ms[False],
        ),
    )


class _Drill:
    def __init__(
        self, group: LocalGroup, record: Record, soft: SoftLoad, say: Callable[[str], None]
    ) -> None:
        self._group = group
        self._record = record
        self._soft = soft
        self._say = say
        self.failover_ms: list[float] = []
        self.calm_ms: dict[bool, list[float]] = {True: [], False: []}
        """By whether there was soft load: what writes took before the faults."""
        self.soft_faults: list[str] = []
        self.snapshots_hit = 0

    async def run(self, round_: Round) -> None:
        group = self._group
        soft_before = self._soft.committed_count
        self._soft.is_on = round_.has_soft_load
        began_us = self._record.clock_us()
        await asyncio.sleep(round_.load_s)
        calm_ms = self._record.took_ms_between(began_us, self._record.clock_us())
        self.calm_ms[round_.has_soft_load] += calm_ms
        leader = await group.leader(timeout_s=LEADER_TIMEOUT_S)
        followers = [name for name in group.names if name != leader]
        follower = followers[round_.pick % len(followers)]
        before = self._record.acknowledged_count
        at_us = await self._strike(round_.fault, leader, follower)
        note = ""
        if round_.fault in FAILOVERS:
            took_ms = await self._wait_for_write(at_us)
            self.failover_ms.append(took_ms)
            note = f", next write acknowledged after {took_ms:.0f} ms"
        await asyncio.sleep(round_.hold_s)
        await self._heal()
        gained = self._record.acknowledged_count - before
        soft_gained = self._soft.committed_count - soft_before
        if round_.has_soft_load:
            note += f", {soft_gained} soft entries"
            if soft_gained == 0:
                self.soft_faults.append(f"round {round_.number + 1}: no soft entry was committed")
        self._say(f"round {round_.number + 1}: {round_.fault}{note}, {gained} writes since")

    async def _strike(self, fault: Fault, leader: str, follower: str) -> int:
        """Do it; the moment (microseconds) at which the leader was gone."""
        group = self._group
        match fault:
            case Fault.KILL_LEADER:
                await group.kill(leader)
            case Fault.STOP_LEADER:
                group.freeze(leader)
            case Fault.KILL_FOLLOWER:
                await group.kill(follower)
            case Fault.STOP_FOLLOWER:
                group.freeze(follower)
            case Fault.KILL_TWO:
                await group.kill(leader)
                await group.kill(follower)
            case Fault.KILL_ALL:
                async with asyncio.TaskGroup() as tasks:
                    for name in group.names:
                        tasks.create_task(group.kill(name))
            case Fault.KILL_LEADER_DURING_SNAPSHOT:
                await self._kill_during_snapshot(leader)
            case Fault.KILL_LEADER_WITH_LAGGING_FOLLOWER:
                await self._leave_behind(leader, follower)
                group.start(follower)
                await group.kill(leader)
        return self._record.clock_us()

    async def _kill_during_snapshot(self, leader: str) -> None:
        """As soon as the unfinished file is there."""
        asking = asyncio.create_task(self._ask_for_snapshot(leader))
        directory = self._group.data_dir(leader)
        deadline_s = time.monotonic() + SNAPSHOT_SEEN_TIMEOUT_S
        while time.monotonic() < deadline_s:
            if any(directory.glob("snapshot-*.tmp")):
                self.snapshots_hit += 1
                break
            if asking.done() and not asking.cancelled():
                asking = asyncio.create_task(self._ask_for_snapshot(leader))
            await asyncio.sleep(0)  # the file is there for a millisecond
        await self._group.kill(leader)
        await asking

    async def _ask_for_snapshot(self, name: str) -> None:
        try:
            await self._group.stub(name).TakeSnapshot(pb.TakeSnapshotRequest(), timeout=5.0)
        except grpc.aio.AioRpcError:
            return  # it is being killed

    async def _leave_behind(self, leader: str, follower: str) -> None:
        """Kill the follower and wait until the leader's log no longer reaches back to it."""
        status = await self._group.status(follower)
        behind_index = status.last_index if status is not None else 0
        await self._group.kill(follower)
        wanted_index = behind_index + int(DRIVER["keep_entries"]) + 1
        async with _within(RECOVERY_TIMEOUT_S, "no snapshot past a dead follower", self._group):
            while True:
                status = await self._group.status(leader)
                if status is not None and status.snapshot_index >= wanted_index:
                    return
                await asyncio.sleep(POLL_S)

    async def _wait_for_write(self, at_us: int) -> float:
        """Milliseconds until a write that was called after the fault was acknowledged."""
        async with _within(LEADER_TIMEOUT_S, "no write after the leader was lost", self._group):
            while True:
                answered_us = self._record.first_write_after_us(at_us)
                if answered_us is not None:
                    return (answered_us - at_us) / 1000
                await asyncio.sleep(POLL_S)

    async def _heal(self) -> None:
        """Everybody up, and caught up with what was committed when they came back."""
        group = self._group
        if group.died_by_itself():
            raise DrillStuckError(
                f"{group.died_by_itself()} ended by themselves; see {group.directory}/*.log"
            )
        running = group.running()
        for name in group.names:
            if name not in running:
                group.revive(name)
        async with _within(RECOVERY_TIMEOUT_S, "not every replica caught up", group):
            leader = await group.leader(timeout_s=LEADER_TIMEOUT_S)
            goal = None
            while goal is None:
                status = await group.status(leader)
                goal = status.commit_index if status is not None else None
            for name in group.names:
                await self._wait_until_applied(name, goal)

    async def _wait_until_applied(self, name: str, index: int) -> None:
        while True:
            status = await self._group.status(name)
            if status is not None and status.applied_index >= index:
                return
            await asyncio.sleep(POLL_S)


@contextlib.asynccontextmanager
async def _within(timeout_s: float, what: str, group: LocalGroup) -> AsyncIterator[None]:
    """`asyncio.timeout` that says what was waited for."""
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except TimeoutError as error:
        raise DrillStuckError(
            f"{what} within {timeout_s:g} s; see {group.directory}/*.log"
        ) from error


async def _settled_hashes_equal(group: LocalGroup) -> bool:
    """After the load has ended: all at one index, then all with one hash."""
    async with _within(RECOVERY_TIMEOUT_S, "the replicas did not reach one index", group):
        while True:
            statuses = [await group.status(name) for name in group.names]
            alive = [status for status in statuses if status is not None]
            indices = {(s.applied_index, s.commit_index, s.last_index) for s in alive}
            if len(alive) == len(group.names) and len(indices) == 1:
                return len({status.state_hash for status in alive}) == 1
            await asyncio.sleep(POLL_S)


async def _read_all(group: LocalGroup, keys: Sequence[str]) -> dict[str, Value]:
    async with GroupClient(list(group.addresses.values())) as client:
        return {
            key: decode_value(await client.read(encode_get(key), timeout_s=READ_TIMEOUT_S))
            for key in keys
        }
