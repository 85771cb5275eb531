"""One replica in one process: disk, core, driver, network and services put together.

Replica(settings, machine, query).run()     until stop(); raises what must end the process
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import grpc.aio
import structlog

from pdd.core.errors import ConfigError
from pdd.raft.config import RaftConfig
from pdd.raft.core import RaftCore
from pdd.raft.machine import Applier, StateMachine
from pdd.raft.sessions import SessionedStateMachine
from pdd.raft.state import Role
from pdd.raft.values import NO_SNAPSHOT, NodeId
from pdd.replication.client_service import ClientService
from pdd.replication.directory_lock import DirectoryLock
from pdd.replication.driver import Driver, DriverSettings
from pdd.replication.filesystem import OsFileSystem
from pdd.replication.grpc_options import SERVER_OPTIONS
from pdd.replication.peer_service import PeerService
from pdd.replication.storage import open_storage
from pdd.replication.transport import Transport
from pdd.replication.watching import WatchedMachine
from pdd.rpc.v1.raft_pb2_grpc import (
    add_RaftServicer_to_server,
    add_ReplicaServicer_to_server,
)
from pdd.tls.loopback import refuse_plain_beyond_loopback
from pdd.tls.security import PLAIN, Security

log = structlog.get_logger(__name__)

ELECTION_TICKS = 20
HEARTBEAT_TICKS = 2
"""With the driver's tick of 50 ms: heartbeats each 100 ms, election timeouts from 1 to 2 s."""
ALONE_ELECTION_TICKS = 3
ALONE_HEARTBEAT_TICKS = 1
"""Of a group of one, which waits for nobody."""
SESSION_IDLE_MS_MAX = 15 * 60 * 1000
SESSIONS_MAX = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSettings:
    node: NodeId
    addresses: Mapping[NodeId, str]
    """``host:port`` of every voter, this one included; peers and clients use the same port. A group
    of one may have port 0: the system picks one, and ``on_listening`` is told."""
    cluster_id: str
    data_dir: Path
    is_new_cluster: bool
    """The directory may be empty. Say it once in a cluster's life, never for a lost disk."""
    driver: DriverSettings = field(default_factory=DriverSettings)
    security: Security = PLAIN
    """Over TLS each replica's certificate is a scheduler's of its own name."""


class Replica:
    def __init__(
        self,
        settings: ReplicaSettings,
        machine: StateMachine,
        query: Callable[[bytes], bytes],
        *,
        on_role: Callable[[Role, int], None] = lambda role, term: None,
        on_listening: Callable[[str], None] = lambda address: None,
        on_leader: Callable[[NodeId | None, int], None] = lambda leader, term: None,
    ) -> None:
        """Opens the disk and recovers. Needs a running loop.

        Raises: ConfigError, StorageError.
        """
        if settings.security.is_plain:
            refuse_plain_beyond_loopback(
                settings.addresses.values(), key="raft", is_localhost_taken=False
            )
        self._settings = settings
        self._addresses = dict(settings.addresses)
        self._on_listening = on_listening
        is_alone = len(settings.addresses) == 1
        self._config = RaftConfig(
            node=settings.node,
            voters=tuple(settings.addresses),
            cluster_id=settings.cluster_id,
            election_ticks=ALONE_ELECTION_TICKS if is_alone else ELECTION_TICKS,
            heartbeat_ticks=ALONE_HEARTBEAT_TICKS if is_alone else HEARTBEAT_TICKS,
        )
        # Never released: it ends with the process, so nobody else gets in while a write is on.
        self._lock = DirectoryLock(settings.data_dir)
        storage, restart = open_storage(
            OsFileSystem(settings.data_dir), self._config, may_create=settings.is_new_cluster
        )
        self._watched = WatchedMachine(machine)
        applier = Applier(
            machine=SessionedStateMachine(
                self._watched, idle_ms_max=SESSION_IDLE_MS_MAX, max_sessions=SESSIONS_MAX
            ),
            hash_interval=self._config.state_hash_interval,
        )
        if restart.snapshot is not None:
            applier.restore(restart.snapshot)
        rng = random.Random()  # noqa: S311 -- spreads timeouts, guards nothing
        core = RaftCore(
            self._config,
            rng=rng,
            hard_state=restart.hard_state,
            snapshot=restart.snapshot.meta if restart.snapshot is not None else NO_SNAPSHOT,
            entries=restart.entries,
        )
        self.transport = Transport(
            self._config, settings.addresses, rng=rng, security=settings.security
        )
        self.driver = Driver(
            core=core,
            storage=storage,
            applier=applier,
            outbound=self.transport,
            query=query,
            addresses=self._addresses,
            clock=time.monotonic,
            wall_clock_ms=lambda: time.time_ns() // 1_000_000,
            settings=settings.driver,
            saved_snapshot=restart.snapshot,
            on_role=on_role,
            on_leader=on_leader,
        )
        self.transport.report_snapshot = self.driver.report_snapshot

    async def run(self) -> None:
        """Serve until `stop`. Raises: ConfigError (the port is taken), StorageError,
        DivergenceError."""
        server = grpc.aio.server(options=SERVER_OPTIONS)
        security = self._settings.security
        peers = PeerService(self._config, self.driver, security=security)
        add_RaftServicer_to_server(peers, server)
        clients = ClientService(self.driver, self._watched, security=security)
        add_ReplicaServicer_to_server(clients, server)
        node = self._settings.node
        address = self._addresses[node]
        try:
            port = security.bind(server, address)
        except RuntimeError as error:
            raise ConfigError(f"raft: cannot listen on {address}: {error}") from error
        if address.endswith(":0"):
            # The driver reads the same mapping for its hints.
            self._addresses[node] = f"{address[:-2]}:{port}"
        await server.start()
        self._on_listening(self._addresses[node])
        sending = asyncio.create_task(self.transport.run())
        driving = asyncio.create_task(self.driver.run())
        try:
            done, _ = await asyncio.wait({sending, driving}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            sending.cancel()
            self.driver.stop()
            # Nobody is acknowledged from here on; what was not answered is unknown to its client.
            await server.stop(grace=None)
            with contextlib.suppress(asyncio.CancelledError):
                await sending
            await driving

    def stop(self) -> None:
        self.driver.stop()
