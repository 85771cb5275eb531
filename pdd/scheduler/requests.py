"""One request in the scheduler's hands."""

from dataclasses import dataclass, field
from enum import StrEnum

from pdd.core.frames import EngineFacts
from pdd.core.identity import NodeIdentity, NodeName, RequestId
from pdd.core.requests import GenerateRequest, Path, Plan
from pdd.scheduler.prefixes import NO_CHAIN, Chain

GROWTH_AHEAD_TOKENS = 16
"""A lease is extended when fewer tokens than this are left of it."""


_NO_FACTS = EngineFacts()


class Phase(StrEnum):
    """Where a request is. The package's docstring draws the transitions."""

    QUEUED = "queued"
    PREFILLING = "prefilling"
    TRANSFERRING = "transferring"
    DECODING = "decoding"
    FINISHED = "finished"


TRANSITIONS: dict[Phase, frozenset[Phase]] = {
    Phase.QUEUED: frozenset({Phase.PREFILLING, Phase.FINISHED}),
    Phase.PREFILLING: frozenset({Phase.TRANSFERRING, Phase.DECODING, Phase.QUEUED, Phase.FINISHED}),
    Phase.TRANSFERRING: frozenset({Phase.DECODING, Phase.QUEUED, Phase.FINISHED}),
    Phase.DECODING: frozenset({Phase.QUEUED, Phase.FINISHED}),
    Phase.FINISHED: frozenset(),
}


@dataclass(slots=True, kw_only=True)
class Request:
    """State of one request over all its attempts.

    ``arrival_index``: counts all requests; equal times would leave their order open.
    ``keys``: of its prompt's blocks, joined; ``chain`` is made of them. ``caller``: see
    ``policy.candidate.Question``.
    ``granted_tokens``: output tokens of each choice that its leases allow for; never less than any
    has emitted. Set by ``grant``, with ``grows_at_tokens``: so long an output needs a longer lease.
    ``open_choices``: those that have not ended, in order. ``first_tokens``: what the prefill node
    of the present attempt has sampled for those that another node goes on with.
    ``is_whole``: it is only placed where its longest output fits, and keeps its blocks to its end.
    ``interruption``: why the present attempt is not the first; empty for the first.
    ``blocked_s``: since when it could be placed but for room, put back by ``blocked_for_s``: how
    long it was blocked before, between which it was too early; None while nothing blocks it.
    ``early_s``: when it was last seen that a place would be kept for it too early; None if not.
    ``noted_s``: when its waiting was last put on record.
    ``cached_guess``: node and prompt tokens that it was believed to hold at the last placement.
    ``waited_for_prefill``: what kept it waiting was that prompts took long.
    ``rests_until_s``: when a node whose engine failed this request may be given it again.
    ``holder``: the scheduler that has its client; empty for this one.
    ``said_tokens``: output of choices that have ended. ``counted_tokens``: what its tenant's quota
    of tokens was taken for it so far; None: they are not counted (any more).
    """

    request: GenerateRequest
    arrived_s: float
    arrival_index: int = 0
    holder: str = ""
    keys: bytes = b""
    caller: bytes = b""
    granted_tokens: int = 0
    grows_at_tokens: int = 1 - GROWTH_AHEAD_TOKENS
    said_tokens: int = 0
    counted_tokens: int | None = None
    is_whole: bool = False
    interruption: str = ""
    blocked_s: float | None = None
    blocked_for_s: float = 0.0
    early_s: float | None = None
    noted_s: float | None = None
    cached_guess: tuple[NodeName, int] | None = None
    phase: Phase = Phase.QUEUED
    generation: int = 0
    failed_attempt_count: int = 0
    waited_for_prefill: bool = False
    announced: bool = False
    plan: Plan | None = None
    prefill: NodeName | None = None
    decode: NodeName | None = None
    placed_s: float | None = None
    first_token_s: float | None = None
    first_token_generation: int | None = None
    rests_until_s: dict[NodeIdentity, float] = field(default_factory=dict)
    ready_s: float | None = None
    prefill_facts: EngineFacts = _NO_FACTS
    open_choices: tuple[int, ...] = field(init=False)
    first_tokens: dict[int, int] = field(default_factory=dict)
    chain: Chain = field(init=False)

    def __post_init__(self) -> None:
        self.chain = Chain(self.keys) if self.keys else NO_CHAIN
        self.open_choices = tuple(range(self.request.choice_count))

    @property
    def deadline_s(self) -> float:
        """When it must be over, on the driver's clock."""
        return self.arrived_s + self.request.deadline_s

    def enter(self, phase: Phase) -> None:
        """Change phase; only along the table."""
        assert phase in TRANSITIONS[self.phase], f"{self.phase} -> {phase}"
        self.phase = phase

    def finds_no_room(self, now_s: float) -> None:
        """It is this one's turn, and all that could have it are full."""
        self.early_s = None
        if self.blocked_s is None:
            self.blocked_s = now_s - self.blocked_for_s

    def comes_early(self, now_s: float) -> None:
        """There is room, of which nothing is kept for it yet: it does not wait for that now."""
        self.early_s = now_s
        if self.blocked_s is not None:
            self.blocked_for_s, self.blocked_s = now_s - self.blocked_s, None

    def waits_no_longer(self) -> None:
        """It is placed."""
        self.blocked_s = self.early_s = None
        self.blocked_for_s = 0.0

    def close_choice(self, choice_index: int) -> None:
        """One of its outputs is complete."""
        self.open_choices = tuple(one for one in self.open_choices if one != choice_index)

    def awaits_first_token(self, choice_index: int) -> bool:
        """Whether the prefill node of the present attempt still owes it."""
        return choice_index in self.open_choices and choice_index not in self.first_tokens

    @property
    def id(self) -> RequestId:
        """Its id."""
        return self.request.request_id

    def grant(self, tokens: int) -> None:
        """Its leases allow for so many output tokens of each choice."""
        self.granted_tokens = tokens
        max_tokens = self.request.sampling.max_tokens
        grows = tokens < max_tokens
        self.grows_at_tokens = tokens - GROWTH_AHEAD_TOKENS + 1 if grows else max_tokens + 1

    @property
    def resumed(self) -> bool:
        """Whether its first token came from an earlier attempt."""
        return self.first_token_generation not in (None, self.generation)

    def runs_on(self) -> NodeName | None:
        """The node that generates once the prompt is there."""
        return self.decode if self.decode is not None else self.prefill

    def path(self) -> Path:
        """The path of the present attempt."""
        assert self.plan is not None
        return self.plan.path
