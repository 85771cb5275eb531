"""Builds AsyncLLM. Imported late: it pulls in vLLM and torch, which read the environment."""

from collections.abc import Callable
from typing import Any

from vllm.config import VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.usage.usage_lib import UsageContext
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.metrics.loggers import StatLoggerBase
from vllm.v1.metrics.stats import IterationStats, SchedulerStats

StatsCallback = Callable[[float, int, int], None]
"""``(kv_cache_usage in [0, 1], running sequences, waiting sequences)`` after an engine step."""


def build_async_llm(args: dict[str, Any], *, on_stats: StatsCallback) -> AsyncLLM:
    """Start vLLM's processes and wait until the model is loaded. Blocks."""

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

    return AsyncLLM.from_engine_args(
        AsyncEngineArgs(**args),
        usage_context=UsageContext.ENGINE_CONTEXT,
        stat_loggers=[StepStats],
    )
