"""The nodes as the scheduler sees them, and the leases that requests hold on their blocks."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from pdd.core.identity import Forking, NodeIdentity, NodeName, NodeState, RequestId, Role

_NAMES_SHOWN_MAX = 3
_PLACE = frozenset({"state", "role", "next_role"})
"""What says in which pool a node is; all else that ``pools`` reads is in its ``NodeSums``, or fixed
for its life."""


@dataclass(slots=True)
class Changes:
    """What ``pools`` has to copy anew. ``by_id``: nodes whose sums have changed, by object.
    ``are_places``: a node may be in another pool than before."""

    by_id: dict[int, "Node"] = field(default_factory=dict)
    are_places: bool = True


@dataclass(slots=True)
class NodeSums:
    """Over all leases of a node; ``Node.check`` counts them anew. ``worked_until_s``: up to when
    the work on its queued prompts is accounted for."""

    leased: int = 0
    claimed: int = 0
    queued: int = 0
    inbound_bytes: int = 0
    sequences: int = 0
    long_blocks: int = 0
    worked_until_s: float = 0.0


@dataclass(slots=True, kw_only=True)
class Node:
    """One member. ``leases``: KV blocks promised to each request that may use them here.

    Invariant: a request holds a lease exactly while a job of its present generation may run here.
    ``claims``: what the longest output of each would need; a lease may grow up to it. ``long``:
    requests whose lease is large or that run longer than expected; they share a part of the node.
    ``sequences``: choices of each that run or may run here.
    ``queued_tokens``: prompt tokens to compute, per request that has no token yet.
    ``inbound_bytes``: KV bytes on their way here. ``block_bytes`` is 0 where it is not known.
    ``role``: its present duty, ``home_role``: the one that its configuration names (``is_pinned``:
    and no other), ``next_role``: the one that it changes to when it holds nothing any more.
    ``pulls``: it can pull a prefix from a peer, and lend it one.
    ``cache_generation`` counts how often the node said that its prefix cache is empty.
    Every change of leases or of the pool it belongs to is noted for ``pools``, which has copies.
    """

    identity: NodeIdentity
    role: Role
    home_role: Role
    address: str
    block_count: int
    block_size: int
    max_model_len: int
    max_num_seqs: int
    seen_s: float
    block_bytes: int = 0
    next_role: Role | None = None
    is_pinned: bool = False
    forking: Forking = Forking.NONE
    pulls: bool = False
    state: NodeState = NodeState.READY
    state_reason: str = ""
    free_block_count: int = 0
    running_sequence_count: int = 0
    waiting_sequence_count: int = 0
    cache_generation: int = 0
    leases: dict[RequestId, int] = field(default_factory=dict)
    claims: dict[RequestId, int] = field(default_factory=dict)
    sequences: dict[RequestId, int] = field(default_factory=dict)
    long: dict[RequestId, None] = field(default_factory=dict)
    queued_tokens: dict[RequestId, int] = field(default_factory=dict)
    inbound_bytes: dict[RequestId, int] = field(default_factory=dict)
    sums: NodeSums = field(default_factory=NodeSums)
    changes: Changes = field(default_factory=Changes, repr=False, compare=False)
    name: NodeName = field(init=False)
    usable_block_count: int = field(init=False)

    def __post_init__(self) -> None:
        """``name``: in the cluster. ``usable_block_count``: blocks that sequences can hold; vLLM
        keeps one as its null block."""
        self.name = self.identity.name
        self.usable_block_count = self.block_count - 1

    def __setattr__(self, name: str, value: object) -> None:
        if name in _PLACE and hasattr(self, "changes") and getattr(self, name) is not value:
            self.changes.are_places = True
        object.__setattr__(self, name, value)

    def _to_change(self) -> NodeSums:
        """Whoever changes them has them from here."""
        self.changes.by_id[id(self)] = self
        return self.sums

    @property
    def takes_work(self) -> bool:
        """Whether new requests may be placed here."""
        return self.state in (NodeState.READY, NodeState.DEGRADED) and self.next_role is None

    @property
    def duties(self) -> tuple[Role, ...]:
        """The present one, and the next one if it changes."""
        return (self.role,) if self.next_role is None else (self.role, self.next_role)

    def blocks_for(self, token_count: int) -> int:
        """Blocks that hold ``token_count`` tokens."""
        return -(-token_count // self.block_size)

    def choice_blocks(
        self, *, prompt_token_count: int, output_token_count: int, choice_count: int
    ) -> int:
        """Blocks of a prompt with so many outputs, each that long.

        A prompt's last block that is not full is each output's own: they go on writing in it.
        """
        blocks = self.blocks_for(prompt_token_count + output_token_count)
        if choice_count == 1:
            return blocks
        is_shared = self.forking is Forking.SHARED
        shared = prompt_token_count // self.block_size if is_shared else 0
        return shared + choice_count * (blocks - shared)

    def can_hold(
        self, *, prompt_token_count: int, output_token_count: int, choice_count: int
    ) -> bool:
        """Whether it could run these, were it empty."""
        if prompt_token_count + output_token_count > self.token_count_max():
            return False
        if choice_count == 1:
            return True
        blocks = self.choice_blocks(
            prompt_token_count=prompt_token_count,
            output_token_count=output_token_count,
            choice_count=choice_count,
        )
        return (
            self.forking is not Forking.NONE
            and choice_count <= self.max_num_seqs
            and blocks <= self.usable_block_count
        )

    @property
    def sequence_count(self) -> int:
        """Choices of all requests that run or may run here."""
        return self.sums.sequences

    def token_count_max(self) -> int:
        """The longest sequence, prompt and output, that an empty node can run."""
        return min(self.usable_block_count * self.block_size, self.max_model_len)

    def unleased_block_count(self) -> int:
        """Blocks that are promised to nobody."""
        return self.usable_block_count - self.sums.leased

    def long_block_count(self) -> int:
        """Blocks that long requests hold."""
        return self.sums.long_blocks

    def lease(
        self,
        request_id: RequestId,
        *,
        blocks: int,
        queued_tokens: int,
        claim: int | None = None,
        sequence_count: int = 1,
        is_long: bool = False,
        now_s: float = 0.0,
    ) -> None:
        """Promise blocks, and count prompt tokens as work that is still to do.

        ``claim``: blocks for the longest output; None where the lease is for that already.
        """
        assert request_id not in self.leases, f"{request_id} holds a lease on {self.name} already"
        sums = self._to_change()
        claim = max(blocks, claim or 0)
        self.leases[request_id] = blocks
        self.claims[request_id] = claim
        sums.leased += blocks
        sums.claimed += claim
        self.sequences[request_id] = sequence_count
        sums.sequences += sequence_count
        if is_long:
            self.long[request_id] = None
            sums.long_blocks += blocks
        if queued_tokens > 0:
            if not self.queued_tokens:
                sums.worked_until_s = now_s
            self.queued_tokens[request_id] = queued_tokens
            sums.queued += queued_tokens

    def grow(self, request_id: RequestId, *, blocks: int) -> None:
        """Promise more to a request that runs longer than expected; it is a long one now."""
        assert self.leases[request_id] <= blocks <= self.claims[request_id], request_id
        sums = self._to_change()
        added_blocks = blocks - self.leases[request_id]
        sums.leased += added_blocks
        sums.long_blocks += added_blocks if request_id in self.long else blocks
        self.leases[request_id] = blocks
        self.long[request_id] = None

    def shrink(self, request_id: RequestId, *, blocks: int, claim: int) -> None:
        """One of several choices has ended: its part of the promise is free."""
        assert blocks <= claim, request_id
        sums = self._to_change()
        added_blocks = blocks - self.leases[request_id]
        sums.leased += added_blocks
        if request_id in self.long:
            sums.long_blocks += added_blocks
        sums.claimed += claim - self.claims[request_id]
        self.leases[request_id] = blocks
        self.claims[request_id] = claim
        self.sequences[request_id] -= 1
        sums.sequences -= 1

    def lower(self, request_id: RequestId, *, blocks: int) -> None:
        """Promise less than before, as another scheduler does; it may grow again."""
        added_blocks = blocks - self.leases[request_id]
        assert added_blocks <= 0, request_id
        sums = self._to_change()
        sums.leased += added_blocks
        if request_id in self.long:
            sums.long_blocks += added_blocks
        self.leases[request_id] = blocks

    def computed(self, request_id: RequestId, *, now_s: float) -> float | None:
        """A prompt is done: seconds of work since the one before; None if it was not queued."""
        tokens = self.queued_tokens.pop(request_id, None)
        if tokens is None:
            return None
        sums = self._to_change()
        sums.queued -= tokens
        worked_s = max(now_s - sums.worked_until_s, 0.0)
        sums.worked_until_s = now_s
        return worked_s

    def backlog_tokens(self, *, tokens_per_s: float, now_s: float) -> float:
        """Prompt tokens ahead of a new request: queued and running ones, less what must be done of
        them by now. Never less than a tenth, because what is not reported is not done."""
        sums = self.sums
        worked = max(now_s - sums.worked_until_s, 0.0) * tokens_per_s
        return max(sums.queued - worked, 0.1 * sums.queued)

    @property
    def queued_token_count(self) -> int:
        """Prompt tokens of requests here that have no token yet."""
        return self.sums.queued

    def expect(self, request_id: RequestId, *, size_bytes: int) -> None:
        """KV blocks of a request are to come here."""
        self.inbound_bytes[request_id] = size_bytes
        self._to_change().inbound_bytes += size_bytes

    def received(self, request_id: RequestId) -> None:
        """They are here, or will not come. Idempotent."""
        if request_id in self.inbound_bytes:
            self._to_change().inbound_bytes -= self.inbound_bytes.pop(request_id)

    def release(self, request_id: RequestId) -> None:
        """End a lease. Idempotent: the request may never have had one here."""
        blocks = self.leases.pop(request_id, None)
        if blocks is None:
            return
        sums = self._to_change()
        sums.leased -= blocks
        if request_id in self.long:
            del self.long[request_id]
            sums.long_blocks -= blocks
        sums.claimed -= self.claims.pop(request_id)
        sums.sequences -= self.sequences.pop(request_id)
        sums.queued -= self.queued_tokens.pop(request_id, 0)
        self.received(request_id)

    def check(self) -> None:
        """The sums are those of the leases. (That nobody is promised what is not there depends on
        who leads: see ``invariants``.)"""
        sums = self.sums
        assert sums.leased == sum(self.leases.values()), self.name
        assert sums.claimed == sum(self.claims.values()), self.name
        assert sums.queued == sum(self.queued_tokens.values()), self.name
        assert sums.inbound_bytes == sum(self.inbound_bytes.values()), self.name
        assert sums.sequences == sum(self.sequences.values()), self.name
        assert sums.long_blocks == sum(map(self.leases.__getitem__, self.long)), self.name
        assert self.claims.keys() == self.leases.keys() == self.sequences.keys(), self.name
        for request_id, blocks in self.leases.items():
            assert blocks <= self.claims[request_id], f"{request_id} holds more than its claim"
        for part in (self.long, self.queued_tokens, self.inbound_bytes):
            assert part.keys() <= self.leases.keys(), f"{self.name}: kept without a lease"


def not_ready_reason(nodes: Iterable[Node], role: Role) -> str:
    """Why no node of a role takes work, for clients and operators; empty where one does."""
    of_role = sorted((node for node in nodes if node.role is role), key=lambda node: node.name)
    if any(node.takes_work for node in of_role):
        return ""
    cordoned = [node.name for node in of_role if node.state is NodeState.CORDONED]
    lost = [node.name for node in of_role if node.state is NodeState.LOST]
    told = []
    if cordoned:
        told.append(f"{_names(cordoned)} cordoned ('pdd node uncordon NODE' gives one back)")
    if lost:
        told.append(f"{_names(lost)} lost")
    return f"no {role} node is ready: {', '.join(told) or 'none has joined'}"


def _names(names: list[NodeName]) -> str:
    """With their verb. All of some hundred would be no message."""
    if len(names) == 1:
        return f"{names[0]} is"
    shown = names if len(names) <= _NAMES_SHOWN_MAX + 1 else names[:_NAMES_SHOWN_MAX]
    last = shown[-1] if shown is names else f"{len(names) - len(shown)} more"
    first = shown[:-1] if shown is names else shown
    return f"{', '.join(first)} and {last} are"
