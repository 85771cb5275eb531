"""``pdd serve --role scheduler``: the front door, the nodes' streams and the scheduler core."""

import asyncio
import time
from pathlib import Path

import grpc
import structlog
import uvloop

from pdd.cell.sequences import SequenceTable
from pdd.config.sections import Config
from pdd.control.cluster_server import ClusterServicer
from pdd.control.leader_cluster import LeaderCluster
from pdd.control.leader_server import DecisionsServicer
from pdd.control.runs_client import RunsClient
from pdd.control.runs_server import RunsServicer
from pdd.control.settings_server import SettingsServicer
from pdd.control.versions import SERVER_OPTIONS
from pdd.core.errors import PddError
from pdd.core.identity import Role
from pdd.core.ports import Clock
from pdd.daemon import collector, notify
from pdd.daemon.agreement_metrics import AgreementMetrics
from pdd.daemon.directory_feed import DirectoryFeed
from pdd.daemon.elsewhere_desk import ElsewhereDesk
from pdd.daemon.group_desk import GroupDesk
from pdd.daemon.grpc_extras import add_health_and_reflection
from pdd.daemon.replica_desk import ReplicaDesk
from pdd.daemon.replica_plan import replica_plan
from pdd.daemon.replicated_agreement import ReplicatedAgreement
from pdd.daemon.scheduler_driver import SchedulerDriver
from pdd.daemon.scheduler_metrics import ClusterMetrics
from pdd.daemon.scheduler_settings import scheduler_settings
from pdd.daemon.scheduler_tokenizer import make_tokenizer
from pdd.daemon.security import bind_members, bind_public, member_security, public_tls
from pdd.daemon.security_metrics import SecurityMetrics
from pdd.daemon.served_model import served_model
from pdd.daemon.settings_desk import SettingsDesk
from pdd.daemon.signals import first_of, stop_on_signals
from pdd.directory.machine import DirectoryMachine
from pdd.gateway.front import Front
from pdd.gateway.grpc_inference import InferenceServicer
from pdd.gateway.metrics import GatewayMetrics
from pdd.gateway.served import Health, ServedModel
from pdd.gateway.server import FrontServer, make_front, make_runs
from pdd.gateway.server import serve as serve_http
from pdd.gateway.settings import GatewaySettings
from pdd.model.digest import tokenizer_digest
from pdd.rpc.v1 import (
    cluster_pb2,
    cluster_pb2_grpc,
    decisions_pb2_grpc,
    inference_pb2,
    runs_pb2_grpc,
    settings_pb2_grpc,
)
from pdd.scheduler.core import SchedulerCore
from pdd.tls.light_io import use_light_io
from pdd.tls.public import PublicTls
from pdd.tls.security import Security

log = structlog.get_logger(__name__)

_NAMES_SHOWN_MAX = 8


def run(config: Config) -> int:
    """Serve until a signal comes; the exit status."""
    use_light_io()
    with replica_plan(config) as plan:
        sequences = SequenceTable()
        agreement = ReplicatedAgreement(plan, clock=time.monotonic, sequences=sequences)
        daemon = _SchedulerDaemon(config, agreement, sequences, clock=time.monotonic)
        return uvloop.run(daemon.serve())


class _SchedulerDaemon:
    def __init__(
        self,
        config: Config,
        agreement: ReplicatedAgreement,
        sequences: SequenceTable,
        *,
        clock: Clock,
    ) -> None:
        self._config = config
        self._clock = clock
        self._agreement = agreement
        self._sequences = sequences
        self._group: GroupDesk | None = None
        self._elsewhere: ElsewhereDesk | None = None
        self._runs_client: RunsClient | None = None
        self._model: ServedModel = served_model(config.engine)
        directory = DirectoryFeed(
            machine=DirectoryMachine(max_key_count=config.scheduler.directory_limit_blocks),
            clock=clock,
        )
        self._driver = SchedulerDriver(
            core=SchedulerCore(scheduler_settings(config), directory=directory),
            directory=directory,
            clock=clock,
            model=self._model.name,
            tokenizer_digest=tokenizer_digest(Path(config.engine.model)),
            agreement=agreement,
            sequences=sequences,
            config=config,
        )

    async def serve(self) -> int:
        """Raises PddError; first of all what keeps the replica from running."""
        agreeing = asyncio.create_task(self._agreement.run())
        try:
            return await self._serve(agreeing)
        finally:
            agreeing.cancel()
            await asyncio.wait({agreeing})  # the replica ends before its socket's folder does

    async def _serve(self, agreeing: asyncio.Task[None]) -> int:
        stop = stop_on_signals()
        settings = _gateway_settings(self._config)
        metrics = GatewayMetrics()
        ClusterMetrics(self._driver, registry=metrics.registry)
        AgreementMetrics(self._agreement, self._sequences, registry=metrics.registry)
        tokenizer = await asyncio.to_thread(make_tokenizer, self._config.engine)
        security, public = member_security(self._config), public_tls(self._config)
        if self._config.raft.replicas:
            self._join_group(security)
        runs = make_runs(
            inference=self._driver,
            settings=settings,
            clock=self._clock,
            seek=None if self._group is None else self._driver.seek,
            elsewhere=self._elsewhere,
        )
        self._driver.take_over_with(runs.adopt)
        if self._elsewhere is not None:
            self._elsewhere.serve(runs)
        inference = InferenceServicer(
            inference=self._driver,
            runs=runs,
            tokenizer=tokenizer,
            model=self._model,
            settings=settings,
            metrics=metrics,
            clock=self._clock,
        )
        cluster = ClusterServicer(
            self._driver,
            security=security,
            group=ReplicaDesk(self._agreement),
            leader=None
            if self._group is None
            else LeaderCluster(
                self._group.leader_address,
                name=self._config.node.name,
                addresses=self._addresses(),
                security=security,
            ),
        )
        SecurityMetrics(
            security,
            refused_caller_count=lambda: cluster.refused_caller_count,
            registry=metrics.registry,
        )
        server = grpc.aio.server(options=SERVER_OPTIONS)
        cluster_pb2_grpc.add_ClusterServicer_to_server(cluster, server)
        settings_pb2_grpc.add_SettingsServicer_to_server(
            SettingsServicer(
                SettingsDesk(config=self._config, agreement=self._agreement),
                stale_reason=lambda: self._driver.stale_reason,
                security=security,
            ),
            server,
        )
        inference.add_to_server(server)
        await add_health_and_reflection(
            server,
            inference_pb2.DESCRIPTOR.services_by_name["Inference"].full_name,
            cluster_pb2.DESCRIPTOR.services_by_name["Cluster"].full_name,
        )
        if self._group is not None:
            decisions_pb2_grpc.add_DecisionsServicer_to_server(
                DecisionsServicer(self._group, security=security), server
            )
        if self._elsewhere is not None:
            runs_pb2_grpc.add_RunsServicer_to_server(
                RunsServicer(self._elsewhere, security=security), server
            )
        await self._agree(agreeing)
        grpc_address = str(bind_members(server, self._config.grpc.listen, security))
        public_server = await self._make_public_server(inference, public)
        front = make_front(
            inference=self._driver,
            runs=runs,
            tokenizer=tokenizer,
            model=self._model,
            settings=settings,
            health=self._health,
            metrics=metrics,
            clock=self._clock,
        )
        http_server, http_address = await self._serve_http(front, public)
        servers = [server] if public_server is None else [server, public_server]
        for one in servers:
            await one.start()
        runs.opened()
        background = [
            agreeing,
            asyncio.create_task(self._driver.tick()),
            asyncio.create_task(self._driver.wait_crashed()),
            asyncio.create_task(self._driver.directory.run()),
            asyncio.create_task(_watchdog()),
        ]
        if self._group is not None and self._elsewhere is not None:
            self._group.on_key_told = self._elsewhere.key_told
            self._agreement.follow_leader(self._elsewhere.leader_is)
            self._agreement.follow_leader(self._group.leader_is)
        collector.settle()
        log.info("scheduler_ready", http=http_address, grpc=grpc_address, model=self._model.name)
        notify.notify_ready(grpc=grpc_address, http=http_address)
        try:
            await first_of(stop, *background)
            for task in background:
                if task.done():
                    task.result()  # a bug: let it end the process
            return 0
        finally:
            notify.notify_stopping()
            self._agreement.hand_over()
            log.info("scheduler_stopping", open_requests=self._driver.running_request_count)
            async with asyncio.TaskGroup() as stopping:
                stopping.create_task(http_server.stop())
                stopping.create_task(inference.stop(grace_s=settings.shutdown_grace_s))
            async with asyncio.TaskGroup() as stopping:
                for one in servers:
                    stopping.create_task(one.stop(grace=0.5))
            for task in background:
                task.cancel()
            if self._group is not None:
                await self._group.close()
            if self._runs_client is not None:
                await self._runs_client.close()
            tokenizer.close()

    def _addresses(self) -> dict[str, str]:
        """Of all schedulers, by name."""
        return {name: str(address) for name, address in self._config.raft.schedulers.items()}

    def _join_group(self, security: Security) -> None:
        name, addresses = self._config.node.name, self._addresses()
        self._group = self._driver.join_group(
            name=name, addresses=addresses, security=security, say=self._agreement.say_soft
        )
        desk = self._driver.sequence_desk
        assert desk is not None, "a group has one"
        self._agreement.follow_soft(heard=desk.heard, lost=desk.lost)
        self._runs_client = RunsClient(
            scheduler=name,
            addresses=addresses,
            crashed=self._driver.note_crash,
            security=security,
        )
        self._elsewhere = ElsewhereDesk(
            name=name,
            group=self._group,
            table=self._sequences,
            client=self._runs_client,
            clock=self._clock,
            run_s_max=self._config.scheduler.request_deadline_s,
        )

    async def _agree(self, agreeing: asyncio.Task[None]) -> None:
        """Nobody is served before cordons are known. Raises what ended the replica."""
        ready = asyncio.create_task(self._agreement.ready())
        await asyncio.wait({ready, agreeing}, return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            ready.cancel()
            await agreeing

    async def _make_public_server(
        self, inference: InferenceServicer, public: PublicTls | None
    ) -> grpc.aio.Server | None:
        """For clients that are no members: nothing of the cluster is served there."""
        listen = self._config.grpc.public_listen
        if listen is None:
            return None
        server = grpc.aio.server(options=SERVER_OPTIONS)
        inference.add_to_server(server)
        await add_health_and_reflection(
            server, inference_pb2.DESCRIPTOR.services_by_name["Inference"].full_name
        )
        address = bind_public(server, listen, public)
        log.info("public_grpc_ready", grpc=str(address), tls=public is not None)
        return server

    async def _serve_http(self, front: Front, public: PublicTls | None) -> tuple[FrontServer, str]:
        listen = self._config.http.listen
        tls = None if public is None else public.http_context()
        try:
            server = await serve_http(front, host=listen.host, port=listen.port, tls=tls)
        except OSError as error:
            raise PddError(f"http.listen: cannot bind {listen}: {error}") from error
        return server, f"{listen.host}:{server.port}"

    def _health(self) -> Health:
        prefill_count, decode_count = self._driver.ready_counts()
        reason = self._driver.not_ready_reason(Role.DECODE)
        if self._group is not None and not self._group.is_connected and not reason:
            reason = "no scheduler leads: running streams go on, new requests wait for a leader"
        if self._agreement.fault and not reason:
            reason = f"cordons and nodes' joins wait: {self._agreement.fault}"
        degraded = [
            node.identity.name for node in self._driver.list_nodes() if node.state == "degraded"
        ]
        if degraded and not reason:
            shown = ", ".join(degraded[:_NAMES_SHOWN_MAX])
            more = len(degraded) - _NAMES_SHOWN_MAX
            shown += f" and {more} more" if more > 0 else ""
            reason = f"degraded: {shown}; 'pdd node list' tells why"
        return Health(
            decode_ready_count=decode_count, prefill_ready_count=prefill_count, reason=reason
        )


def _gateway_settings(config: Config) -> GatewaySettings:
    return GatewaySettings(
        max_body_bytes=config.http.body_limit_bytes,
        head_timeout_s=config.http.read_timeout_s,
        body_timeout_s=config.http.read_timeout_s,
        keepalive_timeout_s=config.http.idle_timeout_s,
        cors_origins=config.http.cors_origins,
        request_deadline_s=config.scheduler.request_deadline_s,
        write_buffer_bytes=config.http.stream_buffer_bytes,
        shutdown_grace_s=config.node.drain_timeout_s,
        resume_age_s=config.resume.memory_s,
        resume_grace_s=config.resume.grace_s,
        resume_wait_s=config.resume.wait_s,
    )


async def _watchdog() -> None:
    interval_s = notify.watchdog_interval_s()
    while True:
        await asyncio.sleep(interval_s if interval_s is not None else 3600.0)
        notify.notify_watchdog()
