"""``pdd serve --role prefill|decode``: one engine, its links to schedulers and peers."""

import asyncio
import gc
import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import structlog
import uvloop
from tokenizers import Tokenizer

from pdd.config.sections import Config, EngineKind
from pdd.config.types import HostPort
from pdd.control.peers import PeerClient, PeerServicer
from pdd.control.scheduler_client import SchedulerLink
from pdd.control.versions import SERVER_OPTIONS
from pdd.core.errors import ConfigError
from pdd.core.identity import NodeIdentity, NodeName
from pdd.core.ports import Clock
from pdd.daemon import collector, notify
from pdd.daemon.block_watch import BlockWatch
from pdd.daemon.cache_feed import CacheFeed
from pdd.daemon.core_claims import CoreClaims
from pdd.daemon.descendants import end_descendants
from pdd.daemon.grpc_extras import add_health_and_reflection
from pdd.daemon.held_jobs import HoldLimits
from pdd.daemon.identity_file import next_identity
from pdd.daemon.node_engine import load_tokenizer, make_engine
from pdd.daemon.node_health import NodeHealth
from pdd.daemon.node_jobs import NodeJobs
from pdd.daemon.node_peers import NodePeers, join_settings
from pdd.daemon.node_service import NodeService
from pdd.daemon.security import bind_members, member_security
from pdd.daemon.served_model import model_folder
from pdd.daemon.signals import first_of, stop_on_signals
from pdd.daemon.state_dir import state_dir_of
from pdd.engine.port import Engine, EngineFailed, EngineInfo
from pdd.rpc.v1 import node_pb2, node_pb2_grpc
from pdd.tls.light_io import use_light_io
from pdd.transfer.devices import check_devices

log = structlog.get_logger(__name__)

_STATUS_CHECK_INTERVAL_S = 0.1
_INTERRUPT_LIMIT_S = 3.0


def run(config: Config) -> int:
    """Serve until a signal comes or the engine dies; the exit status."""
    use_light_io()
    return uvloop.run(_NodeDaemon(config, clock=time.monotonic).serve())


def keep_to_cores(cores: tuple[int, ...]) -> None:
    """Bind this process and the engine's, which inherit it. No cores: leave it as it is.

    vLLM binds only its workers' threads. An engine core that polls for blocks takes most of a
    core, and must take it from its own node, not from a prefill node beside it: measured, a
    1000-token prompt took 3.7 s instead of 1.8 s.

    Raises:
        ConfigError: this process may not use these cores.
    """
    if not cores:
        return
    allowed = os.sched_getaffinity(0)
    if not allowed.issuperset(cores):
        raise ConfigError(
            f"node.cpu_cores is {list(cores)}, this process may use {sorted(allowed)}"
        )
    os.sched_setaffinity(0, cores)


class _NodeDaemon:
    def __init__(self, config: Config, *, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._rpc_dir = Path()

    async def serve(self) -> int:
        stop = stop_on_signals()
        keep_to_cores(self._config.node.cpu_cores)
        check_devices(self._config.transfer.devices)
        tokenizer = load_tokenizer(model_folder(self._config.engine))
        identity = next_identity(state_dir_of(self._config), NodeName(self._config.node.name))
        self._rpc_dir = Path(tempfile.mkdtemp(prefix="pdd-"))
        engine = make_engine(
            self._config,
            identity=identity,
            tokenizer=tokenizer,
            clock=self._clock,
            rpc_dir=self._rpc_dir,
        )
        try:
            info = await self._start_engine(engine, stop)
            if info is None:
                return 0 if stop.is_set() else 1
            return await self._serve_engine(engine, info, identity, tokenizer, stop)
        finally:
            notify.notify_stopping()
            await engine.stop()
            for pid in await asyncio.to_thread(end_descendants):
                log.warning("engine_process_killed", pid=pid)
            shutil.rmtree(self._rpc_dir, ignore_errors=True)
            gc.freeze()  # else the interpreter's last collection takes seconds (torch, vLLM)

    async def _start_engine(self, engine: Engine, stop: asyncio.Event) -> EngineInfo | None:
        notify.notify_status("loading model")
        started_s = self._clock()
        start: asyncio.Task[EngineInfo] = asyncio.create_task(engine.start())
        limit_s = self._config.engine.start_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                await first_of(stop, start)
        except TimeoutError:
            log.error("engine_start_too_slow", limit_s=limit_s)  # noqa: TRY400
        if not start.done():
            await self._interrupt_start(start, stop)
        try:
            info = start.result()
        except EngineFailed as error:
            if not stop.is_set():
                log.error("engine_start_failed", reason=str(error))  # noqa: TRY400 - the reason says it
            return None
        if stop.is_set():
            return None
        log.info(
            "engine_ready",
            duration_s=round(self._clock() - started_s, 1),
            block_count=info.block_count,
            block_size=info.block_size,
            block_bytes=info.block_bytes,
        )
        return info

    async def _interrupt_start(
        self, start: "asyncio.Task[EngineInfo]", stop: asyncio.Event
    ) -> None:
        """vLLM cannot be interrupted while it loads, its processes can, as soon as they are there.

        Importing it takes seconds in which there is nothing to end yet; past the limit the daemon
        leaves without waiting.
        """
        last_s = self._clock() + _INTERRUPT_LIMIT_S
        while not start.done():
            await asyncio.to_thread(end_descendants)
            await asyncio.wait([start], timeout=0.2)
            if self._clock() > last_s and not start.done():
                log.warning("engine_start_abandoned")
                end_descendants()
                shutil.rmtree(self._rpc_dir, ignore_errors=True)
                os._exit(0 if stop.is_set() else 1)

    async def _serve_engine(
        self,
        engine: Engine,
        info: EngineInfo,
        identity: NodeIdentity,
        tokenizer: Tokenizer,
        stop: asyncio.Event,
    ) -> int:
        jobs = NodeJobs(
            engine=engine,
            tokenizer=tokenizer,
            clock=self._clock,
            transfer_deadline_s=self._config.transfer.deadline_s,
            hold_limits=HoldLimits(
                grace_s=self._config.resume.grace_s,
                sequence_tokens_max=self._config.resume.sequence_tokens_max,
                tokens_max=self._config.resume.tokens_max,
            ),
        )
        security = member_security(self._config)
        server = grpc.aio.server(options=SERVER_OPTIONS)
        relay = PeerServicer(
            identity=identity,
            rank_count=len(info.ucx_addresses),
            deliver=engine.deliver_control,
            security=security,
        )
        node_pb2_grpc.add_NodeServicer_to_server(relay, server)
        await add_health_and_reflection(
            server, node_pb2.DESCRIPTOR.services_by_name["Node"].full_name
        )
        bound = bind_members(server, self._config.grpc.listen, security)
        address = str(HostPort(self._config.grpc.advertise or bound.host, bound.port))
        await server.start()
        peers = PeerClient(identity=identity, own_address=address, security=security)
        engine.on_control(peers.send)
        node_peers = NodePeers(
            engine=engine,
            info=info,
            settings=await asyncio.to_thread(join_settings, self._config, os.environ),
            clock=self._clock,
        )
        claims = self._core_claims()
        blocks = BlockWatch(engine.census)
        health = NodeHealth(
            lambda: blocks.degraded_reason,
            lambda: "" if claims is None else claims.degraded_reason,
            lambda: node_peers.degraded_reason,
        )
        cache = CacheFeed(
            engine=engine,
            info=info,
            identity=identity,
            model=self._config.engine.served_model_name,
        )
        service = NodeService(
            identity=identity,
            role=self._config.node.role,
            is_role_pinned=self._config.node.pin_role,
            address=address,
            model=self._config.engine.served_model_name,
            engine=engine,
            info=info,
            jobs=jobs,
            peers=node_peers,
            health=health,
            blocks=blocks,
            cache=cache,
            refused_caller_count=lambda: relay.refused_caller_count,
            offers_held=len(self._config.node.schedulers) == 1,
        )
        links = [
            SchedulerLink(address=str(scheduler), handler=service, security=security)
            for scheduler in self._config.node.schedulers
        ]
        tasks = [asyncio.create_task(link.run()) for link in links]
        looks = [node_peers.look, blocks.look, health.look]
        if claims is not None:
            looks.insert(0, claims.look)
        tasks.append(
            asyncio.create_task(self._report_status(service, looks, node_peers.ask, links))
        )
        tasks.append(asyncio.create_task(jobs.wait_crashed()))
        tasks.append(asyncio.create_task(cache.run()))
        failed = asyncio.create_task(engine.wait_failed())
        collector.settle()
        notify.notify_ready(grpc=address)
        try:
            await first_of(stop, failed, *tasks)
            for background in tasks:
                if background.done():
                    background.result()  # a bug: let it end the process
            if failed.done():
                log.error("engine_died", reason=failed.result())
                return 1
            return 0
        finally:
            for task in (failed, *tasks):
                task.cancel()
            await asyncio.wait(tasks)
            if claims is not None:
                claims.close()
            jobs.cancel_all()
            await jobs.drained()
            await peers.close()
            await server.stop(grace=0.5)

    def _core_claims(self) -> CoreClaims | None:
        """For an engine whose threads spin on their cores: not a GPU's, not the synthetic one."""
        node = self._config.node
        if self._config.engine.kind is not EngineKind.VLLM or node.gpus:
            return None
        cores = node.cpu_cores or os.sched_getaffinity(0)
        # By its process too: nodes of other clusters have the same names.
        return CoreClaims(cores, name=f"{node.name} (pid {os.getpid()})", clock=self._clock)

    async def _report_status(
        self,
        service: NodeService,
        looks: list[Callable[[], None]],
        ask: Callable[[], None],
        links: list[SchedulerLink],
    ) -> None:
        """A heartbeat at fixed intervals, and news within a tenth of a second.

        ``looks``: in their order before each heartbeat. ``ask``: about a tenth of a second before,
        for what is answered later.
        """
        interval_s = min(
            self._config.node.status_interval_s, notify.watchdog_interval_s() or math.inf
        )
        while True:
            for look in looks:
                look()
            for link in links:
                service.send_status(link)
            notify.notify_watchdog()
            next_s = self._clock() + interval_s
            while (left_s := next_s - self._clock()) > 0:
                if left_s <= _STATUS_CHECK_INTERVAL_S:
                    ask()
                await asyncio.sleep(min(_STATUS_CHECK_INTERVAL_S, interval_s))
                for link in links:
                    service.send_status_if_changed(link)
