"""The driver: one asyncio task is the engine's loop, one thread per rank moves blocks.

::

    run(job) --> Batch.add       loop: transfer events -> plan -> obey -> sleep -> compute -> tokens
       ^                                                            (modelled)         |
       '---------------- reader.outputs, reader.wake <---------------------------------'

Everything but the transfer threads runs on the daemon's event loop. When there is nothing to do
the loop waits for an event and costs nothing. A cancel may come at any ``await``: it takes its
sequence out at once, and what the running step had planned for it is skipped.
"""

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from dataclasses import replace

import numpy as np
import structlog
from tokenizers import Tokenizer

from pdd.config.sections import CrashPoint
from pdd.connector.params import JobKind
from pdd.core.blocks import BlockCensus
from pdd.core.errors import ConfigError, KVTransferError
from pdd.core.frames import TokenLogprobs
from pdd.core.identity import Forking, NodeIdentity
from pdd.core.ports import Clock
from pdd.engine.cache_events import CacheListener
from pdd.engine.output_logprobs import token_logprobs
from pdd.engine.port import (
    EngineFailed,
    EngineInfo,
    EngineStats,
    Job,
    JobFacts,
    PeerControl,
    StepOutput,
    pull_counter,
)
from pdd.engine.synthetic.batch import Batch, Chunk, StepPlan, sends_blocks
from pdd.engine.synthetic.choice import Choice, Vocabulary, choose, ranked
from pdd.engine.synthetic.kv_rows import KvRows, planes_of
from pdd.engine.synthetic.ledger import BlockLedger, Hold
from pdd.engine.synthetic.pace import Pace
from pdd.engine.synthetic.rules import check_job, finish_of
from pdd.engine.synthetic.sequence import Reader, Sequence, SequencePhase
from pdd.engine.synthetic.settings import SyntheticSettings
from pdd.engine.synthetic.step_log import StepLog
from pdd.engine.synthetic.transfers import UNREACHABLE, SequenceTransfers, Target
from pdd.timing.roofline import work_of
from pdd.transfer.environment import ucx_environment
from pdd.transfer.pairing import RankConnection, RankLink

log = structlog.get_logger(__name__)

_READERS_AT_A_TIME = 512
"""They share a message to their scheduler, which costs it 0.45 ms whatever is in it."""

_CENSUS_INTERVAL_S = 1.0


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
        self._work = asyncio.Event()
        layout = settings.layout
        if fault := layout.fault():
            raise ConfigError(f"synthetic.kv_heads and engine.tensor_parallel_size: {fault}")
        self.pools = [
            np.zeros((settings.block_count, layout.block_bytes(rank)), np.uint8)
            for rank in range(settings.tensor_parallel_size)
        ]
        planes = planes_of(self.pools, layout)
        self._rows = KvRows(
            pools=[of_head[0] for of_head in planes],
            copies=[of_head[1:] for of_head in planes],
            block_size=settings.block_size,
            model_seed=settings.model_seed,
        )
        self.batch = Batch(
            ledger=BlockLedger(block_count=settings.block_count),
            block_size=settings.block_size,
            max_num_batched_tokens=settings.max_num_batched_tokens,
            max_num_seqs=settings.max_num_seqs,
            prefix_caching=settings.enable_prefix_caching,
        )
        self.transfers = SequenceTransfers(
            pools=self.pools,
            identity=identity,
            settings=settings.transfer,
            batch=self.batch,
            block_size=settings.block_size,
            wake=self._work.set,
        )
        self._max_model_len = min(
            settings.max_model_len, (settings.block_count - 1) * settings.block_size
        )
        self._readers: dict[str, Reader] = {}
        self._facts: dict[str, JobFacts] = {}
        self._counts: Counter[str] = Counter()
        self._crash_passes = 0
        self._arrivals = 0
        self._ended_job_count = 0
        self._counted: tuple[float, EngineStats | None, BlockCensus | None] = (0.0, None, None)
        self._pace = Pace(settings.step_s) if settings.step_s > 0 else None
        self._step_log = None if settings.step_log is None else StepLog(settings.step_log)
        self._fresh: list[Sequence] = []
        self._sampled: list[str] = []
        self._sampled_last: list[str] = []
        self._task: asyncio.Task[None] | None = None
        self._failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._notify_ready: Callable[[str, JobFacts], None] | None = None
        self._notify_cache: CacheListener | None = None

    # --- life --------------------------------------------------------------------------------

    async def start(self) -> EngineInfo:
        """See ``Engine.start``: memory, one transfer engine per rank, the loop."""
        settings = self._settings
        os.environ.update(ucx_environment(transport=settings.transport, devices=settings.devices))
        try:
            addresses = await self.transfers.start()
        except KVTransferError as error:
            await self.stop()
            raise EngineFailed(f"the synthetic engine did not start: {error}") from error
        self._task = asyncio.create_task(self._run_loop(), name="synthetic engine")
        return EngineInfo(
            block_count=settings.block_count,
            block_size=settings.block_size,
            block_bytes=sum(pool.shape[1] for pool in self.pools),
            max_model_len=self._max_model_len,
            max_num_seqs=settings.max_num_seqs,
            vocab_size=settings.vocab_size,
            eos_token_ids=settings.eos_token_ids,
            ucx_addresses=addresses,
            fingerprint={
                **self.transfers.fingerprint,
                "engine": "synthetic",
                "model": settings.served_model_name,
                "tokenizer": settings.tokenizer_digest,
                "model_seed": str(settings.model_seed),
                "block_size": str(settings.block_size),
                "tensor_parallel_size": str(settings.tensor_parallel_size),
                "kv_layers": "1",
                "kv_heads": str(settings.layout.kv_head_count),
                "kv_token_bytes": str(settings.row_bytes),
                "kv_order": settings.layout.order,
                "kv_reshard": "yes",
            },
            forking=Forking.SHARED,
            pulls=True,
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
        if self._step_log is not None:
            self._step_log.close()
        await self.transfers.close()

    # --- jobs --------------------------------------------------------------------------------

    async def run(self, job: Job) -> AsyncGenerator[StepOutput, None]:
        """See ``Engine.run``."""
        if job.pull is not None and not self.transfers.reaches(job.pull.source):
            self._counts[pull_counter(UNREACHABLE)] += 1
            job = replace(job, pull=None)
        check_job(
            job,
            words=self._words,
            max_model_len=self._max_model_len,
            reaches_source=job.source is not None and self.transfers.reaches(job.source),
        )
        sequence = Sequence(job=job, arrival=self._arrivals, tokens=list(job.prompt_token_ids))
        if sequence.choice is not None:
            sequence.tokens += sequence.choice.emitted_token_ids
        reader = self._readers[job.key] = sequence.reader
        reader.sequences.append(sequence)
        self._arrivals += 1
        self._facts[job.key] = sequence.facts
        if sends_blocks(sequence):
            self.transfers.open_source(sequence)
        self.batch.add(sequence)
        self._work.set()
        try:
            while True:
                while not reader.outputs:
                    if not reader.sequences:
                        return
                    if self._failed.done():
                        raise EngineFailed(f"the synthetic engine died: {self._failed.result()}")
                    await reader.wait_news()
                yield reader.outputs.popleft()
        finally:
            self._readers.pop(job.key, None)
            for one in list(reader.sequences):
                self._abort(one)

    def first_tokens(self, key: str, token_ids: Mapping[int, int]) -> None:
        """See ``Engine.first_tokens``."""
        self.transfers.first_tokens(key, token_ids)
        self._work.set()

    def stop_choice(self, key: str, choice_index: int) -> None:
        """See ``Engine.stop_choice``."""
        reader = self._readers.get(key)
        for one in list(reader.sequences) if reader is not None else ():
            if one.choice is not None and one.choice.index == choice_index:
                self._abort(one)

    def drop_source(self, key: str, reason: str) -> None:
        """See ``Engine.drop_source``."""
        self.transfers.abort_source(key, reason)

    def facts(self, key: str) -> JobFacts:
        """See ``Engine.facts``."""
        return self._facts.get(key) or JobFacts()

    def forget(self, key: str) -> None:
        """See ``Engine.forget``."""
        self._facts.pop(key, None)
        self.transfers.forget(key)
        self._ended_job_count += 1
        if self._ended_job_count == self._settings.faults.leak_block_after_jobs:
            self.batch.ledger.take(1, Hold.ACTIVE)  # and nobody knows that he has it

    def stats(self) -> EngineStats:
        """See ``Engine.stats``. Free are all blocks that nobody holds, cached ones included."""
        return EngineStats(
            free_block_count=self.batch.ledger.available_count,
            running_sequence_count=self.batch.running_count,
            waiting_sequence_count=self.batch.waiting_count,
        )

    def census(self) -> BlockCensus:
        """See ``Engine.census``. Counts here and now, if it is time or nobody runs any more."""
        now_s, stats = self._clock(), self.stats()
        counted_s, counted_stats, census = self._counted
        has_stopped = stats != counted_stats and not stats.running_sequence_count
        if census is None or now_s - counted_s >= _CENSUS_INTERVAL_S or has_stopped:
            census = self.batch.ledger.census(self.batch.holders())
            self._counted = now_s, stats, census
        return census

    async def locate(self, key: str) -> tuple[tuple[int, ...], ...] | None:
        """See ``Engine.locate``. All ranks use the same block numbers."""
        blocks = self.batch.blocks_of(key)
        return None if blocks is None else (tuple(blocks),) * len(self.pools)

    def counters(self) -> dict[str, float]:
        """See ``Engine.counters``; beside the transfers' own, this engine's steps."""
        return {
            **{name: float(value) for name, value in self.transfers.stats().items()},
            **{name: float(value) for name, value in self._counts.items()},
            "preemptions": float(self.batch.preempted_count),
            "evicted_blocks": float(self.batch.ledger.evicted_count),
        }

    def check(self) -> None:
        """Assert that no block is lost or held twice. For tests, between two turns of the loop."""
        self.batch.check()

    def deliver_control(self, message: PeerControl) -> None:
        """See ``Engine.deliver_control``."""
        self.transfers.deliver_control(message)

    def on_control(self, send: Callable[[PeerControl], None]) -> None:
        """See ``Engine.on_control``."""
        self.transfers.on_control(send)

    def connect(self, links: Iterable[RankLink]) -> None:
        """See ``Engine.connect``."""
        self.transfers.connect(links)

    def disconnect(self, links: Iterable[RankLink]) -> None:
        """See ``Engine.disconnect``."""
        self.transfers.disconnect(links)

    def connections(self) -> tuple[RankConnection, ...]:
        """See ``Engine.connections``."""
        return self.transfers.connections()

    def on_ready(self, notify: Callable[[str, JobFacts], None]) -> None:
        """See ``Engine.on_ready``."""
        self._notify_ready = notify

    def on_cache_events(self, notify: CacheListener) -> None:
        """See ``Engine.on_cache_events``."""
        self._notify_cache = notify

    async def reset_cache(self) -> bool:
        """See ``Engine.reset_cache``."""
        is_reset = self.batch.reset_cache()
        self._tell_cache()
        return is_reset

    def _tell_cache(self) -> None:
        events = self.batch.take_cache_events()
        if events and self._notify_cache is not None:
            self._notify_cache(events)

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
            self.transfers.take_events()
            self._take_loaded()
            plan = self.batch.plan()
            self._obey(plan)
            if plan.chunks:
                await self._spend(plan)
                self._compute(plan)
                self._log_step()
                await self._hand_over()
            self._tell_cache()
            if plan.empty and not (plan.preempted and not planned_again):
                if self._pace is not None:
                    self._pace.rest()
                await self._work.wait()
            planned_again = plan.preempted
            # Readers of this step's tokens come first; they may end sequences.
            await asyncio.sleep(0)

    def _take_loaded(self) -> None:
        for target in self.transfers.take_loaded():
            if target.sequence.job.kind is JobKind.PREFILL:
                self._note_pulled(target)
                continue
            facts = target.sequence.facts
            facts.transferred_bytes = target.transferred_bytes
            facts.ready_s = self._clock()
            if target.first_bad_index is None:
                facts.transfer_s = target.transfer_s
            else:
                facts.load_failed_reason = target.failed_reason
                self._counts["failed_loads"] += 1
            if target.sequence.is_complete_trunk:
                self._fork(target.sequence)
            self._pass(CrashPoint.LOADED)
            if self._notify_ready is not None:
                self._notify_ready(target.sequence.key, facts)

    def _note_pulled(self, target: Target) -> None:
        """A pull is over; what did not come is computed like the rest."""
        sequence, facts = target.sequence, target.sequence.facts
        facts.pulled_tokens = sequence.computed - facts.cached_tokens
        facts.pulled_bytes = target.transferred_bytes
        facts.pull_s = self._clock() - sequence.loading_since_s
        self._counts[pull_counter(target.failed_reason)] += 1
        self._counts["pulled_bytes"] += facts.pulled_bytes
        self.transfers.offer(sequence)

    def _obey(self, plan: StepPlan) -> None:
        for sequence in plan.aborted:
            self.transfers.abort_source(sequence.key, "prefill was preempted")
        for sequence in plan.reserved:
            self._note_start(sequence)
            sequence.loading_since_s = self._clock()
            self.transfers.open_target(sequence)
            self._pass(CrashPoint.TARGET_OPENED)
        for sequence in plan.started:
            self._note_start(sequence)
            self.transfers.offer(sequence)  # what the prefix cache held leaves at once

    async def _spend(self, plan: StepPlan) -> None:
        """Let the step's modelled time pass."""
        work = work_of([(chunk.start, chunk.end) for chunk in plan.chunks])
        if self._pace is None:
            duration_s = self._settings.cost.step_s(work)
        else:
            duration_s = self._pace.wait_s(self._clock())
        duration_s += self._settings.faults.step_delay_s
        self._counts["steps"] += 1
        self._counts["computed_tokens"] += work.token_count
        if duration_s > 0:
            await asyncio.sleep(duration_s)

    def _log_step(self) -> None:
        """The step's tokens are there and nobody has read them yet."""
        if self._step_log is not None:
            self._step_log.add(time.monotonic_ns(), self._sampled, self._sampled_last)
            self._sampled.clear()
            self._sampled_last.clear()

    def _compute(self, plan: StepPlan) -> None:
        for chunk in plan.chunks:
            if chunk.sequence.phase is SequencePhase.RUNNING:
                self._compute_chunk(chunk)

    def _compute_chunk(self, chunk: Chunk) -> None:
        sequence = chunk.sequence
        self._rows.write(sequence.blocks, chunk.start, sequence.tokens[chunk.start : chunk.end])
        self.batch.commit(sequence, chunk.end)
        if chunk.start < (given := sequence.given_count):
            sequence.facts.computed_prompt_tokens += min(chunk.end, given) - chunk.start
        if sends_blocks(sequence):
            self._pass(CrashPoint.PREFILL_CHUNK)
            self.transfers.offer(sequence)
        if sequence.is_complete_trunk:
            self._fork(sequence)
        elif chunk.end == len(sequence.tokens):
            digest = self._rows.digest(sequence.blocks, sequence.computed)
            if self._sample(sequence, digest):
                self.batch.end(sequence, handed_over=True)
                sequence.reader.sequences.remove(sequence)

    def _fork(self, trunk: Sequence) -> None:
        """The prompt of a job of several choices is in the pool.

        Choices that have no token yet draw one each from what the prompt's last position says;
        all that have not ended go on by themselves.
        """
        job, reader = trunk.job, trunk.reader
        digest: int | None = None
        forks = []
        for choice in job.choices:
            if job.kind is JobKind.DECODE and choice.index not in trunk.first_tokens:
                continue  # it has ended with its first token
            fork = Sequence(
                job=job,
                arrival=trunk.arrival,
                tokens=[*job.prompt_token_ids, *choice.emitted_token_ids],
                choice=choice,
                reader=reader,
                facts=trunk.facts,
            )
            if job.kind is JobKind.DECODE:
                fork.tokens.append(trunk.first_tokens[choice.index])
            elif not choice.emitted_token_ids:
                if digest is None:
                    digest = self._rows.digest(trunk.blocks, trunk.computed)
                if self._sample(fork, digest):
                    continue
            forks.append(fork)
        if forks:
            for source, target in self.batch.fork(trunk, forks):
                self._rows.copy_block(source, target)
        else:
            self.batch.end(trunk, handed_over=True)
        reader.sequences[:] = forks
        reader.wake()

    def _sample(self, sequence: Sequence, digest: int) -> bool:
        """Choose and send the next token; whether the output ends with it."""
        job = sequence.job
        choice = choose(
            digest,
            words=self._words,
            sampling=sequence.sampling,
            token_ids=sequence.tokens,
            prompt_token_count=len(job.prompt_token_ids),
        )
        sequence.tokens.append(choice.token_id)
        self._pass(CrashPoint.FIRST_SAMPLE if sends_blocks(sequence) else CrashPoint.SAMPLE)
        reason, stop_reason = finish_of(
            sequence, words=self._words, max_model_len=self._max_model_len
        )
        if self._step_log is not None:
            self._sampled.append(sequence.key)
            if reason is not None:
                self._sampled_last.append(sequence.key)
        assert sequence.choice is not None, "a trunk says nothing by itself"
        sequence.reader.outputs.append(
            StepOutput(
                token_ids=(choice.token_id,),
                logprobs=self._logprobs(choice, job),
                finish_reason=reason,
                stop_reason=stop_reason,
                choice_index=sequence.choice.index,
            )
        )
        self._fresh.append(sequence)
        return reason is not None

    async def _hand_over(self) -> None:
        """Let the readers of this step's tokens run, some at a time: what the first ones say is on
        its way while the others still turn tokens into text."""
        fresh, self._fresh = self._fresh, []
        for begin in range(0, len(fresh), _READERS_AT_A_TIME):
            for sequence in fresh[begin : begin + _READERS_AT_A_TIME]:
                sequence.reader.wake()
            await asyncio.sleep(0)  # they run, and whoever sends is told
            await asyncio.sleep(0)  # it sends

    def _logprobs(self, choice: Choice, job: Job) -> tuple[TokenLogprobs, ...]:
        count = job.sampling.logprobs
        if count is None:
            return ()
        return (
            token_logprobs(
                choice.token_id, ranked(choice, count), self._tokenizer, top_count=count
            ),
        )

    # --- helpers -----------------------------------------------------------------------------

    def _abort(self, sequence: Sequence) -> None:
        """Nobody wants a sequence's output any more."""
        loading = sequence.phase is SequencePhase.LOADING
        sequence.reader.sequences.remove(sequence)
        sequence.reader.wake()
        self.batch.end(sequence, handed_over=False)
        if self._step_log is not None:
            self._step_log.forget(sequence.key)
        if sequence.source_open:
            self.transfers.abort_source(sequence.key, "cancelled")
        if loading:
            self.transfers.cancel_target(sequence.key)
        self._work.set()  # there is room now

    def _note_start(self, sequence: Sequence) -> None:
        if sequence.facts.started_s is None:
            sequence.facts.started_s = self._clock()

    def _fail(self, reason: str) -> None:
        if not self._failed.done():
            self._failed.set_result(reason)
        for reader in self._readers.values():
            reader.wake()

    def _pass(self, point: CrashPoint) -> None:
        """Die here if a test has asked for it: as if the machine had lost its power."""
        faults = self._settings.faults
        if faults.crash_at is not point or self._identity.boot_epoch != 1:
            return
        self._crash_passes += 1
        if self._crash_passes >= faults.crash_after_count:
            os.kill(os.getpid(), signal.SIGKILL)
