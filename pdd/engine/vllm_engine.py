"""vLLM's AsyncLLM behind the engine interface.

Processes: the daemon embeds AsyncLLM, which starts ``VLLM::EngineCore`` and one ``VLLM::Worker``
per rank. pdd's connector runs in both (see ``pdd.connector``); the worker halves report over the
link. Everything the daemon learns about a job's cost comes from there, because vLLM's own
counters cannot tell a loaded prompt from a recomputed one after a failed load.

Source: vllm/v1/engine/async_llm.py, vLLM 0.32.
"""

import asyncio
import os
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import structlog
from tokenizers import Tokenizer

from pdd.connector.link_messages import (
    AskConnections,
    AskTable,
    Blocks,
    Connections,
    ConnectRank,
    Control,
    Counters,
    DisconnectRank,
    DropSource,
    FirstToken,
    LinkMessage,
    LoadFailed,
    Progress,
    Pulled,
    Ready,
    Table,
)
from pdd.connector.worker_settings import WorkerSettings
from pdd.core.blocks import BlockCensus
from pdd.core.errors import InvalidRequest
from pdd.core.frames import FinishReason, TokenLogprobs
from pdd.core.identity import Forking, NodeIdentity, NodeName
from pdd.core.ports import Clock
from pdd.engine.cache_events import CacheListener
from pdd.engine.link_server import LinkServer
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
from pdd.engine.vllm_cache_events import VllmCacheEvents
from pdd.engine.vllm_forks import Forks, fork_key
from pdd.engine.vllm_sampling import sampling_params
from pdd.engine.vllm_settings import VllmSettings, engine_args
from pdd.engine.vllm_warm_up import LIMIT_S, plan_of, warm_up
from pdd.model.digest import tokenizer_digest, weights_digest
from pdd.transfer.pairing import RankConnection, RankLink
from pdd.transfer.values import Connection, Peer, PeerId

if TYPE_CHECKING:
    from vllm.outputs import RequestOutput
    from vllm.v1.engine.async_llm import AsyncLLM

    from pdd.engine.vllm_start import StartedLlm

log = structlog.get_logger(__name__)

_SHUTDOWN_TIMEOUT_S = 5.0
_HELLO_TIMEOUT_S = 10.0
_LOCATE_TIMEOUT_S = 1.0
_FINISH_REASONS = {
    "stop": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "repetition": FinishReason.STOP,
    "abort": FinishReason.ABORT,
}


class VllmEngine:
    """One AsyncLLM. Construct and use it on one running event loop."""

    def __init__(
        self, *, settings: VllmSettings, identity: NodeIdentity, tokenizer: Tokenizer, clock: Clock
    ) -> None:
        self._settings = settings
        self._identity = identity
        self._tokenizer = tokenizer
        self._clock = clock
        self._llm: AsyncLLM | None = None
        self._native_seeds = False
        self._link: LinkServer | None = None
        self._info: EngineInfo | None = None
        self._facts: dict[str, JobFacts] = {}
        self._forks: dict[str, Forks] = {}
        self._fork_facts: dict[str, tuple[JobFacts, int]] = {}  # by fork; and its given tokens
        self._first_tokens: dict[str, Mapping[int, int]] = {}
        self._stats = EngineStats(
            free_block_count=0, running_sequence_count=0, waiting_sequence_count=0
        )
        self._census: BlockCensus | None = None
        self._asked_tables: dict[str, list[asyncio.Future[tuple[int, ...]]]] = {}
        self._counters: dict[str, float] = {}
        self._pull_counts: Counter[str] = Counter()
        self._connections: dict[int, tuple[RankConnection, ...]] = {}
        self._send_control: Callable[[PeerControl], None] | None = None
        self._notify_ready: Callable[[str, JobFacts], None] | None = None
        self._cache_events = VllmCacheEvents(settings.rpc_dir)
        self._notify_cache: CacheListener = lambda events: None
        self._following: asyncio.Task[None] | None = None
        self._failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        # One thread starts vLLM's processes and stays until they are gone: they get SIGTERM when
        # the *thread* that started them ends (prctl(2), PR_SET_PDEATHSIG).
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="pdd-vllm")

    async def start(self) -> EngineInfo:
        """Load the model in vLLM's own processes; 20 to 70 s on a CPU."""
        self._link = LinkServer(
            rank_count=self._settings.tensor_parallel_size, on_message=self._on_link_message
        )
        await self._link.start()
        worker = WorkerSettings(
            socket_name=self._link.socket_name,
            secret=self._link.secret,
            identity=self._identity,
            transfer=self._settings.transfer,
        )
        os.environ.update(self._settings.environment())
        args = engine_args(self._settings, worker, cache_events=self._cache_events.config())
        if args["enable_prefix_caching"]:
            self._following = asyncio.create_task(self._follow_cache(), name="vllm cache events")
        try:
            started = await asyncio.get_running_loop().run_in_executor(
                self._thread, self._build, args
            )
            self._llm, self._native_seeds = started.llm, started.native_seeds
            async with asyncio.timeout(_HELLO_TIMEOUT_S):
                hellos = await self._link.hellos()
            await self._warm_up(self._llm)
        except Exception as error:
            await self.stop()
            raise EngineFailed(f"vLLM did not start: {error}") from error
        assert self._llm is not None
        config = self._llm.vllm_config
        self._info = EngineInfo(
            block_count=hellos[0].block_count,
            block_size=config.cache_config.block_size,
            block_bytes=sum(hello.block_bytes for hello in hellos),
            max_model_len=config.model_config.max_model_len,
            max_num_seqs=config.scheduler_config.max_num_seqs,
            vocab_size=config.model_config.get_vocab_size(),
            eos_token_ids=_eos_token_ids(config.model_config),
            ucx_addresses=tuple(hello.ucx_address for hello in hellos),
            fingerprint={
                **hellos[0].fingerprint,
                "engine": "vllm",
                "model": self._settings.served_model_name,
                "dtype": str(config.model_config.dtype).removeprefix("torch."),
                "kv_heads": str(config.model_config.get_total_num_kv_heads()),
                "kv_head_size": str(config.model_config.get_head_size()),
                "weights": weights_digest(self._settings.model_path),
                "tokenizer": tokenizer_digest(self._settings.model_path),
                "block_size": str(config.cache_config.block_size),
                "tensor_parallel_size": str(self._settings.tensor_parallel_size),
            },
            forking=Forking.SHARED if args["enable_prefix_caching"] else Forking.APART,
            pulls=args["enable_prefix_caching"],  # else there is nothing to lend
        )
        self._stats = EngineStats(
            free_block_count=self._info.block_count - 1,  # vLLM keeps one as the null block
            running_sequence_count=0,
            waiting_sequence_count=0,
        )
        return self._info

    async def _warm_up(self, llm: "AsyncLLM") -> None:
        """See ``vllm_warm_up``. Nothing of it stays in the prefix cache, unless it was given up."""
        from vllm.inputs import tokens_input
        from vllm.sampling_params import RequestOutputKind, SamplingParams

        def generate(
            key: str, prompt: list[int], output_tokens: int
        ) -> "AsyncGenerator[RequestOutput, None]":
            params = SamplingParams(
                temperature=0.0,
                max_tokens=output_tokens,
                ignore_eos=True,
                detokenize=False,
                output_kind=RequestOutputKind.FINAL_ONLY,
            )
            outputs: AsyncGenerator[RequestOutput, None]
            outputs = llm.generate(tokens_input(prompt), params, key)
            return outputs

        config = llm.vllm_config
        plan = plan_of(
            step_tokens=config.scheduler_config.max_num_batched_tokens,
            max_model_len=config.model_config.max_model_len,
            max_num_seqs=config.scheduler_config.max_num_seqs,
        )
        started_s = self._clock()
        try:
            async with asyncio.timeout(LIMIT_S):
                await warm_up(generate, plan, vocab_size=config.model_config.get_vocab_size())
        except TimeoutError:
            log.warning("engine_warm_up_abandoned", limit_s=LIMIT_S)
        else:
            log.info(
                "engine_warmed_up",
                duration_s=round(self._clock() - started_s, 2),
                prompt_token_count=plan.prompt_tokens,
                sequence_count=plan.sequences,
            )
        if not await llm.reset_prefix_cache():  # what was abandoned still holds blocks
            log.warning("engine_warm_up_stays_cached", prompt_token_count=plan.prompt_tokens)

    def _build(self, args: dict[str, Any]) -> "StartedLlm":
        from pdd.engine.vllm_start import build_async_llm

        return build_async_llm(args, on_stats=self._on_stats)

    async def run(self, job: Job) -> AsyncGenerator[StepOutput, None]:
        """See ``Engine.run``."""
        self._facts[job.key] = JobFacts()
        if len(job.choices) == 1:
            outputs = self._run_one(job)
        else:
            forks = self._forks[job.key] = Forks(
                job, run=self._run_one, first_tokens=lambda: self._first_tokens[job.key]
            )
            for choice in job.choices:
                given = len(job.prompt_token_ids) + len(choice.emitted_token_ids)
                self._fork_facts[fork_key(job.key, choice.index)] = self._facts[job.key], given
            outputs = forks.outputs()
        try:
            async for output in outputs:
                yield output
        finally:
            await outputs.aclose()

    async def _run_one(self, job: Job) -> AsyncGenerator[StepOutput, None]:
        """A job of one choice, which may be a fork of another."""
        from vllm.inputs import tokens_input

        assert self._llm is not None, "run before start"
        (choice,) = job.choices
        try:
            params = sampling_params(job, native_seeds=self._native_seeds)
        except ValueError as error:
            raise InvalidRequest(str(error)) from error
        stream = self._llm.generate(
            tokens_input(
                [*job.prompt_token_ids, *choice.emitted_token_ids],
                cache_salt=job.cache_salt or None,
            ),
            params,
            job.key,
            priority=job.priority,
        )
        try:
            while (output := await _next_output(stream)) is not None:
                yield self._step_output(output, job, choice.index)
        finally:
            await stream.aclose()

    def first_tokens(self, key: str, token_ids: Mapping[int, int]) -> None:
        """See ``Engine.first_tokens``. The trunk's, if it goes on, is that of the first choice."""
        assert self._link is not None
        self._first_tokens[key] = token_ids
        self._link.send_all(FirstToken(key=key, token_id=token_ids[min(token_ids)]))

    def stop_choice(self, key: str, choice_index: int) -> None:
        """See ``Engine.stop_choice``."""
        forks = self._forks.get(key)
        if forks is not None:
            forks.stop(choice_index)

    def drop_source(self, key: str, reason: str) -> None:
        """See ``Engine.drop_source``."""
        assert self._link is not None
        self._link.send_all(DropSource(key=key, reason=reason))

    def facts(self, key: str) -> JobFacts:
        """See ``Engine.facts``."""
        return self._facts.get(key) or JobFacts()

    def forget(self, key: str) -> None:
        """See ``Engine.forget``."""
        self._facts.pop(key, None)
        self._first_tokens.pop(key, None)
        forks = self._forks.pop(key, None)
        if forks is not None:
            for choice in forks.job.choices:
                self._fork_facts.pop(fork_key(key, choice.index), None)

    def stats(self) -> EngineStats:
        """See ``Engine.stats``."""
        return self._stats

    def census(self) -> BlockCensus | None:
        """See ``Engine.census``."""
        return self._census

    async def locate(self, key: str) -> tuple[tuple[int, ...], ...] | None:
        """See ``Engine.locate``. vLLM's own process is asked, which answers with its next step; an
        engine that takes none holds nothing. All ranks use the same block numbers."""
        assert self._link is not None
        answer: asyncio.Future[tuple[int, ...]] = asyncio.get_running_loop().create_future()
        self._asked_tables.setdefault(key, []).append(answer)
        self._link.send(0, AskTable(key=key))
        try:
            async with asyncio.timeout(_LOCATE_TIMEOUT_S):
                blocks = await answer
        except TimeoutError:
            return None
        finally:
            waiting = self._asked_tables.get(key, [])
            if answer in waiting:
                waiting.remove(answer)
                if not waiting:
                    del self._asked_tables[key]
        return (blocks,) * self._settings.tensor_parallel_size if blocks else None

    def counters(self) -> dict[str, float]:
        """See ``Engine.counters``."""
        return {**self._counters, **self._pull_counts}

    def deliver_control(self, message: PeerControl) -> None:
        """See ``Engine.deliver_control``."""
        assert self._link is not None
        self._link.send(
            message.own_rank,
            Control(
                peer_name=message.peer.name,
                peer_uuid=message.peer.uuid,
                peer_boot_epoch=message.peer.boot_epoch,
                peer_rank=message.peer_rank,
                peer_address=message.peer_address,
                peer_ucx_address=message.peer_ucx_address,
                payload=message.payload,
            ),
        )

    def on_control(self, send: Callable[[PeerControl], None]) -> None:
        """See ``Engine.on_control``."""
        self._send_control = send

    def connect(self, links: Sequence[RankLink]) -> None:
        """See ``Engine.connect``."""
        assert self._link is not None
        for link in links:
            assert link.send is None, "refused at join: vLLM's blocks travel whole"
            self._link.send(link.own_rank, ConnectRank(**_peer_fields(link.peer)))

    def disconnect(self, links: Sequence[RankLink]) -> None:
        """See ``Engine.disconnect``."""
        assert self._link is not None
        for link in links:
            self._link.send(link.own_rank, DisconnectRank(**_peer_fields(link.peer)))

    def connections(self) -> tuple[RankConnection, ...]:
        """See ``Engine.connections``. The worker halves are asked; an idle engine takes no step in
        which they could tell by themselves."""
        assert self._link is not None
        self._link.send_all(AskConnections())
        return tuple(one for rank in sorted(self._connections) for one in self._connections[rank])

    def on_ready(self, notify: Callable[[str, JobFacts], None]) -> None:
        """See ``Engine.on_ready``."""
        self._notify_ready = notify

    def on_cache_events(self, notify: CacheListener) -> None:
        """See ``Engine.on_cache_events``."""
        self._notify_cache = notify

    async def reset_cache(self) -> bool:
        """See ``Engine.reset_cache``."""
        return self._llm is not None and await self._llm.reset_prefix_cache()

    async def _follow_cache(self) -> None:
        """A failure ends the engine: what its cache holds would be wrong for ever."""
        try:
            await self._cache_events.follow(lambda events: self._notify_cache(events))
        except asyncio.CancelledError:
            raise
        except Exception as error:
            log.exception("cache_events_failed")
            if not self._failed.done():
                self._failed.set_result(f"its cache events cannot be followed: {error}")

    async def wait_failed(self) -> str:
        """See ``Engine.wait_failed``. vLLM tells nobody when it is idle, so it is asked."""
        while not self._failed.done():
            assert self._llm is not None
            if self._llm.errored:
                return f"vLLM's engine died: {self._llm.dead_error}"
            await asyncio.wait([self._failed], timeout=0.5)
        return self._failed.result()

    async def stop(self) -> None:
        """See ``Engine.stop``. vLLM's shutdown blocks, so it gets a thread of its own."""
        following, self._following = self._following, None
        if following is not None:
            following.cancel()
            await asyncio.wait([following])
        llm, self._llm = self._llm, None
        if llm is not None:
            await asyncio.get_running_loop().run_in_executor(
                self._thread, lambda: llm.shutdown(timeout=_SHUTDOWN_TIMEOUT_S)
            )
        self._thread.shutdown(wait=False, cancel_futures=True)
        if self._link is not None:
            self._link.close()

    # --- inside ------------------------------------------------------------------------------

    def _step_output(self, output: "RequestOutput", job: Job, choice_index: int) -> StepOutput:
        completion = output.outputs[0]
        logprobs: tuple[TokenLogprobs, ...] = ()
        if completion.logprobs is not None and job.sampling.logprobs is not None:
            logprobs = tuple(
                token_logprobs(
                    token_id, candidates, self._tokenizer, top_count=job.sampling.logprobs
                )
                for token_id, candidates in zip(
                    completion.token_ids, completion.logprobs, strict=True
                )
            )
        reason = completion.finish_reason
        if reason is not None and reason not in _FINISH_REASONS:
            raise EngineFailed(f"vLLM ended request {output.request_id} with {reason!r}")
        return StepOutput(
            token_ids=tuple(completion.token_ids),
            logprobs=logprobs,
            finish_reason=None if reason is None else _FINISH_REASONS[reason],
            stop_reason=completion.stop_reason,
            choice_index=choice_index,
        )

    def _on_stats(self, usage: float, running: int, waiting: int) -> None:
        if self._info is None:
            return
        usable = self._info.block_count - 1
        self._stats = EngineStats(
            free_block_count=usable - round(usage * usable),
            running_sequence_count=running,
            waiting_sequence_count=waiting,
        )

    def _on_link_message(self, rank: int, message: LinkMessage) -> None:
        match message:
            case Progress():
                facts = self._facts.get(message.key)
                if facts is not None:
                    facts.started_s = facts.started_s or self._clock()
                    facts.cached_tokens = message.cached_token_count
                    facts.computed_prompt_tokens += message.end - message.start
                elif message.key in self._fork_facts:
                    facts, given = self._fork_facts[message.key]
                    computed = max(min(message.end, given) - message.start, 0)
                    facts.computed_prompt_tokens += computed
                    facts.forked_prompt_tokens += computed
            case Ready() | LoadFailed():
                self._on_loaded(message)
            case Pulled():
                self._on_pulled(message)
            case Control():
                assert self._send_control is not None
                self._send_control(
                    PeerControl(
                        own_rank=rank,
                        peer=NodeIdentity(
                            name=NodeName(message.peer_name),
                            uuid=message.peer_uuid,
                            boot_epoch=message.peer_boot_epoch,
                        ),
                        peer_rank=message.peer_rank,
                        peer_address=message.peer_address,
                        peer_ucx_address=message.peer_ucx_address,
                        payload=message.payload,
                    )
                )
            case Counters():
                self._counters = message.values
            case Table():
                for asked in self._asked_tables.pop(message.key, ()):
                    if not asked.done():
                        asked.set_result(tuple(message.block_ids))
            case Blocks():
                self._census = BlockCensus(**asdict(message))
            case Connections():
                self._connections[rank] = _rank_connections(rank, message)
            case _:
                raise AssertionError(f"rank {rank} sent {type(message).__name__}")

    def _on_loaded(self, message: Ready | LoadFailed) -> None:
        """One rank's part of a decode job's blocks; the job goes on when the slowest is there."""
        facts = self._facts.get(message.key)
        if facts is None:
            return
        facts.transferred_bytes += message.transferred_bytes
        facts.ready_s = self._clock()
        if isinstance(message, Ready):
            facts.transfer_s = max(facts.transfer_s, message.transfer_s)
        else:
            facts.load_failed_reason = message.reason
        facts.loaded_rank_count += 1
        all_loaded = facts.loaded_rank_count == self._settings.tensor_parallel_size
        if all_loaded and self._notify_ready is not None:
            self._notify_ready(message.key, facts)

    def _on_pulled(self, message: Pulled) -> None:
        """One rank's part of a prefill job's prefix. What is missing on one is computed on all."""
        facts = self._facts.get(message.key)
        if facts is None:
            return
        assert self._info is not None
        tokens = message.block_count * self._info.block_size
        is_first = facts.loaded_rank_count == 0
        facts.pulled_tokens = tokens if is_first else min(tokens, facts.pulled_tokens)
        facts.pulled_bytes += message.size_bytes
        facts.pull_s = max(facts.pull_s, message.pull_s)
        facts.load_failed_reason = facts.load_failed_reason or message.failed_reason
        facts.loaded_rank_count += 1
        self._pull_counts["pulled_bytes"] += message.size_bytes
        if facts.loaded_rank_count == self._settings.tensor_parallel_size:
            self._pull_counts[pull_counter(facts.load_failed_reason)] += 1


def _peer_fields(peer: Peer) -> dict[str, Any]:
    return {
        "peer_name": peer.identity.name,
        "peer_uuid": peer.identity.uuid,
        "peer_boot_epoch": peer.identity.boot_epoch,
        "peer_rank": peer.rank,
        "peer_address": peer.control_address,
        "peer_ucx_address": peer.ucx_address,
    }


def _rank_connections(rank: int, message: Connections) -> tuple[RankConnection, ...]:
    return tuple(
        RankConnection(
            own_rank=rank,
            connection=Connection(
                peer=PeerId(uuid=uuid, boot_epoch=boot_epoch, rank=peer_rank),
                lanes=tuple(lanes.split(",")),
                received_bytes=received_bytes,
                bytes_per_s=bytes_per_s,
            ),
        )
        for uuid, boot_epoch, peer_rank, lanes, received_bytes, bytes_per_s in zip(
            message.peer_uuids,
            message.peer_boot_epochs,
            message.peer_ranks,
            message.lanes,
            message.received_bytes,
            message.bytes_per_s,
            strict=True,
        )
    )


async def _next_output(stream: "AsyncGenerator[RequestOutput, None]") -> "RequestOutput | None":
    """The next output, None at the end; vLLM's errors told apart by whose fault they are.

    Raises:
        InvalidRequest: vLLM refuses the request's parameters. AsyncLLM wraps what its input
            processing raises into EngineGenerateError (v1/engine/async_llm.py, generate).
        EngineFailed: the engine is dead, or failed at this request.
    """
    from vllm.exceptions import VLLMValidationError
    from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

    try:
        return await anext(stream, None)
    except VLLMValidationError as error:
        raise InvalidRequest(str(error)) from error
    except EngineDeadError as error:
        raise EngineFailed(f"vLLM's engine died: {error}") from error
    except EngineGenerateError as error:
        if isinstance(error.__cause__, ValueError | VLLMValidationError):
            raise InvalidRequest(str(error.__cause__)) from error
        raise EngineFailed(f"vLLM failed at this request: {error.__cause__!r}") from error


def _eos_token_ids(model_config: Any) -> tuple[int, ...]:
    """Every token that ends an output by itself: generation config first, else the model's own."""
    generation = model_config.try_get_generation_config()
    ids = generation.get("eos_token_id")
    if ids is None:
        ids = model_config.hf_config.eos_token_id
    if ids is None:
        return ()
    return (ids,) if isinstance(ids, int) else tuple(ids)
