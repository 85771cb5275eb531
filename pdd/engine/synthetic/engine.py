"""The driver: one asyncio task is the engine's loop, one thread per rank moves blocks.

::

    run(job) --> Batch.add       loop: transfer events -> plan -> obey -> sleep -> compute -> tokens
       ^                                                            (modelled)         |
       '---------------- sequence.outputs, sequence.news <-----------------------------'

Everything but the transfer threads runs on the daemon's event loop. When there is nothing to do
the loop waits for an event and costs nothing. A cancel may come at any ``await``: it takes its
sequence out at once, and what the running step had planned for it is skipped.
"""

import asyncio
import os
import signal
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field

import numpy as np
import structlog
from tokenizers import Tokenizer

from pdd.config.sections import CrashPoint
from pdd.connector.params import JobKind
from pdd.core.errors import InvalidRequest, KVTransferError
from pdd.core.frames import FinishReason, TokenLogprobs
from pdd.core.identity import NodeIdentity, NodeName
from pdd.core.ports import Clock
from pdd.engine.output_logprobs import token_logprobs
from pdd.engine.port import (
    EngineFailed,
    EngineInfo,
    EngineStats,
    Job,
    JobFacts,
    PeerControl,
    StepOutput,
)
from pdd.engine.synthetic.batch import Batch, Chunk, StepPlan, sends_blocks
from pdd.engine.synthetic.choice import Choice, Vocabulary, choose, ranked, refuse
from pdd.engine.synthetic.kv_rows import KvRows
from pdd.engine.synthetic.ledger import BlockLedger
from pdd.engine.synthetic.sequence import Sequence, SequencePhase
from pdd.engine.synthetic.settings import SyntheticSettings
from pdd.timing.roofline import work_of
from pdd.transfer.engine import TransferEngine
from pdd.transfer.environment import ucx_environment
from pdd.transfer.pool import BlockPool
from pdd.transfer.values import (
    Peer,
    SourceReleased,
    TargetCancelled,
    TargetCompleted,
    TargetFailed,
)

log = structlog.get_logger(__name__)

_EARLY_FIRST_TOKENS_MAX = 4096
"""First tokens whose job has not come yet. At the bound the oldest is dropped; its job then runs
into its deadline and is planned anew."""

_DIGEST_COUNTER = "digest_mismatches"


@dataclass(slots=True, kw_only=True)
class _Target:
    """A decode job's transfers, one per rank; kept until all have ended."""

    sequence: Sequence
    open_ranks: set[int]
    transferred_bytes: int = 0
    transfer_s: float = 0.0
    first_bad_index: int | None = None
    failed_reason: str = ""


@dataclass(slots=True, kw_only=True)
class _Source:
    """A prefill job's transfers; kept until all ranks have released its blocks."""

    sequence: Sequence
    open_ranks: set[int] = field(default_factory=set)


class SyntheticEngine:
    """See the package. Construct and use it on one running event loop."""

    def __init__(
        self,
        *,
        settings: SyntheticSettings,
        identity: NodeIdentity,
        tokenizer: Tokenizer,
        words: Vocabulary,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._identity = identity
        self._tokenizer = tokenizer
        self._words = words
        self._clock = clock
        self.pools = [
            np.zeros((settings.block_count, settings.block_size * settings.row_bytes), np.uint8)
            for _ in range(settings.tensor_parallel_size)
        ]
        self._rows = KvRows(
            pools=self.pools, block_size=settings.block_size, model_seed=settings.model_seed
        )
        self.batch = Batch(
            ledger=BlockLedger(block_count=settings.block_count),
            block_size=settings.block_size,
            max_num_batched_tokens=settings.max_num_batched_tokens,
            max_num_seqs=settings.max_num_seqs,
            prefix_caching=settings.enable_prefix_caching,
        )
        self._max_model_len = min(
            settings.max_model_len, (settings.block_count - 1) * settings.block_size
        )
        self._transfers: list[TransferEngine] = []
        self._sources: dict[str, _Source] = {}
        self._targets: dict[str, _Target] = {}
        self._sequences: dict[str, Sequence] = {}
        self._first_tokens: OrderedDict[str, int] = OrderedDict()
        self._facts: dict[str, JobFacts] = {}
        self._counts: Counter[str] = Counter()
        self._damage_seen = Counter[int]()
        self._crash_passes = 0
        self._arrivals = 0
        self._work = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._failed: asyncio.Future[str] = self._loop.create_future()
        self._send_control: Callable[[PeerControl], None] | None = None
        self._notify_ready: Callable[[str, JobFacts], None] | None = None

    # --- life --------------------------------------------------------------------------------

    async def start(self) -> EngineInfo:
        """See ``Engine.start``: memory, one transfer engine per rank, the loop."""
        settings = self._settings
        os.environ.update(ucx_environment(transport=settings.transport, devices=settings.devices))
        addresses = []
        for rank, pool in enumerate(self.pools):
            transfer = TransferEngine(
                pool=BlockPool.contiguous(pool.reshape(-1), block_bytes=pool.shape[1]),
                identity=self._identity,
                rank=rank,
                settings=settings.transfer,
                send_control=self._control_sender(rank),
                on_event=self._wake_from_thread,
            )
            try:
                addresses.append(await asyncio.to_thread(transfer.start))
            except KVTransferError as error:
                await self.stop()
                raise EngineFailed(f"the synthetic engine did not start: {error}") from error
            self._transfers.append(transfer)
        self._task = asyncio.create_task(self._run_loop(), name="synthetic engine")
        return EngineInfo(
            block_count=settings.block_count,
            block_size=settings.block_size,
            block_bytes=sum(pool.shape[1] for pool in self.pools),
            max_model_len=self._max_model_len,
            max_num_seqs=settings.max_num_seqs,
            vocab_size=settings.vocab_size,
            eos_token_ids=settings.eos_token_ids,
            ucx_addresses=tuple(addresses),
            fingerprint={
                "engine": "synthetic",
                "model": settings.served_model_name,
                "tokenizer": settings.tokenizer_digest,
                "model_seed": str(settings.model_seed),
                "row_bytes": str(settings.row_bytes),
                "block_size": str(settings.block_size),
                "tensor_parallel_size": str(settings.tensor_parallel_size),
            },
        )

    async def wait_failed(self) -> str:
        """See ``Engine.wait_failed``."""
        return await asyncio.shield(self._failed)

    async def stop(self) -> None:
        """See ``Engine.stop``."""
        self._fail("stopped")
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        transfers, self._transfers = self._transfers, []
        for transfer in transfers:
            await asyncio.to_thread(transfer.close)

    # --- jobs --------------------------------------------------------------------------------

    async def run(self, job: Job) -> AsyncGenerator[StepOutput, None]:
        """See ``Engine.run``."""
        self._check_job(job)
        sequence = Sequence(
            job=job, arrival=self._arrivals, tokens=[*job.prompt_token_ids, *job.emitted_token_ids]
        )
        self._arrivals += 1
        self._facts[job.key] = sequence.facts
        self._sequences[job.key] = sequence
        if sends_blocks(sequence):
            # Known from now on, so that a ticket which comes while the prompt waits its turn is
            # kept until the request's own deadline.
            sequence.source_open = True
            self._sources[job.key] = _Source(
                sequence=sequence, open_ranks=set(range(len(self._transfers)))
            )
            for transfer in self._transfers:
                transfer.source_open(job.key, deadline_s=job.deadline_s)
        self.batch.add(sequence)
        self._work.set()
        try:
            while True:
                while not sequence.outputs:
                    if self._failed.done():
                        raise EngineFailed(f"the synthetic engine died: {self._failed.result()}")
                    sequence.news.clear()
                    await sequence.news.wait()
                output = sequence.outputs.popleft()
                yield output
                if output.finish_reason is not None:
                    return
        finally:
            self._abort(sequence)

    def first_token(self, key: str, token_id: int) -> None:
        """See ``Engine.first_token``."""
        self._first_tokens[key] = token_id
        while len(self._first_tokens) > _EARLY_FIRST_TOKENS_MAX:
            self._first_tokens.popitem(last=False)
        self._work.set()

    def drop_source(self, key: str, reason: str) -> None:
        """See ``Engine.drop_source``."""
        if key in self._sources:
            self._abort_source(key, reason)

    def facts(self, key: str) -> JobFacts:
        """See ``Engine.facts``."""
        return self._facts.get(key) or JobFacts()

    def forget(self, key: str) -> None:
        """See ``Engine.forget``."""
        self._facts.pop(key, None)
        self._first_tokens.pop(key, None)

    def stats(self) -> EngineStats:
        """See ``Engine.stats``. Free are all blocks that nobody holds, cached ones included."""
        return EngineStats(
            free_block_count=self.batch.ledger.available_count,
            running_sequence_count=self.batch.running_count,
            waiting_sequence_count=self.batch.waiting_count,
        )

    def counters(self) -> dict[str, float]:
        """See ``Engine.counters``; beside the transfers' own, this engine's blocks and steps."""
        total: Counter[str] = Counter()
        for transfer in self._transfers:
            total.update(transfer.stats())
        counts = self.batch.ledger.counts()
        return {
            **{name: float(value) for name, value in total.items()},
            **{name: float(value) for name, value in self._counts.items()},
            "preemptions": float(self.batch.preempted_count),
            "evicted_blocks": float(self.batch.ledger.evicted_count),
            "blocks_free": float(counts.free),
            "blocks_cached": float(counts.cached),
            "blocks_active": float(counts.active),
            "blocks_leased": float(counts.leased),
            "blocks_quarantined": float(counts.quarantined),
        }

    def check(self) -> None:
        """Assert that no block is lost or held twice. For tests, between two turns of the loop."""
        self.batch.check()

    def deliver_control(self, message: PeerControl) -> None:
        """See ``Engine.deliver_control``."""
        if message.own_rank >= len(self._transfers):
            return  # stopped, or a peer with another number of ranks, refused at its ticket
        self._transfers[message.own_rank].deliver_control(
            Peer(
                identity=message.peer,
                rank=message.peer_rank,
                control_address=message.peer_address,
                ucx_address=message.peer_ucx_address,
            ),
            message.payload,
        )

    def on_control(self, send: Callable[[PeerControl], None]) -> None:
        """See ``Engine.on_control``."""
        self._send_control = send

    def on_ready(self, notify: Callable[[str, JobFacts], None]) -> None:
        """See ``Engine.on_ready``."""
        self._notify_ready = notify

    # --- the loop ----------------------------------------------------------------------------

    async def _run_loop(self) -> None:
        try:
            await self._serve()
        except asyncio.CancelledError:
            raise
        except Exception as error:  # a bug, or a dead transfer thread: the daemon ends with it
            log.exception("synthetic_engine_crashed")
            self._fail(f"{type(error).__name__}: {error}")

    async def _serve(self) -> None:
        planned_again = False
        while True:
            self._work.clear()  # before anything is looked at: later news set it again
            self._take_transfer_events()
            self._take_loaded()
            plan = self.batch.plan()
            self._obey(plan)
            if plan.chunks:
                await self._spend(plan)
                self._compute(plan)
            elif plan.empty and not (plan.preempted and not planned_again):
                await self._work.wait()
            planned_again = plan.preempted
            # Readers of this step's tokens come first; they may end sequences.
            await asyncio.sleep(0)

    def _obey(self, plan: StepPlan) -> None:
        for sequence in plan.aborted:
            self._abort_source(sequence.key, "prefill was preempted")
        for sequence in plan.reserved:
            self._open_target(sequence)
        for sequence in plan.started:
            self._note_start(sequence)
            self._offer_blocks(sequence)

    async def _spend(self, plan: StepPlan) -> None:
        """Let the step's modelled time pass."""
        work = work_of([(chunk.start, chunk.end) for chunk in plan.chunks])
        duration_s = self._settings.cost.step_s(work) + self._settings.faults.step_delay_s
        self._counts["steps"] += 1
        self._counts["computed_tokens"] += work.token_count
        if duration_s > 0:
            await asyncio.sleep(duration_s)

    def _compute(self, plan: StepPlan) -> None:
        for chunk in plan.chunks:
            if chunk.sequence.phase is SequencePhase.RUNNING:
                self._compute_chunk(chunk)

    def _compute_chunk(self, chunk: Chunk) -> None:
        sequence = chunk.sequence
        self._rows.write(sequence.blocks, chunk.start, sequence.tokens[chunk.start : chunk.end])
        self.batch.commit(sequence, chunk.end)
        given = sequence.given_count
        if chunk.start < given:
            sequence.facts.computed_prompt_tokens += min(chunk.end, given) - chunk.start
        if sends_blocks(sequence):
            self._pass(CrashPoint.PREFILL_CHUNK)
            self._offer_blocks(sequence)
        if chunk.end == len(sequence.tokens):
            self._sample(sequence)

    def _sample(self, sequence: Sequence) -> None:
        job = sequence.job
        prompt_count = len(job.prompt_token_ids)
        choice = choose(
            self._rows.digest(sequence.blocks, sequence.computed),
            words=self._words,
            sampling=job.sampling,
            prompt_token_ids=job.prompt_token_ids,
            output_token_ids=sequence.tokens[prompt_count:],
        )
        sequence.tokens.append(choice.token_id)
        self._pass(CrashPoint.FIRST_SAMPLE if sends_blocks(sequence) else CrashPoint.SAMPLE)
        reason, stop_reason = self._finish(sequence, choice.token_id)
        if reason is not None:
            self.batch.end(sequence, handed_over=True)
            self._sequences.pop(sequence.key, None)
        sequence.outputs.append(
            StepOutput(
                token_ids=(choice.token_id,),
                logprobs=self._logprobs(choice, job),
                finish_reason=reason,
                stop_reason=stop_reason,
            )
        )
        sequence.news.set()

    def _finish(
        self, sequence: Sequence, token_id: int
    ) -> tuple[FinishReason | None, int | str | None]:
        """As vLLM's check_stop: ends by a token come before ends by length."""
        sampling = sequence.job.sampling
        if sequence.output_count >= sampling.min_tokens:
            if token_id in self._words.eos_token_ids and not sampling.ignore_eos:
                return FinishReason.STOP, None
            if token_id in sampling.stop_token_ids:
                return FinishReason.STOP, token_id
        if sequence.output_count >= sequence.output_limit:
            return FinishReason.LENGTH, None
        if len(sequence.tokens) >= self._max_model_len:
            return FinishReason.LENGTH, None
        return None, None

    def _logprobs(self, choice: Choice, job: Job) -> tuple[TokenLogprobs, ...]:
        if job.sampling.logprobs is None:
            return ()
        return (
            token_logprobs(
                choice.token_id,
                ranked(choice, job.sampling.logprobs),
                self._tokenizer,
                top_count=job.sampling.logprobs,
            ),
        )

    # --- transfers ---------------------------------------------------------------------------

    def _offer_blocks(self, sequence: Sequence) -> None:
        """Give a prompt's finished blocks to its transfer; the last, partial one with its end."""
        if not sequence.source_open:
            return
        last = sequence.computed >= sequence.given_count
        size = self._settings.block_size
        count = -(-sequence.given_count // size) if last else sequence.computed // size
        if count > sequence.sent_block_count:
            for transfer in self._transfers:
                transfer.source_append(
                    sequence.key,
                    first_index=sequence.sent_block_count,
                    block_ids=sequence.blocks[sequence.sent_block_count : count],
                    last=last,
                )
            sequence.sent_block_count = count

    def _open_target(self, sequence: Sequence) -> None:
        source = sequence.job.source
        assert source is not None, "checked when the job came"
        first_index = sequence.loads_from_index
        self._targets[sequence.key] = _Target(
            sequence=sequence, open_ranks=set(range(len(self._transfers)))
        )
        self._note_start(sequence)
        for rank, transfer in enumerate(self._transfers):
            transfer.target_open(
                sequence.key,
                source=Peer(
                    identity=NodeIdentity(
                        name=NodeName(source.name), uuid=source.uuid, boot_epoch=source.boot_epoch
                    ),
                    rank=rank,
                    control_address=source.control_address,
                    ucx_address=source.ucx_addresses[rank],
                ),
                first_index=first_index,
                block_ids=sequence.blocks[first_index:],
                deadline_s=sequence.job.deadline_s,
            )
        self._pass(CrashPoint.TARGET_OPENED)

    def _take_transfer_events(self) -> None:
        for rank, transfer in enumerate(self._transfers):
            events = transfer.poll()
            for event in events:
                match event:
                    case SourceReleased():
                        self._on_source_released(rank, event)
                    case TargetCompleted() | TargetFailed() | TargetCancelled():
                        self._on_target_ended(rank, event)
            if events:
                self._note_damage(rank, transfer)

    def _note_damage(self, rank: int, transfer: TransferEngine) -> None:
        count = int(transfer.stats().get(_DIGEST_COUNTER, 0))
        if count > self._damage_seen[rank]:
            self._damage_seen[rank] = count
            log.warning(
                "kv_digest_mismatched",
                rank=rank,
                chunk_count=count,
                action="asked for the bytes again; at the second time this node computes them",
            )

    def _on_source_released(self, rank: int, event: SourceReleased) -> None:
        source = self._sources.get(event.key)
        if source is None:
            return
        source.open_ranks.discard(rank)
        if not source.open_ranks:
            del self._sources[event.key]
            source.sequence.source_open = False  # nothing reads its blocks, should it still run
            self.batch.transfer_quiet(event.key)

    def _on_target_ended(
        self, rank: int, event: TargetCompleted | TargetFailed | TargetCancelled
    ) -> None:
        target = self._targets[event.key]
        target.open_ranks.discard(rank)
        match event:
            case TargetCompleted():
                target.transferred_bytes += event.transferred_bytes
                target.transfer_s = max(target.transfer_s, event.duration_s)
            case TargetFailed():
                target.transferred_bytes += event.transferred_bytes
                target.failed_reason = target.failed_reason or event.reason.value
                bad = min(event.bad_indices, default=target.sequence.loads_from_index)
                known = target.first_bad_index
                target.first_bad_index = bad if known is None else min(bad, known)
            case TargetCancelled():
                pass
        if not target.open_ranks and target.sequence.phase is SequencePhase.ENDED:
            del self._targets[event.key]
            self.batch.transfer_quiet(event.key)

    def _take_loaded(self) -> None:
        """Decode jobs whose blocks and first token are both here join the batch."""
        done = [
            key
            for key, target in self._targets.items()
            if not target.open_ranks and key in self._first_tokens
        ]
        for key in done:
            target = self._targets.pop(key)
            sequence = target.sequence
            sequence.tokens.append(self._first_tokens.pop(key))
            self.batch.loaded(sequence, first_bad_index=target.first_bad_index)
            facts = sequence.facts
            facts.transferred_bytes = target.transferred_bytes
            facts.ready_s = self._clock()
            if target.first_bad_index is None:
                facts.transfer_s = target.transfer_s
            else:
                facts.load_failed_reason = target.failed_reason
                self._counts["failed_loads"] += 1
            self._pass(CrashPoint.LOADED)
            if self._notify_ready is not None:
                self._notify_ready(key, facts)

    def _abort_source(self, key: str, reason: str) -> None:
        self.batch.quarantine(key)
        for transfer in self._transfers:
            transfer.source_abort(key, reason)

    def _abort(self, sequence: Sequence) -> None:
        """The job's reader has left, or its output is over. Idempotent."""
        if sequence.phase is SequencePhase.ENDED:
            return
        loading = sequence.phase is SequencePhase.LOADING
        self._sequences.pop(sequence.key, None)
        self.batch.end(sequence, handed_over=False)
        if sequence.source_open:
            self._abort_source(sequence.key, "cancelled")
        if loading:
            target = self._targets[sequence.key]
            for rank, transfer in enumerate(self._transfers):
                if rank in target.open_ranks:
                    transfer.target_cancel(sequence.key)
            if not target.open_ranks:
                del self._targets[sequence.key]
                self.batch.transfer_quiet(sequence.key)
        self._work.set()  # there is room now

    # --- helpers -----------------------------------------------------------------------------

    def _check_job(self, job: Job) -> None:
        refuse(job.sampling, self._words)
        count = len(job.prompt_token_ids) + len(job.emitted_token_ids)
        if not job.prompt_token_ids:
            raise InvalidRequest("prompt: it has no tokens", field="prompt")
        if count >= self._max_model_len:
            raise InvalidRequest(
                f"prompt: {count} tokens leave no room for output in this node's "
                f"{self._max_model_len}; shorten the prompt",
                field="prompt",
                code="context_length_exceeded",
            )
        for token_id in job.prompt_token_ids:
            if not 0 <= token_id < self._settings.vocab_size:
                raise InvalidRequest(
                    f"prompt: token id {token_id} is not in 0..{self._settings.vocab_size - 1}",
                    field="prompt",
                )
        if job.kind is JobKind.DECODE:
            ranks = 0 if job.source is None else len(job.source.ucx_addresses)
            if ranks != len(self._transfers):
                raise EngineFailed(
                    f"the source has {ranks} ranks, this node {len(self._transfers)}: their blocks "
                    "differ; give both the same tensor_parallel_size"
                )

    def _note_start(self, sequence: Sequence) -> None:
        if sequence.facts.started_s is None:
            sequence.facts.started_s = self._clock()

    def _control_sender(self, rank: int) -> Callable[[Peer, bytes], None]:
        def hand_over(peer: Peer, payload: bytes) -> None:  # in the transfer thread
            message = PeerControl(
                own_rank=rank,
                peer=peer.identity,
                peer_rank=peer.rank,
                peer_address=peer.control_address,
                peer_ucx_address=peer.ucx_address,
                payload=payload,
            )
            self._call_from_thread(lambda: self._control_out(message))

        return hand_over

    def _control_out(self, message: PeerControl) -> None:
        if self._send_control is not None:  # else lost on the way: the transfer repeats it
            self._send_control(message)

    def _wake_from_thread(self) -> None:
        self._call_from_thread(self._work.set)

    def _call_from_thread(self, call: Callable[[], None]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call)

    def _fail(self, reason: str) -> None:
        if not self._failed.done():
            self._failed.set_result(reason)
        for sequence in list(self._sequences.values()):
            sequence.news.set()

    def _pass(self, point: CrashPoint) -> None:
        """Die here if a test has asked for it: as if the machine had lost its power."""
        faults = self._settings.faults
        if faults.crash_at is not point or self._identity.boot_epoch != 1:
            return
        self._crash_passes += 1
        if self._crash_passes >= faults.crash_after_count:
            os.kill(os.getpid(), signal.SIGKILL)
