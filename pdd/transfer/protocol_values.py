"""Events and effects of the two transfer protocols.

``step(event, now_s=...)`` returns effects that must be obeyed in their order, before the next
event is taken. The driver keeps two promises:

- messages under one nonce are posted in the order of the effects;
- ``PeerLost`` comes after the final status of every send and receive of that peer, so that after
  it nothing can be read from or written to any block on behalf of that peer.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pdd.transfer.values import PeerId, TransferEvent
from pdd.wire.control import Again, Cancel, ControlMessage, Grant, Receipt
from pdd.wire.record import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOpened:
    """A sequence whose blocks may be asked for until ``deadline_at_s``."""

    key: str
    deadline_at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceAppended:
    """Blocks ``first_index``... are computed. ``last``: there will be no others."""

    key: str
    first_index: int
    block_ids: Sequence[int]
    last: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceAborted:
    """The source's user gave the sequence up. ``reason`` names a counter."""

    key: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkSent:
    """All messages of a chunk have their final status."""

    nonce: int
    serial: int
    size_bytes: int
    ok: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOpened:
    """Blocks reserved for prompt block indices ``first_index``... are to be filled by ``peer``.

    ``shared``: the peer's shared memory is mapped here.
    """

    key: str
    peer: PeerId
    first_index: int
    block_ids: Sequence[int]
    deadline_at_s: float
    shared: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetCancelRequested:
    """The target's user gave the sequence up."""

    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordReceived:
    """A posted record receive has its final status. ``data`` None: it failed."""

    nonce: int
    data: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkReceived:
    """All receives of a chunk are final. ``ok`` False: some failed; ``digest`` of what arrived.

    ``overtaken``: the source used the chunk's slot in shared memory anew before it was copied.
    """

    nonce: int
    serial: int
    ok: bool
    digest: int
    overtaken: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlReceived:
    """A control message from an authenticated peer."""

    peer: PeerId
    message: ControlMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLost:
    """The endpoint to ``peer`` is gone and everything on it is final."""

    peer: PeerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticked:
    """Time has passed; see ``next_wakeup_s``."""


SourceEvent = (
    SourceOpened | SourceAppended | SourceAborted | ChunkSent | ControlReceived | PeerLost | Ticked
)
TargetEvent = (
    TargetOpened
    | TargetCancelRequested
    | RecordReceived
    | ChunkReceived
    | ControlReceived
    | PeerLost
    | Ticked
)
FOR_SOURCE = (Grant, Again, Receipt, Cancel)


# ------------------------------------------------------------------------------------ effects


@dataclass(frozen=True, slots=True, kw_only=True)
class Connect:
    """Have an endpoint to ``peer``. A failure comes back as ``PeerLost``."""

    peer: PeerId


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosePeer:
    """Close the endpoint to ``peer``; ``PeerLost`` follows when everything on it is final."""

    peer: PeerId


@dataclass(frozen=True, slots=True, kw_only=True)
class SendControl:
    """Send over the control channel. May be lost."""

    peer: PeerId
    message: ControlMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class SendRecord:
    """Send a record in band."""

    peer: PeerId
    record: Record


@dataclass(frozen=True, slots=True, kw_only=True)
class SendChunk:
    """Announce and send a chunk. ``ChunkSent`` follows.

    ``shared``: through shared memory, which the target has mapped.
    ``number``: 0-based among the chunks of its lane; the same when it is sent once more.
    ``target_block_ids`` let the driver see which neighbours are neighbours on both sides.
    """

    peer: PeerId
    nonce: int
    serial: int
    first_index: int
    block_ids: tuple[int, ...]
    target_block_ids: tuple[int, ...]
    number: int
    shared: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PostRecord:
    """Post a receive for the next record under ``nonce``. ``RecordReceived`` follows."""

    peer: PeerId
    nonce: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiveChunk:
    """Post receives for a chunk: into ``block_ids`` when ``direct``, else into a staging buffer.

    ``ChunkReceived`` follows.
    """

    peer: PeerId
    record: Record
    block_ids: tuple[int, ...]
    direct: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscardChunk:
    """Take a chunk's messages off the wire, no block in reach. ``ChunkReceived`` follows."""

    peer: PeerId
    record: Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Land:
    """The chunk is right: copy it from staging into its blocks (nothing to do when direct)."""

    nonce: int
    serial: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """The chunk is not wanted: give its staging buffer back."""

    nonce: int
    serial: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Emit:
    """Tell the engine's user."""

    event: TransferEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """Add one to a counter."""

    name: str


Effect = (
    Connect
    | ClosePeer
    | SendControl
    | SendRecord
    | SendChunk
    | PostRecord
    | ReceiveChunk
    | DiscardChunk
    | Land
    | Drop
    | Emit
    | Count
)
