"""What a synthetic engine is told: sizes, times, faults."""

from dataclasses import dataclass, field
from pathlib import Path

from pdd.config.sections import CrashPoint
from pdd.timing.roofline import Roofline
from pdd.transfer.reshard import ShardLayout
from pdd.transfer.settings import TransferSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticFaults:
    """``crash_after_count``: the crash happens at that passing of the point, in the node's first
    life only, so that it serves when it has been started again. ``leak_block_after_jobs``: one
    block is lost when so many jobs have ended; 0 for never."""

    step_delay_s: float = 0.0
    crash_at: CrashPoint = CrashPoint.NEVER
    crash_after_count: int = 1
    leak_block_after_jobs: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticSettings:
    """One engine. ``row_bytes``: KV bytes of one position in one KV head, a multiple of 16.

    ``kv_head_count``: heads that the ranks share, as a model's; 0 is one for each rank. Nodes with
    equal heads exchange blocks whatever their tensor parallelism.

    ``step_s``: a fixed rhythm (see ``pace``) instead of ``cost``; 0 for none. ``step_log``: file
    for ``step_log``.

    ``block_count`` includes block 0, which is never used. ``max_model_len`` is cut to what the
    pool can hold.
    """

    served_model_name: str
    tokenizer_digest: str = ""
    model_seed: int = 0
    block_count: int
    block_size: int = 16
    row_bytes: int = 256
    kv_head_count: int = 0
    max_model_len: int
    max_num_batched_tokens: int = 2048
    max_num_seqs: int = 256
    enable_prefix_caching: bool = True
    tensor_parallel_size: int = 1
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    cost: Roofline
    transfer: TransferSettings
    transport: str = "auto"
    devices: str | None = None
    faults: SyntheticFaults = field(default_factory=SyntheticFaults)
    step_s: float = 0.0
    step_log: Path | None = None

    @property
    def layout(self) -> ShardLayout:
        """How the ranks share a block: one layer, head by head."""
        return ShardLayout(
            kv_head_count=self.kv_head_count or self.tensor_parallel_size,
            tp_size=self.tensor_parallel_size,
            stages=((0, 1),),
            order="LHN",
            block_tokens=self.block_size,
            token_bytes=self.row_bytes,
        )
