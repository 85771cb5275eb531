"""What the two halves of the connector tell each other, once per engine step.

History of ``METADATA_VERSION`` (both halves always come from one installation, so a difference
can only mean that two installations were mixed; the worker half then refuses to run):

1. first version.
2. ``census``; ``tables`` and what asks for them.
3. Targets of prefill jobs that pull a prefix; loans of decode jobs.
4. ``held_prompt_count``.
5. ``is_empty``.
"""

from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)

from pdd.connector.params import SourceNode
from pdd.core.blocks import BlockCensus

METADATA_VERSION = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceBlocks:
    """Blocks of a prefill job whose bytes are final, in prompt order.

    ``first_index`` is the prompt block index of ``block_ids[0]``. ``last``: these end the prompt.
    """

    key: str
    request_id: str
    first_index: int
    block_ids: tuple[int, ...]
    last: bool
    opens: bool
    deadline_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetBlocks:
    """Blocks that a job has reserved for what it does not hold yet.

    ``is_pull``: a prefill job's prefix; it waits for no first token. ``lent_block_ids``: what a
    decode job holds of the prompt and lends meanwhile, from the prompt's first block on; None: it
    lends nothing.
    """

    key: str
    request_id: str
    source: SourceNode
    first_index: int
    block_ids: tuple[int, ...]
    deadline_s: float
    is_pull: bool = False
    lent_block_ids: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptProgress:
    """Prompt positions ``[start, end)`` that this step computes. ``end`` never passes the prompt.

    ``cached_token_count``: positions found in this engine's own prefix cache at admission.
    """

    key: str
    start: int
    end: int
    prompt_token_count: int
    cached_token_count: int


@dataclass(kw_only=True)
class StepMetadata(KVConnectorMetadata):
    """Scheduler half to worker halves."""

    version: int = METADATA_VERSION
    ready_blocks: list[SourceBlocks] = field(default_factory=list)
    """Final before this step's forward: prefix cache hits of the prefill node."""
    computed_blocks: list[SourceBlocks] = field(default_factory=list)
    """Final after this step's forward."""
    aborted_sources: list[str] = field(default_factory=list)
    """Their blocks stay allocated until the worker halves report them as sent."""
    preempted_sources: list[str] = field(default_factory=list)
    """Their blocks may be overwritten by this step's forward: reading must have ended before."""
    opened_targets: list[TargetBlocks] = field(default_factory=list)
    cancelled_targets: list[str] = field(default_factory=list)
    progress: list[PromptProgress] = field(default_factory=list)
    census: BlockCensus | None = None
    """The blocks as they were when the step was scheduled; None when they were not counted."""
    tables: dict[str, list[int]] = field(default_factory=dict)
    """Block tables of the jobs that were asked for; empty for those that hold none."""
    held_prompt_count: int = 0
    """Long prompts that wait for their turn."""
    is_empty: bool = False
    """Nothing is computed in this step."""


@dataclass(kw_only=True)
class WorkerMetadata(KVConnectorWorkerMetadata):
    """Worker halves to scheduler half: the first token of each engine request that is ready, and
    the jobs whose block table somebody wants to see."""

    first_tokens: dict[str, int] = field(default_factory=dict)
    asked_keys: list[str] = field(default_factory=list)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> "WorkerMetadata":
        """Ranks learn the same token, each at its own moment."""
        assert isinstance(other, WorkerMetadata)
        return WorkerMetadata(
            first_tokens={**self.first_tokens, **other.first_tokens},
            asked_keys=[*self.asked_keys, *other.asked_keys],
        )
