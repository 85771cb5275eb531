"""The daemons of one cluster: which process each one is now, and how it is."""

import asyncio
import signal
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pdd.core.identity import Role
from pdd.daemon.supervisor_events import reap_children
from pdd.daemon.supervisor_members import send_signal
from pdd.daemon.supervisor_plan import DaemonPlan
from pdd.daemon.supervisor_restart import RestartBudget
from pdd.daemon.supervisor_state import DaemonRecord
from pdd.daemon.supervisor_timing import LOG_TAIL_LINES


@dataclass(slots=True, kw_only=True, eq=False)
class Daemon:
    """One daemon over its lives. Times are of the supervisor's clock."""

    plan: DaemonPlan
    process: subprocess.Popen[bytes] | None = None
    started_s: float = 0.0
    mentioned_s: float = 0.0
    status: str = "starting"
    is_ready: bool = False
    grpc: str = ""
    http: str = ""
    budget: RestartBudget = field(default_factory=RestartBudget)

    @property
    def name(self) -> str:
        return self.plan.name

    @property
    def pid(self) -> int:
        """0 while it is not running."""
        return self.process.pid if self.process is not None else 0

    def began(self, process: subprocess.Popen[bytes], *, now_s: float) -> None:
        """A new life."""
        self.process = process
        self.started_s = self.mentioned_s = now_s
        self.status, self.is_ready, self.grpc = "starting", False, ""

    def record(self) -> DaemonRecord:
        return DaemonRecord(
            name=self.name,
            role=self.plan.role.value,
            pid=self.pid,
            address=self.grpc,
            http=f"http://{self.http}" if self.http else "",
        )

    def log_tail(self) -> str:
        """The last lines of its log, to be put behind a message."""
        path: Path = self.plan.log_path
        lines = path.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
        if not lines:
            return f"; its log is empty ({path})"
        return "\n".join([f"; the end of {path}:", *(f"    {line}" for line in lines)])


class DaemonTable:
    """All daemons, schedulers first."""

    def __init__(self, plans: Sequence[DaemonPlan]) -> None:
        self.all = [Daemon(plan=plan) for plan in plans]
        self.schedulers = [d for d in self.all if d.plan.role is Role.SCHEDULER]
        self.nodes = [d for d in self.all if d.plan.role is not Role.SCHEDULER]
        self._changed = asyncio.Event()

    @property
    def scheduler(self) -> Daemon:
        """The first that can be asked now."""
        return next((d for d in self.schedulers if d.is_ready and d.pid), self.schedulers[0])

    def named(self, name: str) -> Daemon:
        return next(daemon for daemon in self.all if daemon.name == name)

    def by_pid(self, pid: int) -> Daemon | None:
        """The daemon that is this process. 0 is none: the kernel says it of foreign namespaces."""
        return next((daemon for daemon in self.all if daemon.pid == pid != 0), None)

    def are_ready(self) -> bool:
        return all(daemon.is_ready for daemon in self.all)

    def reap(self) -> list[tuple[Daemon, int]]:
        """Collect children that ended. Returns the daemons among them with their exit codes.

        From here on a dead daemon has no process: its number may be somebody else's now.
        """
        dead: list[tuple[Daemon, int]] = []
        for exited in reap_children():
            if (daemon := self.by_pid(exited.pid)) is not None:
                assert daemon.process is not None
                daemon.process.returncode = exited.exit_code
                daemon.process = None
                dead.append((daemon, exited.exit_code))
        self._changed.set()
        return dead

    def wake_waiters(self) -> None:
        """Make ``wait_for_change`` return."""
        self._changed.set()

    async def wait_for_change(self) -> None:
        """Return when a child has ended, or ``wake_waiters`` was called, since the last call."""
        await self._changed.wait()
        self._changed.clear()


def terminate(daemons: Iterable[Daemon]) -> None:
    """SIGTERM to those that run."""
    send_signal([daemon.pid for daemon in daemons if daemon.pid], signal.SIGTERM)


def are_running(daemons: Iterable[Daemon]) -> bool:
    return any(daemon.pid for daemon in daemons)
