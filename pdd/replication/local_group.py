"""Replica processes on this machine's loopback, for the benchmark, the drill and tests."""

from __future__ import annotations

import asyncio
import json
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import grpc.aio

from pdd.core.errors import NodeUnavailable
from pdd.replication.grpc_options import CHANNEL_OPTIONS
from pdd.replication.replica_main import ROLES_FILE
from pdd.rpc.v1 import raft_pb2 as pb
from pdd.rpc.v1.raft_pb2_grpc import ReplicaStub
from pdd.tls.security import PLAIN

POLL_S = 0.02


@dataclass(slots=True)
class _Member:
    name: str
    address: str
    data_dir: Path
    process: subprocess.Popen[bytes] | None = None
    is_stopped: bool = False
    has_started_before: bool = False


class LocalGroup:
    """``async with``: no process outlives it."""

    def __init__(
        self, directory: Path, *, count: int = 3, driver: Mapping[str, float] | None = None
    ) -> None:
        """``driver``: fields of `DriverSettings`, for every replica."""
        self.directory = directory
        self._driver = dict(driver or {})
        self.cluster_id = f"local-{secrets.token_hex(4)}"
        ports = free_ports(count)
        self._members = {
            name: _Member(name, f"127.0.0.1:{port}", directory / name)
            for name, port in zip((f"replica-{n}" for n in range(count)), ports, strict=True)
        }
        self._channels: dict[str, grpc.aio.Channel] = {}

    async def __aenter__(self) -> Self:
        try:
            for name in self.names:
                self.start(name)
        except BaseException:  # cancellation too: no __aexit__ follows an __aenter__ that raises
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
        for name in self.names:
            await self.kill(name)
        for channel in self._channels.values():
            await channel.close()

    @property
    def names(self) -> list[str]:
        return list(self._members)

    @property
    def addresses(self) -> dict[str, str]:
        return {name: member.address for name, member in self._members.items()}

    def data_dir(self, name: str) -> Path:
        return self._members[name].data_dir

    def running(self) -> list[str]:
        return [n for n, m in self._members.items() if m.process is not None and not m.is_stopped]

    # Life and death

    def start(self, name: str) -> None:
        member = self._members[name]
        assert member.process is None, f"{name} runs already"
        settings = {
            "node": name,
            "addresses": self.addresses,
            "cluster_id": self.cluster_id,
            "data_dir": str(member.data_dir),
            "is_new_cluster": not member.has_started_before,
            **self._driver,
        }
        member.has_started_before = True
        with (self.directory / f"{name}.log").open("ab") as output:
            # Popen uses vfork. uvloop's own way is fork, which may hang in a process whose gRPC
            # threads hold locks at that moment (seen: a child that never got to exec).
            member.process = subprocess.Popen(  # noqa: S603 -- our own module
                [sys.executable, "-m", "pdd.replication.replica_main", json.dumps(settings)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    async def kill(self, name: str) -> None:
        """SIGKILL, stopped or not; returns when the process is gone."""
        member = self._members[name]
        if member.process is None:
            return
        member.process.kill()
        await asyncio.to_thread(member.process.wait)
        member.process, member.is_stopped = None, False

    def freeze(self, name: str) -> None:
        """SIGSTOP."""
        self._signal(name, signal.SIGSTOP)
        self._members[name].is_stopped = True

    def thaw(self, name: str) -> None:
        self._signal(name, signal.SIGCONT)
        self._members[name].is_stopped = False

    def revive(self, name: str) -> None:
        """Thaw it if it is frozen, start it if it is dead."""
        if self._members[name].is_stopped:
            self.thaw(name)
        else:
            self.start(name)

    def _signal(self, name: str, number: signal.Signals) -> None:
        process = self._members[name].process
        assert process is not None, f"{name} does not run"
        process.send_signal(number)

    def died_by_itself(self) -> list[str]:
        """Replicas that ended though nobody killed them; their logs say why."""
        return [
            name
            for name, member in self._members.items()
            if member.process is not None and member.process.poll() is not None
        ]

    # Asking

    def stub(self, name: str) -> ReplicaStub:
        if name not in self._channels:
            address = self._members[name].address
            self._channels[name] = PLAIN.channel(address, options=CHANNEL_OPTIONS)
        return ReplicaStub(self._channels[name])

    async def status(self, name: str) -> pb.GetStatusResponse | None:
        """None: it does not answer."""
        try:
            status: pb.GetStatusResponse = await self.stub(name).GetStatus(
                pb.GetStatusRequest(), timeout=1.0
            )
        except grpc.aio.AioRpcError:
            return None
        return status

    async def leader(self, *, timeout_s: float) -> str:
        """Who leads in the highest term, as the replicas themselves say.

        Raises: NodeUnavailable.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    statuses = [await self.status(name) for name in self.running()]
                    leaders = [s for s in statuses if s is not None and s.role == "leader"]
                    if leaders:
                        name: str = max(leaders, key=lambda s: s.term).replica
                        return name
                    await asyncio.sleep(POLL_S)
        except TimeoutError as error:
            raise NodeUnavailable(
                f"no replica leads after {timeout_s} s; see {self.directory}/*.log"
            ) from error

    def leaders_by_term(self) -> dict[int, set[str]]:
        """Everybody who ever led, as they wrote down themselves."""
        leaders: dict[int, set[str]] = {}
        for name in self.names:
            path = self.directory / f"{name}-{ROLES_FILE}"
            for line in path.read_text().splitlines() if path.exists() else ():
                change = json.loads(line)
                if change["role"] == "leader":
                    leaders.setdefault(change["term"], set()).add(change["node"])
        return leaders


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago; another process may take one before we do, and the
    replica then says so."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()
