"""Start the replica's process, hear where it listens, and hear how it ended."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping

from pdd.core.errors import PddError
from pdd.daemon.supervisor_process import with_package_path

BEAT = b"."
HAND_OVER = b"t"
START_TIMEOUT_S = 60.0
"""To recover a long log on a slow disk; then it is given up."""
STOP_TIMEOUT_S = 5.0
SHORT_PAUSE_S = 0.2
LONG_PAUSE_S = 10.0
QUICK_RESTARTS_MAX = 3
RESTART_WINDOW_S = 60.0


class ReplicaRefused(PddError):
    """The replica would not start, and says why; starting it again would change nothing."""


class ReplicaDied(PddError):
    """The replica's process ended though nobody asked it to."""


class ReplicaChild:
    """One life of the process."""

    def __init__(self, process: "subprocess.Popen[bytes]", lines: asyncio.StreamReader) -> None:
        self._process = process
        self._lines = lines

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    async def address(self) -> str:
        """Where it listens. Raises: ReplicaRefused, ReplicaDied."""
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                line = await self._lines.readline()
        except TimeoutError as error:
            raise ReplicaDied(f"the replica was not ready after {START_TIMEOUT_S:g} s") from error
        if not line:
            raise ReplicaDied(await self._how_it_ended())
        told = json.loads(line)
        if "refused" in told:
            raise ReplicaRefused(f"raft: {told['refused']}")
        return str(told["address"])

    async def ended(
        self,
        on_leader: Callable[[str | None], None],
        on_pause: Callable[[float], None] = lambda pause_s: None,
    ) -> str:
        """Waits for its end; the reason, its own one if it had any. ``on_leader``: told who leads,
        whenever that changes; None while it is not known. ``on_pause``: told the longest pause of
        its loop in this life, whenever there was a longer one."""
        while line := await self._lines.readline():
            told = json.loads(line)
            if "refused" in told:
                return f"raft: {told['refused']}"
            if "longest_pause_s" in told:
                on_pause(told["longest_pause_s"])
            else:
                on_leader(told["leader"])
        return await self._how_it_ended()

    def say(self, words: bytes) -> None:
        """``BEAT`` or ``HAND_OVER``. Lost if it has ended, or has not read for long."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError, BlockingIOError):
            os.write(self._process.stdin.fileno(), words)

    async def stop(self) -> None:
        """Closes its stdin, which ends it; kills it if that takes long. Idempotent."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            await asyncio.to_thread(self._process.wait, STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)

    async def _how_it_ended(self) -> str:
        status = await asyncio.to_thread(self._process.wait)
        if status < 0:
            return f"the replica's process was killed by {signal.Signals(-status).name}"
        return f"the replica's process ended with status {status}; its log says why"


async def start_replica(
    settings: Mapping[str, object], *, environment: Mapping[str, str]
) -> ReplicaChild:
    """In the main thread: the process dies with the thread that started it.

    Raises:
        ReplicaDied: there is no process, for want of memory, processes or descriptors: a later
            start may find them again.
    """
    # Popen uses vfork; uvloop's own way is fork, which may hang beside gRPC's threads.
    try:
        process = subprocess.Popen(  # noqa: S603, ASYNC220 -- our own module; returns at once
            [sys.executable, "-m", "pdd.daemon.replica_process", json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=with_package_path(dict(environment)),
        )
    except OSError as error:
        raise ReplicaDied(f"the replica's process could not be started: {error}") from error
    assert process.stdin is not None
    os.set_blocking(process.stdin.fileno(), False)
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), process.stdout)
    return ReplicaChild(process, lines)


class RestartPauses:
    """How long until a replica that ended is started again. Pure.

    Short at first; LONG_PAUSE_S from the fourth time within RESTART_WINDOW_S on, so that a full
    disk is not hammered, and is noticed soon when it has room again.
    """

    def __init__(self) -> None:
        self._deaths_s: deque[float] = deque(maxlen=QUICK_RESTARTS_MAX)

    def next_s(self, *, now_s: float) -> float:
        """Asked at each death."""
        is_often = (
            len(self._deaths_s) == QUICK_RESTARTS_MAX
            and now_s - self._deaths_s[0] < RESTART_WINDOW_S
        )
        self._deaths_s.append(now_s)
        return LONG_PAUSE_S if is_often else SHORT_PAUSE_S
