"""Starts the daemons of a cluster on this machine, watches them, and stops them without a trace.

    start all ──> every daemon said READY ──> the scheduler lists every node ──> READY
        │                                                                          │
        └─ a daemon dies: show its log, stop all, exit 1      a daemon dies: restart it with
                                                              backoff; too often: stop all, exit 1
    SIGINT, SIGTERM, SIGHUP at any time ──> stop all

One queue of events, one loop that handles them; everything else only puts events into the queue.
``supervisor_guard`` does the stopping when this process is killed.
"""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pdd.core.errors import NodeUnavailable, PddError
from pdd.daemon import supervisor_timing as timing
from pdd.daemon.notify_keys import GRPC_ADDRESS_KEY, HTTP_ADDRESS_KEY
from pdd.daemon.supervisor_events import (
    AllJoined,
    DaemonExited,
    DaemonSaid,
    Event,
    NotifyReceiver,
    RestartDue,
    StopRequested,
    TaskFailed,
    Tick,
    describe_exit,
    stop_signals,
)
from pdd.daemon.supervisor_members import (
    SharedFile,
    end_members,
    find_members,
    make_temporary_dir,
    remove_shared_files,
    remove_temporary_dir,
    send_signal,
    shared_files,
    start_ticks,
)
from pdd.daemon.supervisor_nodes import NodeRow, list_nodes
from pdd.daemon.supervisor_plan import DaemonPlan, write_plans
from pdd.daemon.supervisor_process import (
    Launcher,
    adopt_orphans,
    dismiss_guard,
    start_guard,
)
from pdd.daemon.supervisor_restart import RARE_DELAY_S, RESTART_LIMIT
from pdd.daemon.supervisor_shutdown import Shutdown
from pdd.daemon.supervisor_state import ClusterRecord, StateDir, new_cluster_id
from pdd.daemon.supervisor_table import Daemon, DaemonTable

NodeLister = Callable[[str], Sequence[NodeRow]]
"""Asks the scheduler at host:port for its nodes. Blocks; raises ``NodeUnavailable``."""


class StartFailed(PddError):
    """The cluster did not become ready. The message tells which daemon, and shows its log."""


class Supervisor:
    """One cluster, from start to stop. ``run`` is called once, in the main thread."""

    def __init__(
        self,
        *,
        state_dir: StateDir,
        plans: Sequence[DaemonPlan],
        model: str,
        report: Callable[[str], None],
        on_ready: Callable[[ClusterRecord], None],
        start_timeout_s: float,
        lister: NodeLister = list_nodes,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            state_dir: locked; stays locked until the caller closes it.
            plans: scheduler first.
            report: takes one line for the operator. Must not raise: a stop goes on when the
                terminal is gone.
            on_ready: called once.
            start_timeout_s: for each start of a daemon.
        """
        self._state_dir = state_dir
        self._plans = plans
        self._table = DaemonTable(plans)
        self._report = report
        self._on_ready = on_ready
        self._start_timeout_s = start_timeout_s
        self._lister = lister
        self._clock = clock
        # Bounded by what daemons say and how often they die; handled faster than either.
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._hurry = asyncio.Event()
        self._is_stopping = False
        self._is_cluster_ready = False
        self._shared_files: set[SharedFile] = set()
        self._tasks: set[asyncio.Task[None]] = set()  # at most one per daemon, and two more
        self._record = ClusterRecord(
            cluster_id=new_cluster_id(),
            supervisor_pid=os.getpid(),
            supervisor_start_ticks=start_ticks(os.getpid()) or 0,
            temporary_dir="",
            state="starting",
            model=model,
        )

    def request_stop(self, reason: str) -> None:
        """Stop; asked again while stopping: at once."""
        if self._is_stopping:
            self._hurry.set()
            self._table.wake_waiters()
        self._events.put_nowait(StopRequested(reason=reason))

    async def run(self) -> int:
        """Run the cluster until it is stopped. Returns the exit code of ``pdd up``.

        Raises:
            StartFailed: it did not become ready; everything is stopped.
            PddError: a file could not be written; everything is stopped.
        """
        self._install_signal_handlers()
        receiver = NotifyReceiver(self._events.put_nowait)
        temporary_dir: Path | None = None
        guard: subprocess.Popen[bytes] | None = None
        try:
            write_plans(self._plans)
            temporary_dir = make_temporary_dir()
            self._record = replace(self._record, temporary_dir=str(temporary_dir))
            self._state_dir.write_record(self._record)
            guard = start_guard(self._state_dir, self._record)
            launcher = Launcher(
                cluster_id=self._record.cluster_id,
                temporary_dir=temporary_dir,
                notify_socket=receiver.address,
            )
            for daemon in self._table.all:
                self._start(daemon, launcher)
            self._background(self._tick())
            return await self._watch(launcher)
        except OSError as error:
            raise PddError(
                f"{error.filename or 'pdd up'}: {error.strerror}; everything is stopped"
            ) from error
        finally:
            self._is_stopping = True
            await self._stop()
            receiver.close()
            if temporary_dir is not None:
                remove_temporary_dir(str(temporary_dir))
            self._state_dir.remove_record()
            if guard is not None:
                await asyncio.to_thread(dismiss_guard, guard)

    def _install_signal_handlers(self) -> None:
        loop = asyncio.get_running_loop()
        adopt_orphans()
        loop.add_signal_handler(signal.SIGCHLD, self._on_child_signal)
        for number in stop_signals():
            loop.add_signal_handler(number, self.request_stop, number.name)

    def _on_child_signal(self) -> None:
        for daemon, exit_code in self._table.reap():
            self._events.put_nowait(DaemonExited(name=daemon.name, exit_code=exit_code))

    # Watching -------------------------------------------------------------------------------

    async def _watch(self, launcher: Launcher) -> int:
        """Handle events until it is time to stop; return the exit code."""
        while True:
            match await self._events.get():
                case StopRequested(reason=reason):
                    self._report(f"stopping ({reason})")
                    return 0 if self._is_cluster_ready else 1
                case DaemonSaid(pid=pid, fields=fields):
                    if (daemon := self._table.by_pid(pid)) is not None:
                        self._on_message(daemon, fields)
                case DaemonExited(name=name, exit_code=exit_code):
                    if not self._on_exit(self._table.named(name), exit_code):
                        return 1
                case RestartDue(name=name):
                    self._start(self._table.named(name), launcher)
                case AllJoined():
                    self._is_cluster_ready = True
                    self._remember_shared_files()
                    self._update_record(state="ready")
                    self._on_ready(self._record)
                case Tick():
                    self._on_tick()
                case TaskFailed(error=error):
                    raise error

    def _start(self, daemon: Daemon, launcher: Launcher) -> None:
        daemon.began(launcher.start(daemon.plan), now_s=self._clock())
        self._update_record()

    def _on_message(self, daemon: Daemon, fields: Mapping[str, str]) -> None:
        if daemon.is_ready:
            return  # what it says later is for systemd
        status = fields.get("STATUS", "")
        if fields.get("READY") != "1":
            if status and status != daemon.status:
                daemon.status = status
                self._mention(daemon)
            return
        daemon.is_ready = True
        daemon.grpc = fields.get(GRPC_ADDRESS_KEY, "")
        daemon.http = fields.get(HTTP_ADDRESS_KEY, daemon.http)
        daemon.budget.became_ready(now_s=self._clock())
        self._update_record()
        if self._is_cluster_ready:
            self._report(f"{daemon.name}: back (pid {daemon.pid})")
            return
        self._report(f"{daemon.name}: ready, {self._clock() - daemon.started_s:.0f} s")
        if self._table.are_ready():
            self._background(self._wait_for_join())

    def _on_exit(self, daemon: Daemon, exit_code: int) -> bool:
        """Decide what a death means. Returns whether the cluster goes on."""
        how = describe_exit(exit_code)
        if not self._is_cluster_ready:
            raise StartFailed(f"{daemon.name} {how} before all was ready{daemon.log_tail()}")
        delay_s = daemon.budget.died(now_s=self._clock())
        if delay_s is None and self._table.schedulers == [daemon]:
            self._report(
                f"{daemon.name}: {how}; given up after {RESTART_LIMIT} restarts, the cluster "
                f"stops{daemon.log_tail()}"
            )
            return False
        if delay_s is None:
            delay_s = RARE_DELAY_S
            self._report(
                f"{daemon.name}: {how}; {RESTART_LIMIT} restarts did not help, the others serve "
                f"without it, next try in {delay_s:g} s{daemon.log_tail()}"
            )
        else:
            self._report(
                f"{daemon.name}: {how}; restart in {delay_s:g} s (log: {daemon.plan.log_path})"
            )
        self._update_record()
        self._background(self._clean_and_restart(daemon.name, delay_s))
        return True

    async def _clean_and_restart(self, name: str, delay_s: float) -> None:
        """Stop what a dead daemon left (its engine's processes), wait, ask for the restart."""
        find = partial(find_members, self._record.cluster_id, name=name)
        files = await asyncio.to_thread(end_members, find, grace_s=timing.CLEANUP_GRACE_S)
        remove_shared_files(files)
        await asyncio.sleep(delay_s)
        self._events.put_nowait(RestartDue(name=name))

    async def _wait_for_join(self) -> None:
        """Ask each scheduler for its nodes until all are there; the start's limit bounds it."""
        wanted = {daemon.name for daemon in self._table.nodes}
        unsure = list(self._table.schedulers)
        while True:
            rows: Sequence[NodeRow] = ()
            with suppress(NodeUnavailable):  # asked again
                rows = await asyncio.to_thread(self._lister, unsure[0].grpc)
            if wanted <= {row.name for row in rows if row.state != "lost"}:
                if len(unsure) > 1:
                    del unsure[0]
                    continue
                for row in rows:
                    if row.state == "cordoned":  # by hand, in an earlier life of the cluster
                        self._report(f"{row.name}: {row.state_reason}; see 'pdd node uncordon'")
                self._events.put_nowait(AllJoined())
                return
            await asyncio.sleep(timing.MEMBERSHIP_POLL_S)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            self._events.put_nowait(Tick())

    def _on_tick(self) -> None:
        now_s = self._clock()
        for daemon in self._table.all:
            age_s = now_s - daemon.started_s
            if daemon.is_ready or not daemon.pid:
                continue
            if age_s > self._start_timeout_s:
                text = f"{daemon.name} was not ready within {self._start_timeout_s:g} s"
                if not self._is_cluster_ready:
                    raise StartFailed(f"{text}{daemon.log_tail()}")
                self._report(f"{text}; killed")
                send_signal([daemon.pid], signal.SIGKILL)  # its death leads to a restart
            elif now_s - daemon.mentioned_s >= timing.PROGRESS_INTERVAL_S:
                self._mention(daemon)
        first_s = min(daemon.started_s for daemon in self._table.all)
        if not self._is_cluster_ready and now_s - first_s > self._start_timeout_s:
            raise StartFailed(
                f"every daemon is ready, but the scheduler did not see every node join within "
                f"{self._start_timeout_s:g} s; see the logs in {self._state_dir.path / 'log'}"
            )

    def _mention(self, daemon: Daemon) -> None:
        daemon.mentioned_s = self._clock()
        self._report(f"{daemon.name}: {daemon.status}, {self._clock() - daemon.started_s:.0f} s")

    def _update_record(self, *, state: str = "") -> None:
        scheduler = self._table.scheduler
        self._record = replace(
            self._record,
            state=state or self._record.state,
            nodes=tuple(daemon.record() for daemon in self._table.all),
            grpc=scheduler.grpc or self._record.grpc,
            http=f"http://{scheduler.http}" if scheduler.http else self._record.http,
        )
        try:
            self._state_dir.write_record(self._record)
        except OSError as error:
            if not self._is_cluster_ready:
                raise
            # A full disk is no reason to stop a cluster that runs.
            self._report(f"cannot write {error.filename}: {error.strerror}; going on without")

    def _remember_shared_files(self) -> None:
        """A daemon and its engine may be killed at the same time, and then nobody can tell what
        they had mapped; so it is looked up while all is well."""
        self._shared_files |= shared_files(find_members(self._record.cluster_id))

    # Stopping -------------------------------------------------------------------------------

    async def _stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        with suppress(OSError):  # a full disk must not keep daemons alive
            self._update_record(state="stopping")
        await Shutdown(
            table=self._table,
            cluster_id=self._record.cluster_id,
            report=self._report,
            clock=self._clock,
            hurry=self._hurry,
        ).run(self._shared_files)

    def _background(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run beside the loop; its failure ends the loop."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._events.put_nowait(TaskFailed(error=error))
