"""The nodes as the scheduler sees them, and the leases that requests hold on their blocks."""

from dataclasses import dataclass, field

from pdd.core.identity import NodeIdentity, NodeName, NodeState, RequestId, Role


@dataclass(slots=True, kw_only=True)
class Node:
    """One member. ``leases``: KV blocks promised to each request that may use them here.

    Invariant: a request holds a lease exactly while a job of its present generation may run here.
    """

    identity: NodeIdentity
    role: Role
    address: str
    block_count: int
    block_size: int
    max_model_len: int
    max_num_seqs: int
    seen_s: float
    state: NodeState = NodeState.READY
    state_reason: str = ""
    free_block_count: int = 0
    running_sequence_count: int = 0
    waiting_sequence_count: int = 0
    leases: dict[RequestId, int] = field(default_factory=dict)
    queued_tokens: dict[RequestId, int] = field(default_factory=dict)

    @property
    def name(self) -> NodeName:
        """Its name in the cluster."""
        return self.identity.name

    @property
    def takes_work(self) -> bool:
        """Whether new requests may be placed here."""
        return self.state in (NodeState.READY, NodeState.DEGRADED)

    @property
    def usable_block_count(self) -> int:
        """Blocks that sequences can hold; vLLM keeps one as its null block."""
        return self.block_count - 1

    def blocks_for(self, token_count: int) -> int:
        """Blocks that hold ``token_count`` tokens."""
        return -(-token_count // self.block_size)

    def token_count_max(self) -> int:
        """The longest sequence, prompt and output, that an empty node can run."""
        return min(self.usable_block_count * self.block_size, self.max_model_len)

    def unleased_block_count(self) -> int:
        """Blocks that are promised to nobody."""
        return self.usable_block_count - sum(self.leases.values())

    def lease(self, request_id: RequestId, *, blocks: int, queued_tokens: int) -> None:
        """Promise blocks, and count prompt tokens as work that is still to do."""
        assert request_id not in self.leases, f"{request_id} holds a lease on {self.name} already"
        self.leases[request_id] = blocks
        self.queued_tokens[request_id] = queued_tokens

    def release(self, request_id: RequestId) -> None:
        """End a lease. Idempotent: the request may never have had one here."""
        self.leases.pop(request_id, None)
        self.queued_tokens.pop(request_id, None)
