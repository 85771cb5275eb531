"""A scheduler and nodes that talk over real gRPC on loopback; only the engines are scripted."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc

from pdd.control.cluster_server import ClusterServicer
from pdd.control.node_session import NodeSession
from pdd.control.scheduler_client import SchedulerLink
from pdd.control.versions import SERVER_OPTIONS
from pdd.core.identity import NodeIdentity, Role
from pdd.daemon.agreement import Agreement
from pdd.daemon.block_watch import BlockWatch
from pdd.daemon.cache_feed import CacheFeed
from pdd.daemon.directory_feed import DirectoryFeed
from pdd.daemon.node_health import NodeHealth
from pdd.daemon.node_jobs import NodeJobs
from pdd.daemon.node_peers import NodePeers
from pdd.daemon.node_service import NodeService
from pdd.daemon.scheduler_driver import SchedulerDriver
from pdd.directory.machine import DirectoryMachine
from pdd.rpc.v1 import cluster_pb2, cluster_pb2_grpc
from pdd.scheduler.core import SchedulerCore
from pdd.scheduler.settings import PathMode, PathSettings, SchedulerSettings
from pdd.transfer.peer_book import JoinSettings
from tests.builders import make_identity
from tests.sinks import GenerationEvent
from tests.unit.daemon.fake_engine import INFO, FakeEngine, letter_tokenizer

MODEL = "tiny"
WAIT_S = 10.0


class WatchedDriver(SchedulerDriver):
    """The real driver; ``news`` is set whenever a node is heard of."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.news = asyncio.Event()
        self.batches: list[int] = []
        self.detached: list[tuple[NodeIdentity, str]] = []

    def node_attached(self, session: NodeSession) -> None:
        super().node_attached(session)
        self.news.set()

    def node_said(self, session: NodeSession, message: cluster_pb2.NodeMessage) -> None:
        if message.WhichOneof("message") == "frames":
            self.batches.append(len(message.frames.frames))
        super().node_said(session, message)
        self.news.set()

    def node_detached(self, session: NodeSession, reason: str) -> None:
        super().node_detached(session, reason)
        self.detached.append((session.identity, reason))
        self.news.set()


class Scheduler:
    """Core, driver and gRPC server. The clock stands still unless the test moves it."""

    def __init__(self, *, agreement: Agreement | None = None, **settings: Any) -> None:
        self.now_s = 500.0
        self.machine = DirectoryMachine(max_key_count=10_000)
        self.directory = DirectoryFeed(machine=self.machine, clock=lambda: self.now_s)
        self.core = SchedulerCore(
            SchedulerSettings(path=PathSettings(mode=PathMode.DISAGGREGATED), **settings),
            directory=self.directory,
        )
        self.driver = WatchedDriver(
            core=self.core,
            directory=self.directory,
            clock=lambda: self.now_s,
            model=MODEL,
            agreement=agreement,
        )
        self.address = ""
        self._server: grpc.aio.Server | None = None
        self._following: asyncio.Task[None] | None = None

    async def start(self, address: str = "127.0.0.1:0") -> None:
        self._server = grpc.aio.server(options=SERVER_OPTIONS)
        cluster_pb2_grpc.add_ClusterServicer_to_server(ClusterServicer(self.driver), self._server)
        port = self._server.add_insecure_port(address)
        self.address = f"127.0.0.1:{port}"
        await self._server.start()
        self._following = asyncio.create_task(self.directory.run())

    async def stop(self) -> None:
        assert self._server is not None
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait([self._following])
            if not self._following.cancelled():
                self._following.result()
        await self._server.stop(grace=None)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits for news of nodes until ``condition`` holds."""
        async with asyncio.timeout(WAIT_S):
            while not condition():
                self.driver.news.clear()
                await self.driver.news.wait()

    def states(self) -> dict[str, str]:
        return {str(name): node.state.value for name, node in self.core.nodes.items()}


class Node:
    """A node daemon without its process: real jobs, service and link, a scripted engine."""

    def __init__(
        self,
        name: str,
        scheduler_address: str,
        *,
        boot_epoch: int = 1,
        uuid: str | None = None,
        join: JoinSettings | None = None,
    ) -> None:
        self.engine = FakeEngine(INFO)
        self.identity = make_identity(name, boot_epoch=boot_epoch, uuid=uuid)
        self.jobs = NodeJobs(
            engine=self.engine,
            tokenizer=letter_tokenizer(),
            clock=asyncio.get_running_loop().time,
            transfer_deadline_s=60.0,
        )
        self.peers = NodePeers(
            engine=self.engine,
            info=self.engine.info,
            settings=join or JoinSettings(),
            clock=asyncio.get_running_loop().time,
        )
        self.health = NodeHealth(lambda: self.peers.degraded_reason)
        self.cache = CacheFeed(
            engine=self.engine, info=self.engine.info, identity=self.identity, model=MODEL
        )
        self.service = NodeService(
            blocks=BlockWatch(self.engine.census),
            identity=self.identity,
            role=Role(name.split("-")[0]),
            address=f"{name}:1",
            model=MODEL,
            engine=self.engine,
            info=self.engine.info,
            jobs=self.jobs,
            peers=self.peers,
            health=self.health,
            cache=self.cache,
        )
        self.link = SchedulerLink(address=scheduler_address, handler=self.service)
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [
            asyncio.create_task(self.link.run()),
            asyncio.create_task(self.cache.run()),
        ]

    async def kill(self) -> None:
        """The stream breaks; the node's jobs end with it."""
        for task in self._tasks:
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                task.result()
        self._tasks = []
        self.jobs.cancel_all()
        await self.jobs.drained()


class GrpcCluster:
    """One scheduler and any number of nodes."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.nodes: list[Node] = []

    async def join(self, name: str, **fields: Any) -> Node:
        node = self.add(name, **fields)
        node.start()
        await self.scheduler.until(
            lambda: any(
                one.identity == node.identity and one.takes_work
                for one in self.scheduler.core.nodes.values()
            )
        )
        return node

    def add(self, name: str, **fields: Any) -> Node:
        node = Node(name, self.scheduler.address, **fields)
        self.nodes.append(node)
        return node


@contextlib.asynccontextmanager
async def grpc_cluster(**settings: Any) -> AsyncIterator[GrpcCluster]:
    scheduler = Scheduler(**settings)
    await scheduler.start()
    cluster = GrpcCluster(scheduler)
    try:
        yield cluster
    finally:
        for node in cluster.nodes:
            await node.kill()
        await cluster.scheduler.stop()


class Client:
    """Reads one request's events in the background."""

    def __init__(self, events: AsyncIterator[GenerationEvent]) -> None:
        self.events: list[GenerationEvent] = []
        self._source = events
        self._came = asyncio.Event()
        self.task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        try:
            async for event in self._source:
                self.events.append(event)
                self._came.set()
        finally:
            await self._source.aclose()  # type: ignore[attr-defined]

    async def seen(self, count: int) -> list[GenerationEvent]:
        """Waits for so many events."""
        async with asyncio.timeout(WAIT_S):
            while len(self.events) < count:
                self._came.clear()
                await self._came.wait()
        return self.events

    async def all(self) -> list[GenerationEvent]:
        """Waits for the end; raises the request's error."""
        await asyncio.wait_for(self.task, timeout=WAIT_S)
        return self.events

    async def leave(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])
