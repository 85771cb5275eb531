"""``pdd bench raft``: how fast three replicas commit, each with its own process and real fsync.

A client outside of them keeps ``window`` commands outstanding, each in a session of its own
(exactly once, as in production), and counts one when its answer is there: committed, applied and
durable on a majority. Next to it, what the disk takes for a bare fdatasync, and (on stderr) what
the client takes of the CPU: it is one process with one loop, in which an answer waits for those
that came with it, so at window 64 about a millisecond of each round is its own.

Where every answer brings the next command, what one takes is but the window over the throughput.
So the widest window is also measured at a throughput: commands come at ``PACED_PER_S``, and each is
timed from when it was due, however late it was sent and answered. All are sent: a group that cannot
keep up makes the measurement as much longer, and its percentiles show how far it fell behind.

Then what a hard entry (a cordon, a join) takes beside soft ones, which come as a scheduler's pacing
sends them: one entry every SOFT_BATCH_S with all that has come since, one on its way at a time.
``sequences`` is the sequence table at 5,000 requests/s; ``directory`` is what replicated block
deltas would be at 700,000 blocks/s, which is why they are not.
"""

from __future__ import annotations

import asyncio
import os
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
PACED_PER_S = 6_000
WARM_UP_S = 1.0
KEY_COUNT = 1000
SOFT_BATCH_S = 0.02
SOFT_ENTRY_BYTES_MAX = 512 * 1024
"""Half of what raft takes as one entry; what is more comes later, or never."""
SOFT_LOADS = {"none": 0, "sequences": 2 * 5_000 * 110, "directory": 700_000 * 16}
"""Bytes/s. A request has two rows; a block's key is 16 bytes."""
START_TIMEOUT_S = 20.0
COMMAND_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRow:
    window: int
    entries_per_s: float
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PacedRow:
    """As above, at a throughput. ``offered_per_s``: what is wanted. ``entries_per_s``: what was
    answered in the time; the percentiles are of all that was due in it."""

    window: int
    offered_per_s: int
    entries_per_s: float
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """To a command that came at a given time, on CLOCK_MONOTONIC."""

    due_s: float
    ended_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftRow:
    """Hard entries, one at a time, beside a load of soft ones. ``soft_bytes_per_s``: committed, and
    written to each replica's disk."""

    load: str
    wanted_bytes_per_s: int
    soft_bytes_per_s: float
    hard_p50_ms: float
    hard_p99_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchReport:
    rows: Sequence[BenchRow]
    paced_rows: Sequence[PacedRow]
    soft_rows: Sequence[SoftRow]
    longest_pause_ms: float
    """Of a replica's event loop, in all of it."""
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
            rows = []
            for window in windows:
                used_s = time.process_time()
                row = await _measure(client, window=window, seconds=seconds)
                used_s = time.process_time() - used_s
                rows.append(row)
                count = row.entries_per_s * (WARM_UP_S + seconds)
                say(
                    f"window {window}: the client itself took {used_s / max(count, 1.0) * 1e6:.0f} "
                    "us of CPU for each entry"
                )
            paced = await _measure_paced(client, window=max(windows), seconds=seconds)
            soft_rows = [
                await _measure_soft(client, load, rate, seconds=seconds)
                for load, rate in SOFT_LOADS.items()
            ]
        longest_pause_ms = await _longest_pause_ms(group, say)
    return BenchReport(
        rows=rows,
        paced_rows=[paced],
        soft_rows=soft_rows,
        longest_pause_ms=longest_pause_ms,
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


async def _measure_paced(client: GroupClient, *, window: int, seconds: float) -> PacedRow:
    sessions = [await client.open_session(timeout_s=COMMAND_TIMEOUT_S) for _ in range(window)]
    answers: list[Answer] = []
    first_s = time.monotonic()
    every_s = window / PACED_PER_S
    until_s = first_s + WARM_UP_S + seconds
    async with asyncio.TaskGroup() as tasks:
        for number, session in enumerate(sessions):
            due_s = first_s + number / PACED_PER_S
            tasks.create_task(paced_load(session, number, due_s, every_s, until_s, answers))
    return paced_row(answers, window=window, seconds=seconds, until_s=until_s)


def paced_row(
    answers: Sequence[Answer], *, window: int, seconds: float, until_s: float
) -> PacedRow:
    """What was due in the last ``seconds`` before ``until_s``; the rest was to warm up."""
    counted = [answer for answer in answers if answer.due_s >= until_s - seconds]
    took_ms = [(answer.ended_s - answer.due_s) * 1000 for answer in counted]
    in_time = [answer for answer in counted if answer.ended_s <= until_s]
    return PacedRow(
        window=window,
        offered_per_s=PACED_PER_S,
        entries_per_s=len(in_time) / seconds,
        p50_ms=percentile(took_ms, 50),
        p99_ms=percentile(took_ms, 99),
    )


async def paced_load(
    session: Session,
    number: int,
    due_s: float,
    every_s: float,
    until_s: float,
    answers: list[Answer],
) -> None:
    """Every command that is due before ``until_s``, however late it is by then."""
    count = 0
    while due_s < until_s:
        await asyncio.sleep(max(due_s - time.monotonic(), 0.0))
        count += 1
        command = encode_put(f"key-{(number + count * 64) % KEY_COUNT}", count)
        await session.execute(command, timeout_s=COMMAND_TIMEOUT_S)
        answers.append(Answer(due_s=due_s, ended_s=time.monotonic()))
        due_s += every_s


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


async def _measure_soft(
    client: GroupClient, load: str, wanted_bytes_per_s: int, *, seconds: float
) -> SoftRow:
    hard, soft = [await client.open_session(timeout_s=COMMAND_TIMEOUT_S) for _ in range(2)]
    took_ms: list[float] = []
    counting_from_s = time.monotonic() + WARM_UP_S
    until_s = counting_from_s + seconds
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_load(hard, 0, counting_from_s, until_s, took_ms))
        loading = tasks.create_task(_soft_load(soft, wanted_bytes_per_s, counting_from_s, until_s))
    return SoftRow(
        load=load,
        wanted_bytes_per_s=wanted_bytes_per_s,
        soft_bytes_per_s=loading.result() / seconds,
        hard_p50_ms=percentile(took_ms, 50),
        hard_p99_ms=percentile(took_ms, 99),
    )


async def _soft_load(
    session: Session, bytes_per_s: int, counting_from_s: float, until_s: float
) -> int:
    """Bytes committed after the warm-up. The state takes them for malformed commands and answers
    with nothing, as a cell's replicas do."""
    committed_bytes = 0
    last_s = time.monotonic()
    while bytes_per_s and (now_s := time.monotonic()) < until_s:
        size = min(int((now_s - last_s) * bytes_per_s), SOFT_ENTRY_BYTES_MAX)
        last_s = now_s
        if size:
            await session.execute(os.urandom(size), timeout_s=COMMAND_TIMEOUT_S)
            committed_bytes += size if now_s >= counting_from_s else 0
        await asyncio.sleep(max(now_s + SOFT_BATCH_S - time.monotonic(), 0.0))
    return committed_bytes


async def _longest_pause_ms(group: LocalGroup, say: Callable[[str], None]) -> float:
    longest_ms = 0.0
    for name in group.names:
        status = await group.status(name)
        if status is not None:
            pause_ms = status.longest_pause_us / 1000
            say(f"{name}: longest pause of its loop {pause_ms:.1f} ms")
            longest_ms = max(longest_ms, pause_ms)
    return longest_ms
