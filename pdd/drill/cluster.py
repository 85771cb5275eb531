"""Three schedulers and synthetic nodes on this machine's loopback, each a process of this one.

Configured as ``pdd up`` does it, but nobody starts again what dies: the drill does, when it wants
to. Each scheduler reaches the others through wires that can be cut (``relay``). No process outlives
the ``async with``; if this process is killed, ``supervisor_guard`` ends them.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import aiohttp
import grpc.aio
import psutil

from pdd.config.load import load_config
from pdd.config.sources import Flag
from pdd.config.toml_text import to_toml
from pdd.control.versions import CHANNEL_OPTIONS as CONTROL_OPTIONS
from pdd.core.errors import PddError
from pdd.core.identity import Role
from pdd.daemon.replica_plan import begin_log_of
from pdd.daemon.supervisor_layout import SchedulerPorts, UpOptions, plan_cluster
from pdd.daemon.supervisor_members import end_members, find_members, start_ticks
from pdd.daemon.supervisor_plan import DaemonPlan, write_plans
from pdd.daemon.supervisor_process import Launcher, dismiss_guard, start_guard
from pdd.daemon.supervisor_state import ClusterRecord, StateDir, new_cluster_id
from pdd.drill.relay import Relay
from pdd.engine.synthetic.model import resolve_synthetic_model
from pdd.replication.grpc_options import CHANNEL_OPTIONS as RAFT_OPTIONS
from pdd.replication.local_group import free_ports
from pdd.rpc.v1 import cluster_pb2, cluster_pb2_grpc, raft_pb2, raft_pb2_grpc
from pdd.tls.security import PLAIN

SCHEDULERS = ("scheduler-0", "scheduler-1", "scheduler-2")
PREFILL_COUNT, DECODE_COUNT = 1, 2
STEP_S = 0.02
POLL_S = 0.02
_ASK_TIMEOUT_S = 1.0
_STOP_TIMEOUT_S = 30.0
_END_GRACE_S = 2.0
_SETTINGS = {"synthetic.step_s": str(STEP_S)}


class DrillStuckError(PddError):
    """The cluster did not come back; that is a failure of its own. The message says where to
    look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Led:
    """Who leads, and in which term."""

    name: str
    term: int


@dataclass(slots=True)
class _Member:
    plan: DaemonPlan
    process: subprocess.Popen[bytes] | None = None
    stopped_pids: tuple[int, ...] = ()


class DrillCluster:
    """``async with`` starts it all and waits for nothing; see ``until_whole``."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._ports = {
            name: SchedulerPorts(http=http, grpc=served, raft=raft)
            for name, (http, served, raft) in zip(
                SCHEDULERS, _threes(free_ports(3 * len(SCHEDULERS))), strict=True
            )
        }
        self._relays: dict[tuple[str, str], list[Relay]] = {}
        self._members: dict[str, _Member] = {}
        self._cluster_id = new_cluster_id()
        self._guarded: contextlib.ExitStack = contextlib.ExitStack()
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._http: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        try:
            self._begin_guard()
            plans = await self._plans()
            write_plans(plans)
            for plan in plans:
                if plan.role is Role.SCHEDULER:
                    begin_log_of(load_config(plan.config_path, environment={}, flags=()).config)
                self._members[plan.name] = _Member(plan)
            self._http = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(_ASK_TIMEOUT_S))
            for name in self._members:
                self.start(name)
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End every process that carries this cluster's id, also one that stands still."""
        find = partial(find_members, self._cluster_id)
        await asyncio.to_thread(end_members, find, grace_s=_END_GRACE_S)
        for member in self._members.values():
            if member.process is not None:
                member.process.kill()  # gone already, unless the machine is very busy
                await asyncio.to_thread(member.process.wait)
        if self._http is not None:
            await self._http.close()
        for channel in self._channels.values():
            await channel.close()
        for relay in self._all_relays():
            await relay.close()
        self._guarded.close()

    @property
    def urls(self) -> dict[str, str]:
        """HTTP endpoints of the schedulers by name."""
        return {name: f"http://127.0.0.1:{ports.http}" for name, ports in self._ports.items()}

    @property
    def nodes(self) -> list[str]:
        return [name for name in self._members if name not in SCHEDULERS]

    # Life and death

    def start(self, name: str) -> None:
        member = self._members[name]
        assert member.process is None, f"{name} runs already"
        launcher = Launcher(
            cluster_id=self._cluster_id, temporary_dir=self._temporary_dir, notify_socket=""
        )
        member.process = launcher.start(member.plan)

    async def kill(self, name: str) -> None:
        """SIGKILL; returns when the process is gone."""
        process = self._process(name)
        process.kill()
        await self._gone(name, process)

    async def stop(self, name: str) -> None:
        """SIGTERM, as an operator stops it; returns when the process is gone."""
        process = self._process(name)
        process.terminate()
        await self._gone(name, process)

    def freeze(self, name: str, *, with_children: bool) -> None:
        """SIGSTOP."""
        if with_children:
            self.freeze_replica(name)
        self._stop_pids(name, self._process(name).pid)

    def freeze_replica(self, name: str) -> None:
        """A scheduler's only child: it says nothing to the log any more, and itself goes on until
        it notices."""
        children = psutil.Process(self._process(name).pid).children(recursive=True)
        self._stop_pids(name, *(child.pid for child in children))

    def _stop_pids(self, name: str, *pids: int) -> None:
        member = self._members[name]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        member.stopped_pids = tuple(dict.fromkeys((*member.stopped_pids, *pids)))

    def thaw(self, name: str) -> None:
        """SIGCONT."""
        member = self._members[name]
        for pid in member.stopped_pids:
            os.kill(pid, signal.SIGCONT)
        member.stopped_pids = ()

    def cut_off(self, name: str) -> None:
        """No byte goes between this scheduler and the others any more."""
        for ends, relays in self._relays.items():
            if name in ends:
                for relay in relays:
                    relay.cut()

    def mend(self) -> None:
        """Everything that was stopped, cut or ended runs again."""
        for relay in self._all_relays():
            relay.mend()
        for name, member in self._members.items():
            if member.stopped_pids:
                self.thaw(name)
            if member.process is None:
                self.start(name)

    def check_alive(self) -> None:
        """Raises DrillStuckError: a daemon ended though nobody ended it."""
        for name, member in self._members.items():
            if member.process is not None and member.process.poll() is not None:
                raise DrillStuckError(
                    f"{name} ended by itself with status {member.process.returncode}; see "
                    f"{member.plan.log_path}"
                )

    # Asking

    async def until_whole(self, *, timeout_s: float) -> None:
        """Every scheduler serves and sees every node, and all replicas follow one leader.

        Raises: DrillStuckError.
        """
        why = "nothing was asked yet"
        try:
            async with asyncio.timeout(timeout_s):
                while why := await self._missing():
                    self.check_alive()
                    await asyncio.sleep(POLL_S)
        except TimeoutError as error:
            raise DrillStuckError(
                f"the cluster is not whole after {timeout_s:g} s: {why}; see {self.directory}/log"
            ) from error

    async def until_led(self, names: Collection[str], *, above_term: int, timeout_s: float) -> Led:
        """Who of these leads, by its own word.

        Raises: DrillStuckError.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    statuses = await self._statuses(names)
                    for name, status in statuses.items():
                        if status.role == "leader" and status.term > above_term:
                            return Led(name=name, term=status.term)
                    await asyncio.sleep(POLL_S)
        except TimeoutError as error:
            raise DrillStuckError(
                f"none of {', '.join(names)} leads after {timeout_s:g} s; see {self.directory}/log"
            ) from error

    async def decoding(self, scheduler: str, request_ids: Collection[str]) -> dict[str, str]:
        """Of these requests, those that this scheduler has the clients of and that a node decodes:
        which one."""
        address = f"127.0.0.1:{self._ports[scheduler].grpc}"
        stub = cluster_pb2_grpc.ClusterStub(self._channel(address, CONTROL_OPTIONS))
        found: dict[str, str] = {}
        for request_id in request_ids:
            try:
                told = await stub.LocateBlocks(
                    cluster_pb2.LocateBlocksRequest(what=request_id), timeout=_ASK_TIMEOUT_S
                )
            except grpc.aio.AioRpcError:
                continue  # it has ended
            if told.phase == "decoding" and not told.scheduler:
                found[request_id] = told.owner
        return found

    async def blocks_held(self) -> dict[str, str]:
        """Nodes at which a block is in use or amiss, or a request runs, by any scheduler's word."""
        held: dict[str, str] = {}
        for name, ports in self._ports.items():
            stub = cluster_pb2_grpc.ClusterStub(
                self._channel(f"127.0.0.1:{ports.grpc}", CONTROL_OPTIONS)
            )
            try:
                listed = await stub.ListNodes(
                    cluster_pb2.ListNodesRequest(), timeout=_ASK_TIMEOUT_S
                )
            except grpc.aio.AioRpcError as error:
                return {name: f"{name} gives no list of nodes: {error.details()}"}
            for node in listed.nodes:
                if said := _held(node):
                    held[node.identity.name] = f"{name} says: {said}"
        return held

    async def _missing(self) -> str:
        """What the cluster lacks; empty: nothing."""
        statuses = await self._statuses(SCHEDULERS)
        if silent := [name for name in SCHEDULERS if name not in statuses]:
            return f"the replicas of {', '.join(silent)} do not answer"
        leaders = [name for name, status in statuses.items() if status.role == "leader"]
        followed = {(status.leader, status.term) for status in statuses.values()}
        if len(leaders) != 1 or len(followed) != 1:
            return f"leaders {leaders}, followed {sorted(followed)}"
        for name, url in self.urls.items():
            assert self._http is not None, "entered"
            try:
                async with self._http.get(f"{url}/health") as response:
                    health = await response.json()
            except (aiohttp.ClientError, TimeoutError) as error:
                return f"{name} does not serve: {error!r}"
            ready = health["prefill_ready_count"], health["decode_ready_count"]
            if health["reason"] or ready != (PREFILL_COUNT, DECODE_COUNT):
                return f"{name} says: {health}"
        return ""

    async def _statuses(self, names: Iterable[str]) -> dict[str, raft_pb2.GetStatusResponse]:
        """Of those that answer."""
        async with asyncio.TaskGroup() as tasks:
            asked = {name: tasks.create_task(self._status(name)) for name in names}
        return {name: found for name, task in asked.items() if (found := task.result()) is not None}

    async def _status(self, name: str) -> raft_pb2.GetStatusResponse | None:
        address = f"127.0.0.1:{self._ports[name].raft}"
        stub = raft_pb2_grpc.ReplicaStub(self._channel(address, RAFT_OPTIONS))
        try:
            status: raft_pb2.GetStatusResponse = await stub.GetStatus(
                raft_pb2.GetStatusRequest(), timeout=_ASK_TIMEOUT_S
            )
        except grpc.aio.AioRpcError:
            return None
        return status

    # Helpers

    async def _plans(self) -> list[DaemonPlan]:
        model_path, model_name = resolve_synthetic_model(None, state_dir=self.directory)
        options = UpOptions(
            state_dir=self.directory,
            engine="synthetic",
            prefill_count=PREFILL_COUNT,
            decode_count=DECODE_COUNT,
            threads_per_node=1,
            schedulers=tuple(self._ports.values()),
            model_path=model_path,
            model_name=model_name,
            flags=tuple(
                Flag(name=name, text=text, spelling="pdd drill schedulers")
                for name, text in _SETTINGS.items()
            ),
        )
        cores = sorted(os.sched_getaffinity(0))
        plans = plan_cluster(options, cores=cores, gpus=(), environment={})
        return [await self._wired(plan) if plan.role is Role.SCHEDULER else plan for plan in plans]

    async def _wired(self, plan: DaemonPlan) -> DaemonPlan:
        """The scheduler reaches each other one through wires of its own."""
        tables = tomllib.loads(plan.config_text)
        for name in SCHEDULERS:
            if name == plan.name:
                continue
            ports = self._ports[name]
            raft, served = Relay(ports.raft), Relay(ports.grpc)
            self._relays[plan.name, name] = [raft, served]
            tables["raft"]["replicas"][name] = await raft.start()
            tables["raft"]["schedulers"][name] = await served.start()
        return replace(plan, config_text=to_toml(tables))

    def _begin_guard(self) -> None:
        self._temporary_dir.mkdir(mode=0o700)
        state_dir = StateDir.lock(self.directory)
        self._guarded.callback(state_dir.close)
        record = ClusterRecord(
            cluster_id=self._cluster_id,
            supervisor_pid=os.getpid(),
            supervisor_start_ticks=start_ticks(os.getpid()) or 0,
            temporary_dir=str(self._temporary_dir),
            state="ready",
        )
        self._guarded.callback(dismiss_guard, start_guard(state_dir, record))

    @property
    def _temporary_dir(self) -> Path:
        return self.directory / "tmp"

    def _all_relays(self) -> list[Relay]:
        return [relay for relays in self._relays.values() for relay in relays]

    def _process(self, name: str) -> "subprocess.Popen[bytes]":
        process = self._members[name].process
        assert process is not None, f"{name} does not run"
        return process

    async def _gone(self, name: str, process: "subprocess.Popen[bytes]") -> None:
        try:
            await asyncio.to_thread(process.wait, _STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            raise DrillStuckError(
                f"{name} still runs {_STOP_TIMEOUT_S:g} s after its signal; see "
                f"{self._members[name].plan.log_path}"
            ) from error
        self._members[name].process = None

    def _channel(self, address: str, options: Sequence[tuple[str, int]]) -> grpc.aio.Channel:
        if address not in self._channels:
            self._channels[address] = PLAIN.channel(address, options=options)
        return self._channels[address]


def _threes(ports: Sequence[int]) -> list[tuple[int, int, int]]:
    return [(ports[at], ports[at + 1], ports[at + 2]) for at in range(0, len(ports), 3)]


def _held(node: cluster_pb2.NodeInfo) -> str:
    """What is in use or wrong there."""
    blocks = node.blocks
    counts: Mapping[str, int] = {
        "active": blocks.active_count,
        "leased": blocks.leased_count,
        "quarantined": blocks.quarantined_count,
        "lost": blocks.lost_count,
        "doubled": blocks.doubled_count,
        "running": node.running_sequence_count,
        "waiting": node.waiting_sequence_count,
    }
    wrong = [f"{count} {what}" for what, count in counts.items() if count]
    if not blocks.total_count:
        wrong.append("its blocks were not counted yet")
    if node.state != "ready":
        wrong.append(f"it is {node.state}: {node.state_reason}")
    return ", ".join(wrong)
