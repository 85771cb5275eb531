"""What a node daemon needs from an engine. Everything above this interface is the same code for
every engine."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pdd.connector.params import JobKind, Pull, SourceNode
from pdd.core.blocks import BlockCensus
from pdd.core.frames import FinishReason, TokenLogprobs
from pdd.core.identity import Forking, NodeIdentity
from pdd.core.sampling import Sampling
from pdd.engine.cache_events import CacheListener
from pdd.transfer.pairing import RankConnection, RankLink
from pdd.transfer.values import Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """Known once an engine is ready. ``block_bytes``: over all layers of all ranks. ``forking``:
    what several choices of one job share. ``pulls``: it takes jobs with ``pull`` and ``lends``."""

    block_count: int
    block_size: int
    block_bytes: int
    max_model_len: int
    max_num_seqs: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    ucx_addresses: tuple[bytes, ...]
    fingerprint: dict[str, str]
    forking: Forking = Forking.NONE
    pulls: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One output of a job.

    ``emitted_token_ids``: output tokens that another node has produced; the engine goes on after
    them. In a decode job there are none: the first output token comes later, by ``first_tokens``.
    """

    index: int = 0
    emitted_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One request's work on one node. ``key`` names it on every node: request id / generation.

    ``choices``: at least one. The prompt is computed, or comes, once for all of them; each goes on
    in blocks of its own, with ``sampling.of_choice(index)``.

    ``pull``: of a prefill job, what it has from its decode node first. ``lends``: of that node's
    decode job, that what its prefix cache holds of the prompt is on offer to the prefill node, as
    long as the job waits for its own blocks. What cannot be had is computed: no fault.
    """

    key: str
    kind: JobKind
    prompt_token_ids: tuple[int, ...]
    choices: tuple[Choice, ...] = (Choice(),)
    sampling: Sampling
    cache_salt: str
    priority: int
    deadline_s: float
    source: SourceNode | None
    pull: Pull | None = None
    lends: bool = False


@dataclass(slots=True, kw_only=True)
class StepOutput:
    """New tokens of one choice of a job from one engine step. Made per token, so not frozen (see
    ``Frame``)."""

    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    finish_reason: FinishReason | None
    stop_reason: int | str | None
    choice_index: int = 0


@dataclass(slots=True)
class JobFacts:
    """What engine and receiver counted for one job; see ``core.frames.EngineFacts``.

    ``pulled_bytes``: verified, whether the pull succeeded or not; ``pulled_tokens``: those of the
    prompt that need not be computed for it.
    """

    cached_tokens: int = 0
    computed_prompt_tokens: int = 0
    forked_prompt_tokens: int = 0
    transferred_bytes: int = 0
    transfer_s: float = 0.0
    pulled_tokens: int = 0
    pulled_bytes: int = 0
    pull_s: float = 0.0
    started_s: float | None = None
    ready_s: float | None = None
    load_failed_reason: str = ""
    loaded_rank_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """The engine's own counts after its latest step."""

    free_block_count: int
    running_sequence_count: int
    waiting_sequence_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerControl:
    """A message of the transfer protocol between a rank here and a rank of ``peer``."""

    own_rank: int
    peer: NodeIdentity
    peer_rank: int
    peer_address: str
    peer_ucx_address: bytes
    payload: bytes


class Engine(Protocol):
    """One engine, several jobs at once. All methods run on the daemon's event loop."""

    async def start(self) -> EngineInfo:
        """Load the model; returns when jobs may be given. Raises EngineFailed."""
        ...

    def run(self, job: Job) -> AsyncGenerator[StepOutput, None]:
        """The job's outputs, until every choice has ended or was stopped. Closing the generator
        aborts the job in whatever phase it is.

        Raises:
            InvalidRequest: the engine refuses the parameters; it is untouched.
            EngineFailed: the engine died.
        """
        ...

    def first_tokens(self, key: str, token_ids: Mapping[int, int]) -> None:
        """Give a decode job output token 0 of each choice that goes on; the others have ended."""
        ...

    def stop_choice(self, key: str, choice_index: int) -> None:
        """The job's reader wants no more of a choice. Unknown ones are ignored."""
        ...

    def drop_source(self, key: str, reason: str) -> None:
        """Nobody will fetch this prefill job's blocks: free them. Unknown keys are ignored."""
        ...

    def facts(self, key: str) -> JobFacts:
        """What was counted so far; kept until ``forget``."""
        ...

    def forget(self, key: str) -> None:
        """The daemon is done with this job."""
        ...

    def stats(self) -> EngineStats:
        """The latest counts."""
        ...

    def census(self) -> BlockCensus | None:
        """The latest count of all blocks, a new object each: made at least once a second while the
        engine steps, and after its last step. None before the first. To be called often."""
        ...

    async def locate(self, key: str) -> tuple[tuple[int, ...], ...] | None:
        """The blocks that are held for a job, in prompt order, for each rank; also after its end,
        while a transfer may touch them. None: the engine holds nothing for it, or said nothing
        within a second."""
        ...

    def counters(self) -> dict[str, float]:
        """The transfer engine's counters."""
        ...

    def deliver_control(self, message: PeerControl) -> None:
        """A message from a peer's rank has come in."""
        ...

    def on_control(self, send: Callable[[PeerControl], None]) -> None:
        """Where messages to peers go."""
        ...

    def connect(self, links: Sequence[RankLink]) -> None:
        """Have connections to a peer's ranks, before the first job needs them. Idempotent."""
        ...

    def disconnect(self, links: Sequence[RankLink]) -> None:
        """Close connections: the peer has left."""
        ...

    def connections(self) -> tuple[RankConnection, ...]:
        """Every rank's connections, as of the call before this one: each has them looked at."""
        ...

    def on_ready(self, notify: Callable[[str, JobFacts], None]) -> None:
        """Whom to tell that a decode job can go on (or recomputes what did not arrive)."""
        ...

    def on_cache_events(self, notify: CacheListener) -> None:
        """Whom to tell what changes in the prefix cache. Set it between ``start`` and the first
        job. An engine without a prefix cache tells nothing."""
        ...

    async def reset_cache(self) -> bool:
        """Empty the prefix cache. False while sequences use it: ask again later."""
        ...

    async def wait_failed(self) -> str:
        """Returns, with the reason, when the engine has died by itself."""
        ...

    async def stop(self) -> None:
        """End every process of the engine. Idempotent; at most about 6 s."""
        ...


def pull_counter(failed_reason: str) -> str:
    """The engine's counter (``Engine.counters``) for a pull that ended so; empty: it succeeded.

    A lender that holds less than was believed sends that, and says so (``out_of_range``): no fault
    of anybody.
    """
    if not failed_reason:
        return "pulls_completed"
    return "pulls_not_held" if failed_reason == Reason.OUT_OF_RANGE else "pulls_failed"


class EngineFailed(Exception):
    """The engine did not start, or died. The daemon ends with it and is started anew."""
