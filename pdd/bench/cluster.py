"""A cluster for as long as a measurement takes, started as ``pdd up`` starts one."""

import asyncio
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pdd.core.errors import PddError
from pdd.core.identity import Role
from pdd.daemon.node_engine import STEP_LOG_NAME
from pdd.daemon.supervisor import Supervisor
from pdd.daemon.supervisor_plan import DaemonPlan
from pdd.daemon.supervisor_state import ClusterRecord, StateDir
from pdd.engine.synthetic.step_log import read_step_log

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningCluster:
    """What a measurement sees of it. ``interrupt`` is set when the cluster stops early."""

    record: ClusterRecord
    state_dir: Path
    interrupt: threading.Event

    @property
    def http_port(self) -> int:
        return int(self.record.http.rpartition(":")[2])

    @property
    def scheduler_pid(self) -> int:
        return self._pids(Role.SCHEDULER)[0]

    @property
    def node_pids(self) -> list[int]:
        return self._pids(Role.PREFILL) + self._pids(Role.DECODE)

    def step_times_ns(self) -> dict[str, list[int]]:
        """For every request, when each of its tokens was made, on whichever node."""
        times: dict[str, list[int]] = {}
        for path in sorted(self.state_dir.glob(f"*/{STEP_LOG_NAME}")):
            for key, found in read_step_log(path).items():
                times.setdefault(key.partition("/")[0], []).extend(found)
        return {request_id: sorted(found) for request_id, found in times.items()}

    def _pids(self, role: Role) -> list[int]:
        return [node.pid for node in self.record.nodes if node.role == role.value]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPlan:
    """The daemons to start, and the name of the model that they serve."""

    daemons: tuple[DaemonPlan, ...]
    model_name: str


def with_cluster(
    plan: Callable[[Path], ClusterPlan],
    work: Callable[[RunningCluster], T],
    *,
    start_timeout_s: float,
    report: Callable[[str], None],
) -> T:
    """Start what ``plan(state_dir)`` says, run ``work`` in a thread, stop it all.

    Call it in the main thread: Ctrl-C stops the cluster; ``work`` hears of it by ``interrupt`` and
    should end soon.

    Raises:
        KeyboardInterrupt: it was stopped while ``work`` ran, and ``work`` gave nothing.
        PddError: it did not start; nothing of it is left.
    """
    with tempfile.TemporaryDirectory(prefix="pdd-bench-") as folder:
        state_dir = StateDir.lock(Path(folder))
        try:
            planned = plan(state_dir.path)
            return asyncio.run(
                _run(state_dir, planned.daemons, planned.model_name, work, start_timeout_s, report)
            )
        finally:
            state_dir.close()


async def _run(
    state_dir: StateDir,
    plans: tuple[DaemonPlan, ...],
    model_name: str,
    work: Callable[[RunningCluster], T],
    start_timeout_s: float,
    report: Callable[[str], None],
) -> T:
    ready: asyncio.Future[ClusterRecord] = asyncio.get_running_loop().create_future()
    interrupt = threading.Event()
    supervisor = Supervisor(
        state_dir=state_dir,
        plans=plans,
        model=model_name,
        report=report,
        on_ready=ready.set_result,
        start_timeout_s=start_timeout_s,
    )
    running = asyncio.create_task(supervisor.run(), name="supervisor")
    try:
        await asyncio.wait((running, ready), return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            await running  # raises why it did not start
            raise KeyboardInterrupt
        cluster = RunningCluster(
            record=ready.result(), state_dir=state_dir.path, interrupt=interrupt
        )
        working = asyncio.create_task(asyncio.to_thread(work, cluster), name="measurement")
        await asyncio.wait((running, working), return_when=asyncio.FIRST_COMPLETED)
        interrupt.set()
        try:
            return await working
        except PddError as error:
            if running.done():  # whatever it missed, it missed because of that
                raise KeyboardInterrupt from error
            raise
    finally:
        if not running.done():
            supervisor.request_stop("measured")
        await running
