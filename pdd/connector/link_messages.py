"""What a node daemon and its worker halves say to each other, over one Unix socket per rank.

Frame: 4 bytes big-endian length, then a msgpack map with the key ``t`` (the type) and the fields
of the dataclass. Both ends come from one installation and one machine, so there is no version;
the first message carries a secret that only the daemon's own children know.

=============  =========  ==================================================================
message        direction  meaning
=============  =========  ==================================================================
Hello          up         first message of a rank: secret, pool facts, UCX worker address
Progress       up         prompt positions computed in a step
Ready          up         a decode job can go on: blocks verified, first token known
LoadFailed     up         some blocks of a decode job did not arrive; it recomputes them
Control        both       a message of the transfer protocol, to or from a rank of a peer
FirstToken     down       output token 0 of a decode job
DropSource     down       nobody will fetch the blocks of this prefill job
Counters       up         the transfer engine's counters, at most once a second
ConnectRank    down       have a connection to a rank of a peer
DisconnectRank down       close it
AskConnections down       answer with Connections
Connections    up         the rank's connections as they are
Blocks         up         the blocks as the engine's own process last counted them
AskTable       down       answer with Table, after the next engine step
Table          up         the blocks of one job
=============  =========  ==================================================================
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any, get_args, get_origin

import msgpack

MESSAGE_SIZE_BYTES_MAX = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    secret: str
    rank: int
    block_count: int
    block_bytes: int
    ucx_address: bytes
    fingerprint: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    key: str
    start: int
    end: int
    prompt_token_count: int
    cached_token_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    key: str
    transferred_bytes: int
    transfer_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadFailed:
    key: str
    reason: str
    transferred_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulled:
    """A prefill job's pull is over on this rank. ``block_count``: those that need not be computed;
    ``failed_reason``: empty if that is all of them."""

    key: str
    block_count: int
    size_bytes: int
    pull_s: float
    failed_reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """``peer_*`` is the other end: the target when going up, the sender when going down."""

    peer_name: str
    peer_uuid: str
    peer_boot_epoch: int
    peer_rank: int
    peer_address: str
    peer_ucx_address: bytes
    payload: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstToken:
    key: str
    token_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DropSource:
    key: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    values: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectRank:
    """Blocks are exchanged whole: vLLM packs them in ways that cannot be cut by heads."""

    peer_name: str
    peer_uuid: str
    peer_boot_epoch: int
    peer_rank: int
    peer_address: str
    peer_ucx_address: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DisconnectRank:
    peer_name: str
    peer_uuid: str
    peer_boot_epoch: int
    peer_rank: int
    peer_address: str
    peer_ucx_address: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class AskConnections:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Connections:
    """One entry per connection in each list. ``lanes``: one connection's, joined by commas."""

    peer_uuids: list[str]
    peer_boot_epochs: list[int]
    peer_ranks: list[int]
    lanes: list[str]
    received_bytes: list[int]
    bytes_per_s: list[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """``core.blocks.BlockCensus``, with the first lost and doubled ids only."""

    free: int
    cached: int
    active: int
    leased: int
    quarantined: int
    total: int
    lost_count: int
    doubled_count: int
    lost_ids: list[int]
    doubled_ids: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class AskTable:
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """``block_ids``: in prompt order, the same on every rank; empty where nothing is held."""

    key: str
    block_ids: list[int]


LinkMessage = (
    Hello
    | Progress
    | Ready
    | LoadFailed
    | Pulled
    | Control
    | FirstToken
    | DropSource
    | Counters
    | ConnectRank
    | DisconnectRank
    | AskConnections
    | Connections
    | Blocks
    | AskTable
    | Table
)
_TYPES: dict[str, type[LinkMessage]] = {kind.__name__: kind for kind in get_args(LinkMessage)}
_FIELD_TYPES = {
    kind: {field.name: field.type for field in fields(kind)} for kind in _TYPES.values()
}


class LinkError(Exception):
    """The other end of a link broke the protocol or went away."""


def encode(message: LinkMessage) -> bytes:
    """One frame. Raises ValueError above ``MESSAGE_SIZE_BYTES_MAX``."""
    body = msgpack.packb({"t": type(message).__name__, **asdict(message)})
    if len(body) > MESSAGE_SIZE_BYTES_MAX:
        raise ValueError(
            f"link message {type(message).__name__} has {len(body)} bytes, "
            f"the limit is {MESSAGE_SIZE_BYTES_MAX}"
        )
    return len(body).to_bytes(4, "big") + bytes(body)


class Decoder:
    """Turns a byte stream into messages. Holds at most one incomplete frame."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[LinkMessage]:
        """Every message that is complete now. Raises LinkError on anything malformed."""
        self._buffer += data
        while len(self._buffer) >= 4:
            size = int.from_bytes(self._buffer[:4], "big")
            if size > MESSAGE_SIZE_BYTES_MAX:
                raise LinkError(f"frame of {size} bytes, the limit is {MESSAGE_SIZE_BYTES_MAX}")
            if len(self._buffer) < 4 + size:
                return
            body = bytes(self._buffer[4 : 4 + size])
            del self._buffer[: 4 + size]
            yield _decode_body(body)


def _decode_body(body: bytes) -> LinkMessage:
    try:
        values: dict[str, Any] = msgpack.unpackb(body)
        message: LinkMessage = _TYPES[values.pop("t")](**values)
        for name, kind in _FIELD_TYPES[type(message)].items():
            if not _fits(getattr(message, name), kind):
                raise TypeError(f"{name} of {type(message).__name__} is no {kind}")  # noqa: TRY301
    except (ValueError, KeyError, TypeError, AttributeError, msgpack.UnpackException) as error:
        raise LinkError(f"malformed frame of {len(body)} bytes: {error}") from error
    return message


def _fits(value: object, kind: Any) -> bool:
    """Whether a value from the wire is of a field's type; an int may stand for a float."""
    if kind is float:
        return isinstance(value, int | float)
    if get_origin(kind) is list:
        (of_entry,) = get_args(kind)
        return isinstance(value, list) and all(_fits(entry, of_entry) for entry in value)
    if of := get_args(kind):
        return isinstance(value, dict) and all(
            _fits(key, of[0]) and _fits(entry, of[1]) for key, entry in value.items()
        )
    return isinstance(value, kind)
