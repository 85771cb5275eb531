"""Soft entries beside the drill's writes: what a scheduler's sequence table would put in the log.

As a scheduler's pacing sends them: one entry every SOFT_BATCH_S with all that has come since, one
on its way at a time. What is lost with a leader is counted and not sent again, as nobody waits for
it. The state takes them for malformed commands and answers with nothing, as a cell's replicas do;
they are in the log, on three disks, and in the way of every write that comes after them.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

from pdd.core.errors import NodeUnavailable
from pdd.replication.bench import SOFT_BATCH_S, SOFT_ENTRY_BYTES_MAX, SOFT_LOADS
from pdd.replication.client import GroupClient, OutcomeUnknownError, Session, SessionLostError
from pdd.replication.percentiles import percentile

SOFT_BYTES_PER_S = SOFT_LOADS["sequences"]
SOFT_TIMEOUT_S = 4.0
"""As a scheduler waits for an entry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftFigures:
    """What soft entries did to writes before the faults, and how many of them there were."""

    committed_count: int
    committed_bytes: int
    lost_count: int
    with_ms: Sequence[float]
    """Of each write in rounds with soft load."""
    without_ms: Sequence[float]

    def told(self) -> str:
        """For people."""
        return (
            f"soft entries: {self.committed_count} committed ({self.committed_bytes / 1e6:.1f} MB,"
            f" {SOFT_BYTES_PER_S / 1e6:.1f} MB/s wanted), {self.lost_count} unknown; a write took"
            f" {_both(self.with_ms)} beside them, {_both(self.without_ms)} without"
        )


def _both(took_ms: Sequence[float]) -> str:
    return f"p50 {percentile(took_ms, 50):.1f} ms, p99 {percentile(took_ms, 99):.1f} ms"


class SoftLoad:
    """Of the whole drill; `is_on` in the rounds that have it."""

    def __init__(self, addresses: Sequence[str], *, seed: int) -> None:
        self._addresses = addresses
        self._rng = random.Random(f"{seed}/soft")  # noqa: S311 -- repeatable, guards nothing
        self.is_on = False
        self.committed_count = 0
        self.committed_bytes = 0
        self.lost_count = 0
        """Outcome unknown: a leader was lost, or a majority."""

    async def run(self, stopping: asyncio.Event) -> None:
        """Until ``stopping``."""
        async with GroupClient(self._addresses) as client:
            session: Session | None = None
            last_s = time.monotonic()
            while not stopping.is_set():
                now_s = time.monotonic()
                size_bytes = min(int((now_s - last_s) * SOFT_BYTES_PER_S), SOFT_ENTRY_BYTES_MAX)
                last_s = now_s
                if self.is_on:
                    session = await self._send(client, session, self._rng.randbytes(size_bytes))
                await asyncio.sleep(max(now_s + SOFT_BATCH_S - time.monotonic(), 0.0))

    async def _send(
        self, client: GroupClient, session: Session | None, entry: bytes
    ) -> Session | None:
        """The session to go on with."""
        try:
            if session is None:
                session = await client.open_session(timeout_s=SOFT_TIMEOUT_S)
            await session.execute(entry, timeout_s=SOFT_TIMEOUT_S)
        except (NodeUnavailable, OutcomeUnknownError, SessionLostError):
            self.lost_count += 1
            return None
        self.committed_count += 1
        self.committed_bytes += len(entry)
        return session
