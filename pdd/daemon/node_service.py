"""What a node says to schedulers and peers, and what it does when they speak."""

import asyncio
import os
from collections.abc import Callable

import structlog

from pdd.connector.params import JobKind, Pull, SourceNode
from pdd.control.convert import identity_to_proto, logprobs_from_proto, sampling_from_submit
from pdd.control.scheduler_client import SchedulerLink
from pdd.control.versions import HELD_BYTES_MAX, PROTOCOL_VERSION
from pdd.core.blocks import BlockCensus
from pdd.core.identity import NodeIdentity, RequestId, Role
from pdd.daemon.block_watch import BlockWatch
from pdd.daemon.cache_feed import CacheFeed
from pdd.daemon.job_keeper import HeldJob
from pdd.daemon.node_health import NodeHealth
from pdd.daemon.node_jobs import NodeJobs
from pdd.daemon.node_peers import NodePeers
from pdd.daemon.running_job import JobFailure, JobReports
from pdd.engine.port import Choice, Engine, EngineInfo, EngineStats, Job, JobFacts
from pdd.rpc.v1 import cluster_pb2

log = structlog.get_logger(__name__)


_LOCATING_COUNT_MAX = 64
"""Questions for blocks that the engine has not answered yet; each is over within a second."""

_OFFER_S = 1.0
"""A scheduler claims at once what it was told of, unless it is gone."""

_News = tuple[EngineStats, str, BlockCensus | None, int]
"""What a scheduler is told of at once."""


class NodeService:
    """Implements ``SchedulerHandler``: protobuf on one side, jobs on the other."""

    def __init__(
        self,
        *,
        identity: NodeIdentity,
        role: Role,
        is_role_pinned: bool = False,
        address: str,
        model: str,
        engine: Engine,
        info: EngineInfo,
        jobs: NodeJobs,
        peers: NodePeers,
        health: NodeHealth,
        blocks: BlockWatch,
        cache: CacheFeed,
        refused_caller_count: Callable[[], int] = lambda: 0,
        offers_held: bool = True,
    ) -> None:
        """``offers_held``: what a scheduler has left is told to its next life. Where clients may
        come back to any of several, it is told to whoever asks for it (``Seek``)."""
        self._identity = identity
        self._role = role
        self._is_role_pinned = is_role_pinned
        self._address = address
        self._model = model
        self._engine = engine
        self._info = info
        self._jobs = jobs
        self._peers = peers
        self._health = health
        self._blocks = blocks
        self._cache = cache
        self._refused_caller_count = refused_caller_count
        self._offers_held = offers_held
        self._reports: dict[SchedulerLink, JobReports] = {}
        self._told: dict[SchedulerLink, _News] = {}
        self._locating: set[asyncio.Task[None]] = set()
        self._offered: dict[str, tuple[SchedulerLink, float]] = {}
        """Held requests that a scheduler was told of, and until when it may claim them: at most as
        many as are held."""

    def hello(self) -> cluster_pb2.Hello:
        """Everything a scheduler and a peer must know about this node."""
        return cluster_pb2.Hello(
            identity=identity_to_proto(self._identity),
            role=self._role.value,
            role_is_pinned=self._is_role_pinned,
            address=self._address,
            protocol_version=PROTOCOL_VERSION,
            fingerprint=self._info.fingerprint,
            block_count=self._info.block_count,
            block_size=self._info.block_size,
            block_bytes=self._info.block_bytes,
            max_model_len=self._info.max_model_len,
            max_num_seqs=self._info.max_num_seqs,
            model=self._model,
            ucx_worker_addresses=self._info.ucx_addresses,
            vocab_size=self._info.vocab_size,
            pid=os.getpid(),
            holds_requests=self._offers_held and self._jobs.held_count > 0,
            forking=self._info.forking,
            pulls=self._info.pulls,
        )

    def scheduler_attached(self, link: SchedulerLink, welcome: cluster_pb2.Welcome) -> None:
        """Ready for that scheduler's work; but first, what it may take over."""
        self._reports[link] = JobReports(
            frame=link.send_frame,
            failed=lambda request_id, generation, failure: _send_failed(
                link, request_id, generation, failure
            ),
            ready=lambda request_id, generation, facts: _send_ready(
                link, request_id, generation, facts
            ),
            home=f"{link.address}/{welcome.life}",
            sent=link.wait_sent,
        )
        log.info("scheduler_attached", scheduler=link.address)
        self._cache.attached(link)
        self._offer(link)
        self.send_status(link)

    def scheduler_lost(self, link: SchedulerLink, reason: str) -> None:
        """Its clients are gone with it, or ask elsewhere: hold what they may come back to."""
        self._told.pop(link, None)
        self._cache.lost(link)
        reports = self._reports.pop(link, None)
        if reports is not None:
            self._jobs.scheduler_lost(reports)
            for other in self._reports:  # clients may be there before the next heartbeat
                self.send_status_if_changed(other)
        self._peers.scheduler_lost(link.address)
        log.info("scheduler_detached", scheduler=link.address, reason=reason)

    def scheduler_said(self, link: SchedulerLink, message: cluster_pb2.SchedulerMessage) -> None:
        """Work, cancellations, first tokens."""
        match message.WhichOneof("message"):
            case "submits":
                for submit in message.submits.submits:
                    self._submit(link, submit)
            case "cancels":
                for request_id in message.cancels.request_ids:
                    if not self._is_anothers(link, RequestId(request_id)):
                        self._jobs.cancel(RequestId(request_id))
            case "seek":
                self._seek(link, message.seek)
            case "first_token":
                first = message.first_token
                tokens = {one.index: one.token_id for one in first.choices}
                self._jobs.first_tokens(
                    RequestId(first.request_id),
                    first.generation,
                    tokens or {0: first.token_id},
                    keep=first,
                    logprobs=tuple(map(logprobs_from_proto, first.frame.tokens.logprobs)),
                )
            case "ask_blocks":
                self._locate(link, message.ask_blocks)
            case "claims":
                for claim in message.claims.claims:
                    self._jobs.claim(
                        RequestId(claim.request_id),
                        claim.generation,
                        self._reports[link],
                        first_token_index=claim.first_token_index,
                    )
            case "peers_joined":
                self._peers.joined(link.address, message.peers_joined)
            case "peer_left":
                self._peers.left(link.address, message.peer_left)
            case "ask_cache_snapshot":
                self._cache.send_snapshot(link)
            case other:
                log.warning("scheduler_message_ignored", kind=other)

    def _seek(self, link: SchedulerLink, seek: cluster_pb2.Seek) -> None:
        """Tell what a client has come back for, if it is held here and nobody reads it. What one
        scheduler was told is not told to another for a moment, or both would take it over."""
        homes = self._homes()
        now_s = asyncio.get_running_loop().time()
        for request_id, (_, until_s) in list(self._offered.items()):
            if until_s <= now_s:
                del self._offered[request_id]
        for held in self._jobs.held():
            if held.home in homes:
                continue  # its client has its end from there
            submit = held.submit
            is_named = submit.request_id == seek.request_id
            has_key = bool(seek.resume_key) and submit.resume_key == seek.resume_key
            if is_named or has_key:
                offered_to, _ = self._offered.setdefault(
                    submit.request_id, (link, now_s + _OFFER_S)
                )
                if offered_to is not link:
                    continue
                log.info("held_job_found", request_id=submit.request_id, scheduler=link.address)
                link.send(cluster_pb2.NodeMessage(found=_held_to_proto(held)))

    def send_status_if_changed(self, link: SchedulerLink) -> None:
        """Tell that scheduler what it does not know yet."""
        self._blocks.look()
        if self._told.get(link) != self._news():
            self.send_status(link)

    def send_status(self, link: SchedulerLink) -> None:
        """The engine's latest counts."""
        self._told[link] = stats, degraded_reason, _, held_count = self._news()
        link.send(
            cluster_pb2.NodeMessage(
                status=cluster_pb2.NodeStatus(
                    free_block_count=stats.free_block_count,
                    running_sequence_count=stats.running_sequence_count,
                    waiting_sequence_count=stats.waiting_sequence_count,
                    degraded_reason=degraded_reason,
                    # Not news by themselves (they change with every chunk): once per heartbeat.
                    transfer_counters={
                        **self._engine.counters(),
                        "callers_refused": self._refused_caller_count(),
                    },
                    links=self._peers.links(),
                    blocks=self._block_states(),
                    held_request_count=held_count,
                )
            )
        )

    def _locate(self, link: SchedulerLink, ask: cluster_pb2.AskBlocks) -> None:
        """Answer when the engine has; beyond the bound not at all, and the asker gives up."""
        if len(self._locating) >= _LOCATING_COUNT_MAX:
            return

        async def answer() -> None:
            ranks = await self._engine.locate(_key(ask.request_id, ask.generation))
            held = cluster_pb2.BlocksHeld(request_id=ask.request_id, generation=ask.generation)
            for block_ids in ranks or ():
                held.ranks.add(block_ids=block_ids)
            link.send(cluster_pb2.NodeMessage(blocks_held=held))

        task = asyncio.create_task(answer())
        self._locating.add(task)
        task.add_done_callback(self._locating.discard)

    def _news(self) -> "_News":
        return (
            self._engine.stats(),
            self._health.degraded_reason,
            self._blocks.census,
            self._jobs.orphan_count(self._homes()),
        )

    def _is_anothers(self, link: SchedulerLink, request_id: RequestId) -> bool:
        """Whether another scheduler that is there has taken the request over: one that stood still
        and does not know is not to end it."""
        home = self._jobs.home_of(request_id)
        return home is not None and home != self._reports[link].home and home in self._homes()

    def _homes(self) -> set[str]:
        """Of the schedulers that are there."""
        return {reports.home for reports in self._reports.values()}

    def _block_states(self) -> cluster_pb2.BlockStates | None:
        census = self._blocks.census
        if census is None:
            return None
        return cluster_pb2.BlockStates(
            free_count=census.free,
            cached_count=census.cached,
            active_count=census.active,
            leased_count=census.leased,
            quarantined_count=census.quarantined,
            total_count=census.total,
            lost_count=census.lost_count,
            doubled_count=census.doubled_count,
            check_count=self._blocks.check_count,
        )

    def _submit(self, link: SchedulerLink, submit: cluster_pb2.Submit) -> None:
        request_id = RequestId(submit.request_id)
        try:
            if self._is_anothers(link, request_id):
                raise ValueError("another scheduler has taken it over")  # noqa: TRY301
            job = job_from_submit(submit)
            self._refuse_source(job)
        except ValueError as error:  # a newer scheduler's kind of work: another node may know it
            failure = JobFailure(kind="engine", message=f"this node cannot do that: {error}")
            self._reports[link].failed(request_id, submit.generation, failure)
            return
        self._jobs.submit(
            request_id,
            submit.generation,
            job,
            self._reports[link],
            keep=submit if submit.resume else None,
            emitted_logprobs=tuple(map(logprobs_from_proto, submit.emitted_logprobs)),
        )

    def _offer(self, link: SchedulerLink) -> None:
        """Tell a scheduler what a former life of it had asked for. What this very life had asked
        for before its stream broke, it has planned anew."""
        home = self._reports[link].home
        offered: list[cluster_pb2.HeldRequest] = []
        for held in self._jobs.held():
            if held.home == home:
                self._jobs.cancel(RequestId(held.submit.request_id))
            elif self._offers_held and held.home.rpartition("/")[0] == link.address:
                offered.append(_held_to_proto(held))
        if offered:
            log.info("held_jobs_offered", scheduler=link.address, count=len(offered))
        size = 0
        batch: list[cluster_pb2.HeldRequest] = []
        for one in offered:
            size += one.ByteSize()
            if size > HELD_BYTES_MAX and batch:
                link.send(_held_message(batch))
                batch, size = [], one.ByteSize()
            batch.append(one)
        link.send(_held_message(batch, complete=True))

    def _refuse_source(self, job: Job) -> None:
        """Raises ValueError for blocks from a node that this one has refused."""
        source = job.source if job.pull is None else job.pull.source
        refusal = "" if source is None else self._peers.refusal(source.uuid)
        if source is not None and refusal:
            raise ValueError(f"it exchanges nothing with {source.name}: {refusal}")


def job_from_submit(submit: cluster_pb2.Submit) -> Job:
    """A scheduler's submit as a job. Raises ValueError for an unknown kind."""
    kind = JobKind(submit.kind)
    pull = None
    if kind is JobKind.PREFILL and submit.HasField("pull"):
        pull = Pull(
            source=_source(submit.pull.source),
            token_count=submit.pull.token_count,
            wait_s=submit.pull.wait_s,
        )
    return Job(
        key=_key(submit.request_id, submit.generation),
        kind=kind,
        prompt_token_ids=tuple(submit.prompt_token_ids),
        choices=tuple(
            Choice(index=one.index, emitted_token_ids=tuple(one.emitted_token_ids))
            for one in submit.choices
        )
        or (Choice(emitted_token_ids=tuple(submit.emitted_token_ids)),),
        sampling=sampling_from_submit(submit),
        cache_salt=submit.cache_salt,
        priority=submit.priority,
        deadline_s=submit.deadline_s,
        source=_source(submit.source) if kind is JobKind.DECODE else None,
        pull=pull,
        lends=kind is JobKind.DECODE and submit.lends,
    )


def _source(node: cluster_pb2.PeerNode) -> SourceNode:
    return SourceNode(
        name=node.identity.name,
        uuid=node.identity.uuid,
        boot_epoch=node.identity.boot_epoch,
        control_address=node.address,
        ucx_addresses=tuple(node.ucx_worker_addresses),
    )


def _key(request_id: str, generation: int) -> str:
    """A job's name on every node."""
    return f"{request_id}/{generation}"


def _held_message(
    requests: list[cluster_pb2.HeldRequest], *, complete: bool = False
) -> cluster_pb2.NodeMessage:
    return cluster_pb2.NodeMessage(
        held=cluster_pb2.HeldRequests(requests=requests, complete=complete)
    )


def _held_to_proto(held: HeldJob) -> cluster_pb2.HeldRequest:
    return cluster_pb2.HeldRequest(
        submit=held.submit,
        first_token=held.first_token,
        is_running=held.is_running,
        output_token_count=held.output_token_count,
        age_s=held.age_s,
        first_token_age_s=held.first_token_age_s,
        ready_age_s=held.ready_age_s,
        ended_age_s=held.ended_age_s,
    )


def _send_failed(
    link: SchedulerLink, request_id: RequestId, generation: int, failure: JobFailure
) -> None:
    link.send(
        cluster_pb2.NodeMessage(
            failed=cluster_pb2.NodeRequestFailed(
                request_id=request_id,
                generation=generation,
                kind=failure.kind,
                message=failure.message,
            )
        )
    )


def _send_ready(
    link: SchedulerLink, request_id: RequestId, generation: int, facts: JobFacts
) -> None:
    link.send(
        cluster_pb2.NodeMessage(
            transfer_done=cluster_pb2.TransferDone(
                request_id=request_id,
                generation=generation,
                transferred_bytes=facts.transferred_bytes,
                transfer_s=facts.transfer_s,
            )
        )
    )
