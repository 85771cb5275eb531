"""One job's state inside the synthetic engine.

::

    LOCAL, PREFILL    WAITING ----------------------------> RUNNING --> ENDED
                         ^------------- preempted ------------'
    DECODE            WAITING --> LOADING --> LOADED -----> RUNNING --> ENDED
                         (blocks reserved)  (blocks and first token are here)
                         ^------------- preempted ------------'

Preempted sequences lose their blocks and keep their tokens. A cancel ends any phase.
"""

import asyncio
from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum

from pdd.connector.params import JobKind
from pdd.engine.port import Job, JobFacts, StepOutput


class SequencePhase(StrEnum):
    """See the module."""

    WAITING = "waiting"
    LOADING = "loading"
    LOADED = "loaded"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(slots=True, kw_only=True, eq=False)
class Sequence:
    """``tokens``: all that are known, the newest not computed yet. ``computed``: positions whose
    rows are in ``blocks``. ``given_count``: tokens known from the job itself.

    ``outputs`` holds at most one entry per output token; ``wake`` its reader after a change.
    """

    job: Job
    arrival: int
    tokens: list[int]
    phase: SequencePhase = SequencePhase.WAITING
    blocks: list[int] = field(default_factory=list)
    hashes: list[bytes] = field(default_factory=list)
    computed: int = 0
    scheduled_before: bool = False
    # a prefill job's transfer, as long as this sequence's blocks feed it
    source_open: bool = False
    sent_block_count: int = 0
    # a decode job's transfer
    reserved_before: bool = False
    loads_from_index: int = 0
    outputs: deque[StepOutput] = field(default_factory=deque)
    _reader: asyncio.Future[None] | None = None
    facts: JobFacts = field(default_factory=JobFacts)

    def wake(self) -> None:
        """Let the reader look again."""
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    async def wait_news(self) -> None:
        """For the one reader: until ``wake``."""
        self._reader = asyncio.get_running_loop().create_future()
        try:
            await self._reader
        finally:
            self._reader = None

    @property
    def key(self) -> str:
        """Its name on every node."""
        return self.job.key

    @property
    def given_count(self) -> int:
        """Prompt and tokens emitted elsewhere."""
        return len(self.job.prompt_token_ids) + len(self.job.emitted_token_ids)

    @property
    def output_count(self) -> int:
        """Output tokens so far, of every engine."""
        return len(self.tokens) - len(self.job.prompt_token_ids)

    @property
    def output_limit(self) -> int:
        """Output tokens at which it ends on this node."""
        if self.job.kind is JobKind.PREFILL:
            return len(self.job.emitted_token_ids) + 1
        return self.job.sampling.max_tokens

    @property
    def remaining(self) -> int:
        """Known tokens that are not computed."""
        return len(self.tokens) - self.computed

    @property
    def order(self) -> tuple[int, int]:
        """Who goes first: lower priority numbers, then who came first (as in vLLM)."""
        return (self.job.priority, self.arrival)

    @property
    def must_reserve(self) -> bool:
        """A decode job whose blocks a peer will fill. Once only: after a preemption it computes."""
        return self.job.kind is JobKind.DECODE and not self.reserved_before
