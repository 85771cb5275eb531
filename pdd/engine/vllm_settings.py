"""From pdd's settings to vLLM's engine arguments and environment."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pdd.connector.worker_settings import WorkerSettings
from pdd.engine.vllm_cache_events import ENVIRONMENT as CACHE_EVENTS_ENVIRONMENT
from pdd.transfer.environment import ucx_environment
from pdd.transfer.settings import TransferSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmSettings:
    """One engine. Zero or None leaves a choice to vLLM.

    ``cpu_cores``: cores the engine's threads are bound to, for builds without a GPU.
    ``gpus``: as in CUDA_VISIBLE_DEVICES; empty leaves the environment's choice.
    ``rpc_dir``: folder for vLLM's own sockets, removed by the daemon at its end.
    """

    model_path: Path
    served_model_name: str
    dtype: str = "bfloat16"
    max_model_len: int = 0
    max_num_batched_tokens: int = 0
    max_num_seqs: int = 0
    block_size: int = 0
    kv_cache_bytes: int = 0
    enable_prefix_caching: bool = True
    enforce_eager: bool = True
    tensor_parallel_size: int = 1
    gpu_memory_utilization: float = 0.9
    cpu_cores: tuple[int, ...] = ()
    gpus: tuple[str, ...] = ()
    rpc_dir: Path
    extra: dict[str, Any] = field(default_factory=dict)
    transfer: TransferSettings
    transport: str = "auto"
    devices: str | None = None
    leak_block_after_jobs: int = 0

    def environment(self) -> dict[str, str]:
        """What must be set before vLLM's processes start; they inherit it."""
        environment = {
            # Serving never touches the network.
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_DO_NOT_TRACK": "1",
            "VLLM_RPC_BASE_PATH": str(self.rpc_dir),
            **CACHE_EVENTS_ENVIRONMENT,
            **ucx_environment(transport=self.transport, devices=self.devices),
        }
        if self.cpu_cores:
            environment["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, self.cpu_cores))
        if self.gpus:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(self.gpus)
        return environment


def engine_args(
    settings: VllmSettings, worker: WorkerSettings, *, cache_events: dict[str, Any]
) -> dict[str, Any]:
    """Arguments for ``AsyncEngineArgs``; ``settings.extra`` wins over everything but transfer and
    cache events. ``cache_events``: for ``KVEventsConfig``, where there is a cache."""
    args: dict[str, Any] = {
        "model": str(settings.model_path),
        "served_model_name": settings.served_model_name,
        "dtype": settings.dtype,
        "enable_prefix_caching": settings.enable_prefix_caching,
        "enforce_eager": settings.enforce_eager,
        "tensor_parallel_size": settings.tensor_parallel_size,
        "gpu_memory_utilization": settings.gpu_memory_utilization,
        "scheduling_policy": "priority",
        "generation_config": "auto",
        "shutdown_timeout": 0,
    }
    for name in ("max_model_len", "max_num_batched_tokens", "max_num_seqs", "block_size"):
        if value := getattr(settings, name):
            args[name] = value
    if settings.kv_cache_bytes:
        args["kv_cache_memory_bytes"] = settings.kv_cache_bytes
    args.update(settings.extra)
    if args["enable_prefix_caching"]:
        args["kv_events_config"] = cache_events
    args["kv_transfer_config"] = {
        "kv_connector": "PddConnector",
        "kv_connector_module_path": "pdd.connector.facade",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {
            "pdd": {
                **worker.to_extra_config(),
                "leak_block_after_jobs": settings.leak_block_after_jobs,
            }
        },
    }
    return args
