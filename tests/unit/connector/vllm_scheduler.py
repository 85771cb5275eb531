"""vLLM's real scheduler with pdd's real scheduler half; the model and the workers are played."""

import json
from pathlib import Path
from typing import Any

import torch
from vllm.config import (
    CacheConfig,
    DeviceConfig,
    KVTransferConfig,
    ModelConfig,
    SchedulerConfig,
    VllmConfig,
)
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from pdd.connector.block_counter import BlockCounter
from pdd.connector.metadata import StepMetadata, WorkerMetadata
from pdd.connector.params import JobKind, Pull, SourceNode
from pdd.core.sampling import Sampling
from pdd.engine.port import Job
from pdd.engine.vllm_sampling import sampling_params

BLOCK_SIZE = 16
SOURCE = SourceNode(
    name="prefill-0", uuid="u", boot_epoch=3, control_address="h:1", ucx_addresses=(b"a",)
)


def pull_of(token_count: int) -> Pull:
    return Pull(source=SOURCE, token_count=token_count, wait_s=2.0)


MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "torch_dtype": "bfloat16",
    "eos_token_id": 2,
    "bos_token_id": 1,
}


def make_vllm_config(
    folder: Path, *, chunk: int, max_model_len: int = 512, chunk_limit: int = 0
) -> VllmConfig:
    """``chunk_limit``: vLLM's own, as an operator sets it."""
    model = {**MODEL, "max_position_embeddings": max_model_len}
    (folder / "config.json").write_text(json.dumps(model))
    cache = CacheConfig(block_size=BLOCK_SIZE, enable_prefix_caching=True)
    return VllmConfig(
        model_config=ModelConfig(
            model=str(folder),
            skip_tokenizer_init=True,
            dtype="bfloat16",
            seed=0,
            max_model_len=max_model_len,
        ),
        scheduler_config=SchedulerConfig(
            max_num_seqs=8,
            max_num_batched_tokens=chunk,
            max_model_len=max_model_len,
            enable_chunked_prefill=True,
            long_prefill_token_threshold=chunk_limit,
            policy="priority",
            is_encoder_decoder=False,
        ),
        cache_config=cache,
        kv_transfer_config=KVTransferConfig(
            kv_connector="PddConnector",
            kv_connector_module_path="pdd.connector.facade",
            kv_role="kv_both",
            kv_load_failure_policy="recompute",
            kv_connector_extra_config={"pdd": {}},
        ),
        device_config=DeviceConfig("cpu"),
    )


class PlayedEngine:
    """One engine step at a time. The model samples 100, 101, ..."""

    def __init__(self, config: VllmConfig, *, block_count: int = 40) -> None:
        config.cache_config.num_gpu_blocks = block_count
        spec = FullAttentionSpec(
            block_size=BLOCK_SIZE, num_kv_heads=1, head_size=1, dtype=torch.float32
        )
        self.scheduler = Scheduler(
            vllm_config=config,
            kv_cache_config=KVCacheConfig(
                num_blocks=block_count,
                kv_cache_tensors=[],
                kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
            ),
            structured_output_manager=StructuredOutputManager(config),
            block_size=BLOCK_SIZE,
        )
        init_none_hash(sha256)
        self._hasher = get_request_block_hasher(BLOCK_SIZE, sha256)
        self.output: SchedulerOutput | None = None
        self.sampled: dict[str, list[int]] = {}
        self._next_token = 100

    # --- requests ----------------------------------------------------------------------------

    def add(
        self,
        request_id: str,
        kind: JobKind | None,
        *,
        prompt: list[int],
        max_tokens: int = 4,
        pulled_tokens: int = 0,
        lends: bool = False,
        priority: int = 0,
    ) -> Request:
        """A job of pdd's, or with ``kind`` None a request of somebody else's."""
        job = Job(
            key=f"{request_id}/0",
            kind=kind or JobKind.LOCAL,
            prompt_token_ids=tuple(prompt),
            sampling=Sampling(max_tokens=max_tokens, ignore_eos=True),
            cache_salt="",
            priority=priority,
            deadline_s=60.0,
            source=SOURCE if kind is JobKind.DECODE else None,
            pull=pull_of(pulled_tokens) if pulled_tokens else None,
            lends=lends,
        )
        params = sampling_params(job, native_seeds=False)
        if kind is None:
            params.extra_args = None
        request = Request(
            request_id=request_id,
            prompt_token_ids=list(prompt),
            sampling_params=params,
            pooling_params=None,
            priority=priority,
            block_hasher=self._hasher,
        )
        self.scheduler.add_request(request)
        return request

    def abort(self, request_id: str) -> None:
        self.scheduler.finish_requests(request_id, RequestStatus.FINISHED_ABORTED)

    def blocks_of(self, request_id: str) -> list[int]:
        (block_ids,) = self.scheduler.kv_cache_manager.get_block_ids(request_id)
        return list(block_ids)

    @property
    def free_block_count(self) -> int:
        return self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()

    @property
    def counter(self) -> BlockCounter:
        connector: Any = self.scheduler.connector
        counter: BlockCounter = connector._block_counter
        return counter

    def census(self) -> dict[str, int]:
        """The states that hold blocks, free ones left out."""
        census = self.counter.count()
        states = ("cached", "active", "leased", "quarantined", "lost_count", "doubled_count")
        return {name: count for name in states if (count := getattr(census, name))}

    def check_blocks(self) -> None:
        """Every block is somewhere, once, and as many are unheld as vLLM's pool says."""
        census = self.counter.count()
        assert census.fault == ""
        total = census.free + census.cached + census.held_count
        assert total == census.total == len(self.scheduler.kv_cache_manager.block_pool.blocks) - 1
        assert census.free + census.cached == self.free_block_count

    # --- steps -------------------------------------------------------------------------------

    def step(
        self,
        *,
        sent: set[str] | None = None,
        received: dict[str, int | None] | None = None,
        bad_blocks: set[int] | None = None,
        asked: list[str] | None = None,
    ) -> StepMetadata:
        """Schedule, run, report. ``received``: requests whose load is over, with first tokens."""
        step = self.finish(
            self.scheduler.schedule(),
            sent=sent,
            received=received,
            bad_blocks=bad_blocks,
            asked=asked,
        )
        self.check_blocks()
        return step

    def finish(
        self,
        output: SchedulerOutput,
        *,
        sent: set[str] | None = None,
        received: dict[str, int | None] | None = None,
        bad_blocks: set[int] | None = None,
        asked: list[str] | None = None,
    ) -> StepMetadata:
        """The rest of a step that is scheduled already."""
        self.output = output
        ids = list(output.num_scheduled_tokens)
        tokens = [self._sample(request_id) for request_id in ids]
        self.sampled = dict(zip(ids, tokens, strict=True))
        first_tokens = {
            request_id: token for request_id, token in (received or {}).items() if token is not None
        }
        self.scheduler.update_from_output(
            output,
            ModelRunnerOutput(
                req_ids=ids,
                req_id_to_index={request_id: index for index, request_id in enumerate(ids)},
                sampled_token_ids=tokens,
                kv_connector_output=KVConnectorOutput(
                    finished_sending=sent,
                    finished_recving=set(received) if received else None,
                    invalid_block_ids=bad_blocks or set(),
                    kv_connector_worker_meta=(
                        WorkerMetadata(first_tokens=first_tokens, asked_keys=asked or [])
                        if first_tokens or asked
                        else None
                    ),
                ),
            ),
        )
        metadata: Any = output.kv_connector_metadata
        assert isinstance(metadata, StepMetadata)
        return metadata

    def _sample(self, request_id: str) -> list[int]:
        request = self.scheduler.requests[request_id]
        if request.num_computed_tokens < request.num_tokens:
            return []  # a chunk of the prompt
        self._next_token += 1
        return [self._next_token - 1]
