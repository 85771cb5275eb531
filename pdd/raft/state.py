"""Everything one replica knows. The other modules are functions over it.

`Leadership` holds what exists only while leading and is dropped whole on stepping down, so no flag
of a former leadership can survive into the next one (a transfer that never ended, a read answered
by acks of an old term).
"""

from __future__ import annotations

import random
from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from enum import StrEnum

from pdd.raft.config import RaftConfig
from pdd.raft.log import RaftLog
from pdd.raft.messages import Message
from pdd.raft.progress import Progress
from pdd.raft.reads import ReadRounds
from pdd.raft.values import HardState, NodeId, Snapshot

STATE_HASHES_KEPT = 8


class Role(StrEnum):
    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre_candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """Two replicas applied the same log and differ: a bug. The driver must end the process."""

    index: int
    own_hash: bytes
    leader_hash: bytes


@dataclass(slots=True, kw_only=True)
class Transfer:
    target: NodeId
    elapsed_ticks: int = 0
    timeout_now_sent: bool = False


@dataclass(slots=True, kw_only=True)
class Leadership:
    progress: dict[NodeId, Progress]
    """One per voter, the leader included: its own match_index is what *its* disk holds."""
    reads: ReadRounds
    uncommitted_bytes: int = 0
    transfer: Transfer | None = None


@dataclass(slots=True, kw_only=True)
class RaftState:
    config: RaftConfig
    random: random.Random
    log: RaftLog
    term: int
    vote: NodeId | None
    role: Role = Role.FOLLOWER
    leader: NodeId | None = None
    election_elapsed_ticks: int = 0
    heartbeat_elapsed_ticks: int = 0
    election_timeout_ticks: int = 0
    votes: dict[NodeId, bool] = field(default_factory=dict)
    leadership: Leadership | None = None
    outbox: list[Message] = field(default_factory=list)
    pending_snapshot: Snapshot | None = None
    """Installed, not yet handed to the driver."""
    confirmed_reads: list[tuple[int, object]] = field(default_factory=list)
    """(index, context): answered once that index is applied. Ordered by index."""
    aborted_reads: list[object] = field(default_factory=list)
    written: HardState
    """Newest hard state given to the driver."""
    durable_term: int
    """Term of the newest hard state the driver has reported durable."""
    state_hashes: OrderedDict[int, bytes] = field(default_factory=OrderedDict)
    """Own hashes by log index, newest last; bounded by STATE_HASHES_KEPT."""
    leader_hashes: OrderedDict[int, bytes] = field(default_factory=OrderedDict)
    """What leaders said, likewise. Either side may be ahead, hence more than one is kept."""
    divergence: Divergence | None = None
    ignored: Counter[str] = field(default_factory=Counter)
    """Messages dropped, by reason: for metrics and for the operator's question why."""

    @property
    def is_leader(self) -> bool:
        return self.role is Role.LEADER

    def send(self, message: Message) -> None:
        self.outbox.append(message)
