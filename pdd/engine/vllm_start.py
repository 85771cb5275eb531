"""Builds AsyncLLM. Imported late: it pulls in vLLM and torch, which read the environment."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vllm.config import KVEventsConfig, VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.platforms import current_platform
from vllm.usage.usage_lib import UsageContext
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.metrics.loggers import StatLoggerBase
from vllm.v1.metrics.stats import IterationStats, SchedulerStats

KEYED_SAMPLER = "pdd.connector.keyed_sampler:KeyedSampler"
StatsCallback = Callable[[float, int, int], None]
"""``(kv_cache_usage in [0, 1], running sequences, waiting sequences)`` after an engine step."""


@dataclass(frozen=True, slots=True)
class StartedLlm:
    """``native_seeds``: the runner draws by (seed, position); else the keyed sampler does."""

    llm: AsyncLLM
    native_seeds: bool


def build_async_llm(args: dict[str, Any], *, on_stats: StatsCallback) -> StartedLlm:
    """Start vLLM's processes and wait until the model is loaded. Blocks.

    A seeded sequence must be able to go on at any index on another engine. Model Runner V2, the
    default on CUDA, draws so by itself (vllm/v1/worker/gpu/sample/gumbel.py); V1 has a stateful
    generator per request, which the keyed sampler replaces on CPUs.

    Raises:
        RuntimeError: this build of vLLM can do neither.
    """
    on_cpu = current_platform.is_cpu()
    if "kv_events_config" in args:
        args = {**args, "kv_events_config": KVEventsConfig(**args["kv_events_config"])}
    if on_cpu:
        args = {**args, "logits_processors": [KEYED_SAMPLER]}

    class StepStats(StatLoggerBase):
        """Hands each step's counts to the daemon; vLLM constructs it itself."""

        def __init__(self, vllm_config: VllmConfig, engine_index: int = 0) -> None:
            pass

        def record(
            self,
            scheduler_stats: SchedulerStats | None,
            iteration_stats: IterationStats | None,
            mm_cache_stats: object = None,
            engine_idx: int = 0,
        ) -> None:
            if scheduler_stats is not None:
                on_stats(
                    scheduler_stats.kv_cache_usage,
                    scheduler_stats.num_running_reqs,
                    scheduler_stats.num_waiting_reqs + scheduler_stats.num_skipped_waiting_reqs,
                )

        def log_engine_initialized(self) -> None:
            pass

    llm = AsyncLLM.from_engine_args(
        AsyncEngineArgs(**args),
        usage_context=UsageContext.ENGINE_CONTEXT,
        stat_loggers=[StepStats],
    )
    if not on_cpu and not llm.vllm_config.use_v2_model_runner:
        llm.shutdown()
        raise RuntimeError(
            "vLLM chose Model Runner V1, whose seeded draws cannot continue on another engine; "
            "pdd needs V2 on a GPU (is Triton installed?)"
        )
    return StartedLlm(llm=llm, native_seeds=not on_cpu)
