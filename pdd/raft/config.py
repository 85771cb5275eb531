"""Voters, timing and bounds of one replica. Checked once, here; the rest of the room trusts it.

Time is a count of ticks; the driver decides how long one is. With a tick of 100 ms the defaults
give a heartbeat each 100 ms and an election timeout drawn from 1.0 to 2.0 s.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from pdd.core.errors import ConfigError
from pdd.raft.values import NodeId

KIB = 1024
MIB = 1024 * KIB
VOTER_COUNTS = (1, 3, 5)
_AT_LEAST_ONE = (
    "heartbeat_ticks",
    "max_message_bytes",
    "max_inflight_messages",
    "max_inflight_bytes",
    "max_entry_bytes",
    "max_uncommitted_bytes",
    "max_apply_bytes",
    "max_pending_reads",
    "snapshot_ticks",
    "state_hash_interval",
)


class RaftConfigError(ConfigError):
    """One or more settings cannot work; the message names each with its limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftConfig:
    node: NodeId
    voters: tuple[NodeId, ...]
    """All replicas, this one included. Fixed for the life of the cluster: 1, 3 or 5."""
    cluster_id: str
    """In every message and in the WAL header; a replica of another cluster is refused."""
    election_ticks: int = 10
    """Least election timeout; the one in use is drawn from [this, 2 * this) per election."""
    heartbeat_ticks: int = 1
    max_message_bytes: int = 256 * KIB
    """Entries of one append. A single larger entry still travels, alone."""
    max_inflight_messages: int = 64
    """Unanswered appends per follower; at the bound the leader sends no further entries to it."""
    max_inflight_bytes: int = 4 * MIB
    max_entry_bytes: int = 1 * MIB
    """A larger proposal is refused (TOO_LARGE)."""
    max_uncommitted_bytes: int = 16 * MIB
    """Proposals beyond it are refused (UNCOMMITTED_FULL) until entries commit."""
    max_apply_bytes: int = 1 * MIB
    """Committed entries in one Ready; the rest comes with the next."""
    max_pending_reads: int = 4096
    """Reads waiting for their quorum; beyond it they are refused (READS_FULL)."""
    snapshot_ticks: int = 100
    """A follower silent about a snapshot this long is probed again."""
    state_hash_interval: int = 1024
    """State hashes are compared across replicas at each multiple of this log index."""
    peers: tuple[NodeId, ...] = field(init=False)
    """The other voters, in config order (never a set: its order changes per process)."""

    def __post_init__(self) -> None:
        peers = tuple(voter for voter in self.voters if voter != self.node)
        object.__setattr__(self, "peers", peers)
        faults = list(self._faults())
        if faults:
            raise RaftConfigError("raft: " + "; ".join(faults))

    def _faults(self) -> list[str]:
        faults = []
        if len(set(self.voters)) != len(self.voters):
            faults.append(f"voters {list(self.voters)} name a replica twice")
        if len(self.voters) not in VOTER_COUNTS:
            faults.append(f"voters must be 1, 3 or 5, not {len(self.voters)}")
        if self.node not in self.voters:
            faults.append(f"node {self.node!r} is not among voters {list(self.voters)}")
        if not self.cluster_id:
            faults.append("cluster_id must not be empty")
        if self.election_ticks < 3 * self.heartbeat_ticks:
            faults.append(
                f"election_ticks ({self.election_ticks}) must be at least 3 x heartbeat_ticks "
                f"({self.heartbeat_ticks}), else a late heartbeat starts an election"
            )
        faults += [
            f"{name} must be at least 1, not {getattr(self, name)}"
            for name in _AT_LEAST_ONE
            if getattr(self, name) < 1
        ]
        return faults

    @property
    def quorum(self) -> int:
        return len(self.voters) // 2 + 1


def voters_hash(voters: tuple[NodeId, ...]) -> bytes:
    """8 bytes that differ when two replicas disagree about who votes. Order does not matter."""
    joined = "\x00".join(sorted(voters)).encode()
    return hashlib.blake2b(joined, digest_size=8).digest()
