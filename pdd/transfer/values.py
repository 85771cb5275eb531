"""What the engine's users see: peers, and the one terminal event of every transfer they open."""

from dataclasses import dataclass
from enum import StrEnum

from pdd.core.identity import NodeIdentity


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One rank of a node in one life, and how to reach it."""

    identity: NodeIdentity
    rank: int
    control_address: str
    ucx_address: bytes

    @property
    def peer_id(self) -> "PeerId":
        """What endpoints are kept by: a restarted node is another peer."""
        return PeerId(uuid=self.identity.uuid, boot_epoch=self.identity.boot_epoch, rank=self.rank)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerId:
    """A rank of a node in one life."""

    uuid: str
    boot_epoch: int
    rank: int

    def __str__(self) -> str:
        return f"{self.uuid[:8]}.{self.boot_epoch}#{self.rank}"


class Reason(StrEnum):
    """Why a transfer ended, or a message was refused. Used as metric labels."""

    COMPLETED = "completed"
    CANCELLED = "cancelled"  # by the target's user
    ABORTED = "aborted"  # by the source's user
    DEADLINE = "deadline"
    PEER_LOST = "peer_lost"
    DIGEST_MISMATCH = "digest_mismatch"
    OVERTAKEN = "overtaken"  # its slot in shared memory was used anew, twice
    REFUSED = "refused"  # by the source; the refusal's own reason is counted
    OUT_OF_RANGE = "out_of_range"
    PROTOCOL_VIOLATION = "protocol_violation"
    STOPPED = "stopped"  # the engine was closed
    # refusals
    WRONG_NODE = "wrong_node"  # the grant names another node as its source, or a former life
    WRONG_TARGET = "wrong_target"  # the grant names another node than the one it came from
    STALE_ATTEMPT = "stale_attempt"
    CONSUMED = "consumed"  # the sequence was sent or given up already
    UNKNOWN_KEY = "unknown_key"
    EXPIRED = "expired"
    LEASE_TOO_LONG = "lease_too_long"
    TOO_MANY_PENDING = "too_many_pending"
    MALFORMED = "malformed"
    UNKNOWN_NONCE = "unknown_nonce"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceReleased:
    """The source's blocks of ``key`` are read by nobody any more."""

    key: str
    reason: Reason
    sent_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetCompleted:
    """Every wanted block has arrived and been verified.

    ``duration_s``: since the blocks were asked for. ``moving_s``: since the source's engine came to
    the sequence and the source said so; a later chunk's computing time is in it.
    """

    key: str
    transferred_bytes: int
    duration_s: float
    moving_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetFailed:
    """``bad_indices`` (prompt block indices) did not arrive; nothing will write to them now."""

    key: str
    bad_indices: tuple[int, ...]
    reason: Reason
    transferred_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetCancelled:
    """The target's own cancel is done; nothing will write to its blocks now."""

    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """A connection as it is now. ``bytes_per_s``: while chunks were on their way, 0 if none were.

    ``lanes``: UCX's ``transport/device`` pairs (``tcp/lo``, ``rc_mlx5/mlx5_0:1``), and
    ``shared_memory`` where payload goes that way.
    """

    peer: PeerId
    lanes: tuple[str, ...]
    received_bytes: int
    bytes_per_s: float


TransferEvent = SourceReleased | TargetCompleted | TargetFailed | TargetCancelled
