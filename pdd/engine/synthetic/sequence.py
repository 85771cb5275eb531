"""One job's state inside the synthetic engine.

::

    LOCAL, PREFILL    WAITING ----------------------------> RUNNING --> ENDED
                         ^------------- preempted ------------'
    DECODE            WAITING --> LOADING --> LOADED -----> RUNNING --> ENDED
                         (blocks reserved)  (blocks and first token are here)
                         ^------------- preempted ------------'
    PREFILL that      WAITING --> LOADING --> LOADED -----> RUNNING --> ENDED
    pulls a prefix       (blocks reserved)  (the prefix is here, or will not come)

A job of several choices begins as one sequence without a choice, its *trunk*: the prompt. When that
is computed, or has come, the trunk forks: each choice that goes on becomes a sequence of its own,
LOADED, with the trunk's full blocks in common and a block of its own for the rest.

Preempted sequences lose their blocks and keep their tokens. A cancel ends any phase.
"""

import asyncio
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from pdd.connector.params import JobKind
from pdd.core.sampling import Sampling
from pdd.engine.port import Choice, Job, JobFacts, StepOutput


class SequencePhase(StrEnum):
    """See the module."""

    WAITING = "waiting"
    LOADING = "loading"
    LOADED = "loaded"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(slots=True, kw_only=True, eq=False)
class Reader:
    """Who reads a job: ``outputs`` of its ``sequences``, which have not ended; ``wake`` it after a
    change of either. Bound: an entry per output token of the job."""

    outputs: deque[StepOutput] = field(default_factory=deque)
    sequences: "list[Sequence]" = field(default_factory=list)
    _waits: asyncio.Future[None] | None = None

    def wake(self) -> None:
        """Let the reader look again."""
        if self._waits is not None and not self._waits.done():
            self._waits.set_result(None)

    async def wait_news(self) -> None:
        """For the one reader: until ``wake``."""
        self._waits = asyncio.get_running_loop().create_future()
        try:
            await self._waits
        finally:
            self._waits = None


@dataclass(slots=True, kw_only=True, eq=False)
class Sequence:
    """``tokens``: all that are known, the newest not computed yet. ``computed``: positions whose
    rows are in ``blocks``. ``given_count``: tokens known from the job itself.

    ``choice``: whose output it is; None for a trunk. ``first_tokens``: output token 0 by choice, of
    a decode job's trunk. ``reader`` and ``facts`` are the job's, common to all its sequences.
    """

    job: Job
    arrival: int
    tokens: list[int]
    choice: Choice | None = None
    sampling: Sampling = field(init=False)
    phase: SequencePhase = SequencePhase.WAITING
    blocks: list[int] = field(default_factory=list)
    hashes: list[bytes] = field(default_factory=list)
    computed: int = 0
    scheduled_before: bool = False
    # a prefill job's transfer, as long as this sequence's blocks feed it
    source_open: bool = False
    sent_block_count: int = 0
    # the transfer of a decode job, or of a prefill job's prefix
    reserved_before: bool = False
    loads_from_index: int = 0
    loading_since_s: float = 0.0
    first_tokens: Mapping[int, int] = field(default_factory=dict)
    reader: Reader = field(default_factory=Reader)
    facts: JobFacts = field(default_factory=JobFacts)

    def __post_init__(self) -> None:
        if len(self.job.choices) == 1:
            (self.choice,) = self.job.choices
        sampling = self.job.sampling
        self.sampling = sampling if self.choice is None else sampling.of_choice(self.choice.index)

    @property
    def key(self) -> str:
        """Its name on every node: the job's, or a fork's own."""
        if self.choice is None or len(self.job.choices) == 1:
            return self.job.key
        return f"{self.job.key}#{self.choice.index}"

    @property
    def given_count(self) -> int:
        """Prompt and tokens emitted elsewhere."""
        return len(self.job.prompt_token_ids) + self.emitted_count

    @property
    def emitted_count(self) -> int:
        """Output tokens emitted elsewhere."""
        return 0 if self.choice is None else len(self.choice.emitted_token_ids)

    @property
    def is_complete_trunk(self) -> bool:
        """A trunk whose prompt is in the pool."""
        return self.choice is None and self.remaining == 0

    @property
    def output_count(self) -> int:
        """Output tokens so far, of every engine."""
        return len(self.tokens) - len(self.job.prompt_token_ids)

    @property
    def output_limit(self) -> int:
        """Output tokens at which it ends on this node."""
        if self.job.kind is JobKind.PREFILL:
            return self.emitted_count + 1
        return self.job.sampling.max_tokens

    @property
    def remaining(self) -> int:
        """Known tokens that are not computed."""
        return len(self.tokens) - self.computed

    @property
    def order(self) -> tuple[int, int, int]:
        """Who goes first: lower priority numbers, then who came first (as in vLLM)."""
        return (self.job.priority, self.arrival, 0 if self.choice is None else self.choice.index)

    @property
    def must_reserve(self) -> bool:
        """One whose blocks a peer will fill. Once only: after a preemption it computes."""
        return self.loads_tokens > 0 and not self.reserved_before

    @property
    def loads_tokens(self) -> int:
        """How many of its first tokens a peer fills the blocks of, if they are not cached here."""
        if self.job.kind is JobKind.DECODE:
            return len(self.job.prompt_token_ids)
        return 0 if self.job.pull is None else self.job.pull.token_count

    @property
    def lent_block_count(self) -> int:
        """Leading blocks that a peer may read while this one is loading."""
        return self.loads_from_index if self.job.lends else 0
