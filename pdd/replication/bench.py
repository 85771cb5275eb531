"""``pdd bench raft``: how fast three replicas commit, each with its own process and real fsync.

A client outside of them keeps ``window`` commands outstanding, each in a session of its own
(exactly once, as in production), and counts one when its answer is there: committed, applied and
durable on a majority. Next to it, what the disk takes for a bare fdatasync.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pdd.replication.client import GroupClient, Session
from pdd.replication.fsync_probe import measure_fsync_ms
from pdd.replication.kv_machine import encode_put
from pdd.replication.local_group import LocalGroup
from pdd.replication.percentiles import percentile

WINDOWS = (1, 16, 64)
WARM_UP_S = 1.0
KEY_COUNT = 1000
START_TIMEOUT_S = 20.0
COMMAND_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRow:
    window: int
    entries_per_s: float
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchReport:
    rows: Sequence[BenchRow]
    fsync_p50_ms: float
    fsync_p99_ms: float


async def run_bench(
    directory: Path,
    *,
    seconds: float,
    windows: Sequence[int] = WINDOWS,
    say: Callable[[str], None],
) -> BenchReport:
    """Raises: NodeUnavailable (no leader), OutcomeUnknownError (the group stood still)."""
    fsync_ms = await asyncio.to_thread(measure_fsync_ms, directory)
    async with LocalGroup(directory) as group:
        leader = await group.leader(timeout_s=START_TIMEOUT_S)
        say(f"{leader} leads; measuring {seconds:g} s per window")
        addresses = list(group.addresses.values())
        async with GroupClient(addresses, attempt_timeout_s=COMMAND_TIMEOUT_S) as client:
            rows = [await _measure(client, window=w, seconds=seconds) for w in windows]
        await _say_pauses(group, say)
    return BenchReport(
        rows=rows,
        fsync_p50_ms=percentile(fsync_ms, 50),
        fsync_p99_ms=percentile(fsync_ms, 99),
    )


async def _measure(client: GroupClient, *, window: int, seconds: float) -> BenchRow:
    sessions = [await client.open_session(timeout_s=COMMAND_TIMEOUT_S) for _ in range(window)]
    took_ms: list[float] = []
    counting_from_s = time.monotonic() + WARM_UP_S
    until_s = counting_from_s + seconds

    async with asyncio.TaskGroup() as tasks:
        for number, session in enumerate(sessions):
            tasks.create_task(_load(session, number, counting_from_s, until_s, took_ms))
    return BenchRow(
        window=window,
        entries_per_s=len(took_ms) / seconds,
        p50_ms=percentile(took_ms, 50),
        p99_ms=percentile(took_ms, 99),
    )


async def _load(
    session: Session, number: int, counting_from_s: float, until_s: float, took_ms: list[float]
) -> None:
    """Only commands that began after the warm-up and ended within the time count."""
    count = 0
    while (began_s := time.monotonic()) < until_s:
        count += 1
        command = encode_put(f"key-{(number + count * 64) % KEY_COUNT}", count)
        await session.execute(command, timeout_s=COMMAND_TIMEOUT_S)
        ended_s = time.monotonic()
        if began_s >= counting_from_s and ended_s <= until_s:
            took_ms.append((ended_s - began_s) * 1000)


async def _say_pauses(group: LocalGroup, say: Callable[[str], None]) -> None:
    for name in group.names:
        status = await group.status(name)
        if status is not None:
            say(f"{name}: longest pause of its loop {status.longest_pause_us / 1000:.1f} ms")
