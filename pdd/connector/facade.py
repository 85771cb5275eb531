"""The class that vLLM loads. Thin: every hook forwards to the half that lives in this process.

Checked against vLLM 0.32 (CPU, Model Runner V1); 0.33's base class only adds methods.
"""

import gc
from typing import TYPE_CHECKING, Any

import vllm
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)

from pdd.connector.block_counter import BlockCounter
from pdd.connector.metadata import StepMetadata
from pdd.connector.process import die_with_parent
from pdd.connector.queue_wait import QueueNaps
from pdd.connector.scheduler_side import SchedulerSide, told_by_workers
from pdd.connector.step_limiter import StepLimiter
from pdd.connector.worker_settings import WorkerSettings
from pdd.connector.worker_side import WorkerSide

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.forward_context import ForwardContext
    from vllm.v1.attention.backend import AttentionMetadata
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

SUPPORTED_VLLM_MINORS = ("0.32", "0.33")


class PddConnector(KVConnectorBase_V1, SupportsHMA):
    """Moves KV blocks between pdd's nodes. See the package's docstring for the flow."""

    def __init__(
        self,
        vllm_config: "VllmConfig",
        role: KVConnectorRole,
        kv_cache_config: "KVCacheConfig",
    ) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        die_with_parent()
        _check_version(vllm.__version__)
        # Beside a GPU these processes have cores that nothing else computes on.
        on_cpu = vllm_config.device_config.device_type == "cpu"
        self._naps = QueueNaps() if on_cpu else None
        if len(kv_cache_config.kv_cache_groups) != 1:
            raise ValueError(
                f"model has {len(kv_cache_config.kv_cache_groups)} KV cache groups; pdd moves "
                "models with exactly one (no hybrid attention)"
            )
        self._scheduler_side: SchedulerSide | None = None
        self._worker_side: WorkerSide | None = None
        if role is KVConnectorRole.SCHEDULER:
            block_size = kv_cache_config.kv_cache_groups[0].kv_cache_spec.block_size
            extra = vllm_config.kv_transfer_config.kv_connector_extra_config
            self._block_counter = BlockCounter(
                leak_block_after_jobs=extra["pdd"].get("leak_block_after_jobs", 0)
            )
            self._scheduler_side = SchedulerSide(
                block_size=block_size,
                counter=self._block_counter,
                steps=StepLimiter(vllm_config.scheduler_config),
            )
        else:
            extra = vllm_config.kv_transfer_config.kv_connector_extra_config
            self._worker_side = WorkerSide(
                settings=WorkerSettings.from_extra_config(extra["pdd"]),
                rank=vllm_config.parallel_config.rank,
            )

    @property
    def _scheduler(self) -> SchedulerSide:
        assert self._scheduler_side is not None, "scheduler hook called in a worker process"
        return self._scheduler_side

    @property
    def _worker(self) -> WorkerSide:
        assert self._worker_side is not None, "worker hook called in the scheduler process"
        return self._worker_side

    # --- worker half -------------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, "torch.Tensor"]) -> None:
        """The pool exists: start the transfer engine and report to the daemon."""
        self._worker.register(kv_caches)

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        """Before the forward: open and cancel transfers (``start_load_kv`` comes after it)."""
        super().bind_connector_metadata(connector_metadata)
        assert isinstance(connector_metadata, StepMetadata)
        if self._naps is not None:
            self._naps.is_step_empty = connector_metadata.is_empty
        self._worker.begin_step(connector_metadata)

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        """Before any block of a preempted sequence can be overwritten."""
        assert isinstance(kv_connector_metadata, StepMetadata)
        self._worker.fence_preempted(kv_connector_metadata)

    def start_load_kv(self, forward_context: "ForwardContext", **kwargs: Any) -> None:
        """Nothing: loads were started by ``bind_connector_metadata``."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing: vLLM schedules a sequence only after its whole load."""

    def save_kv_layer(
        self,
        layer_name: str,
        kv_layer: "torch.Tensor",
        attn_metadata: "AttentionMetadata",
        **kwargs: Any,
    ) -> None:
        """Nothing: blocks leave when all layers of the step are computed."""

    def wait_for_save(self) -> None:
        """After the forward: this step's blocks are final and leave now."""
        metadata = self._get_connector_metadata()
        assert isinstance(metadata, StepMetadata)
        self._worker.end_step(metadata)

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        """Requests whose blocks may be freed (sent) or used (received)."""
        sent, received = self._worker.results(finished_req_ids)
        return KVConnectorTransferResults(finished_sending=sent, finished_recving=received)

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Blocks that did not arrive, of requests reported as received in this step."""
        return self._worker.take_failed_blocks()

    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        """First tokens of the requests reported as received in this step, and what was asked."""
        return self._worker.take_metadata()

    def shutdown(self) -> None:
        """This process ends.

        The last collection of an interpreter that has loaded torch and vLLM takes seconds, in
        each process one after the other; vLLM kills them after five. What is frozen is skipped.
        """
        if self._worker_side is not None:
            self._worker_side.close()
        gc.freeze()

    # --- scheduler half ----------------------------------------------------------------------

    def bind_kv_cache_manager(self, kv_cache_manager: "KVCacheManager") -> None:
        """vLLM's pool exists."""
        super().bind_kv_cache_manager(kv_cache_manager)
        self._block_counter.bind(kv_cache_manager)

    def has_pending_push_work(self) -> bool:
        """Whether another step is wanted though no request is left: to count the blocks."""
        return self._block_counter.wants_step

    def on_new_request(self, request: "Request") -> None:
        """A request has reached vLLM's scheduler."""
        self._scheduler.on_new_request(request)

    def get_num_new_matched_tokens(
        self, request: "Request", num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """How many tokens a peer will provide, and that they come asynchronously. None: later."""
        return self._scheduler.tokens_to_load(request, num_computed_tokens)

    def update_state_after_alloc(
        self, request: "Request", blocks: "KVCacheBlocks", num_external_tokens: int
    ) -> None:
        """vLLM has reserved blocks."""
        self._scheduler.blocks_allocated(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: "SchedulerOutput") -> KVConnectorMetadata:
        """Once per step, empty steps too."""
        step = self._scheduler.step_metadata(scheduler_output)
        if self._naps is not None:
            self._naps.is_step_empty = step.is_empty
        return step

    def update_connector_output(self, connector_output: "KVConnectorOutput") -> None:
        """Before vLLM acts on what the workers reported."""
        if connector_output.finished_recving:
            not_owed = self._scheduler.not_owed(connector_output.finished_recving)
            connector_output.finished_recving -= not_owed
        self._scheduler.worker_output(
            told_by_workers(connector_output.kv_connector_worker_meta),
            received=connector_output.finished_recving or set(),
            sent=connector_output.finished_sending or set(),
        )

    def request_finished(
        self, request: "Request", block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        """See ``request_finished_all_groups``."""
        return self._scheduler.request_finished(request), None

    def request_finished_all_groups(
        self, request: "Request", block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """A request ended; True keeps its blocks until they are reported as sent."""
        return self._scheduler.request_finished(request), None

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: "VllmConfig") -> str | None:
        """Block-contiguous where the attention backend offers it: one piece per block.

        CPU attention knows only LBHNC (vllm/v1/attention/backends/cpu_attn.py) and warns when
        asked for anything else.
        """
        return None if vllm_config.device_config.device_type == "cpu" else "BLHNC"


def _check_version(version: str) -> None:
    if not version.startswith(tuple(f"{minor}." for minor in SUPPORTED_VLLM_MINORS)):
        raise RuntimeError(
            f"vLLM {version} is installed; pdd's connector is written for "
            f"{' and '.join(SUPPORTED_VLLM_MINORS)}: install one of these"
        )
