"""Stop the daemons of a cluster within ``STOP_LIMIT_S`` and leave nothing behind."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from pdd.daemon import supervisor_timing as timing
from pdd.daemon.supervisor_members import (
    SharedFile,
    end_members,
    find_members,
    remove_shared_files,
    shared_files,
)
from pdd.daemon.supervisor_table import Daemon, DaemonTable, are_running, terminate


@dataclass(slots=True, kw_only=True)
class Shutdown:
    """One stop. ``supervisor_timing`` draws its order."""

    table: DaemonTable
    cluster_id: str
    report: Callable[[str], None]
    clock: Callable[[], float]
    hurry: asyncio.Event
    """Set by a second signal: wait for nobody."""

    async def run(self, known_files: set[SharedFile]) -> None:
        """Stop all daemons and everything they started.

        Args:
            known_files: shared memory seen while the cluster ran; removed at the end.
        """
        start_s = self.clock()
        find = partial(find_members, self.cluster_id)
        files = known_files | shared_files(find())
        terminate(self.table.nodes)
        await self._wait_until_gone(self.table.nodes, until_s=start_s + timing.SCHEDULER_AFTER_S)
        terminate(self.table.schedulers)
        await self._wait_until_gone(self.table.all, until_s=start_s + timing.STOP_GRACE_S)
        took_s = self.clock() - start_s
        for daemon in self.table.all:
            if daemon.pid:
                self.report(f"{daemon.name}: did not stop within {took_s:.1f} s; killed")
        # The daemons that are left, and processes that dead daemons left.
        left_s = max(0.0, start_s + timing.STOP_GRACE_S - self.clock())
        grace_s = 0.0 if self.hurry.is_set() else min(left_s, timing.CLEANUP_GRACE_S)
        files |= await asyncio.to_thread(end_members, find, grace_s=grace_s)
        await self._wait_until_gone(
            self.table.all, until_s=self.clock() + timing.KILL_WAIT_S, is_final=True
        )
        if stuck := find():
            self.report(f"processes {stuck} do not end even when killed: stuck in the kernel")
        remove_shared_files(files)

    async def _wait_until_gone(
        self, daemons: Sequence[Daemon], *, until_s: float, is_final: bool = False
    ) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, until_s - self.clock())):
                while are_running(daemons) and (is_final or not self.hurry.is_set()):
                    await self.table.wait_for_change()
