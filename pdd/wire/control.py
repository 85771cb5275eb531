"""Control messages of a transfer: they go over the authenticated channel between the daemons.

That channel and UCX are not ordered against each other, and any message may be lost or come
twice; therefore every message is idempotent, and none of them alone can make a transfer succeed.

============  ================  ============================================================
message       from -> to        meaning
============  ================  ============================================================
``Grant``     target -> source  the ticket: these blocks, reserved for you, until this deadline
``Refusal``   source -> target  no; the reason is counted on both sides
``Again``     target -> source  the chunk at this serial was damaged; send it once more
``Receipt``   target -> source  every block has been verified; yours may be released
``Cancel``    target -> source  send nothing more; answer in band with an END record
``Probe``     source -> target  all is sent; where is my receipt?
============  ================  ============================================================

Format: msgpack array ``[version, kind, fields...]`` in the order of the dataclass.
"""

from dataclasses import dataclass, fields
from typing import Any

import msgpack

CONTROL_VERSION = 3
"""Of these messages and of the records in band (``wire.record``). 2: records name the generation of
a slot in shared memory. 3: grants name the connection."""
MAX_KEY_CHARS = 256
MAX_BLOCKS = 1 << 20
_NONCE_LIMIT = 1 << 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """A ticket. ``attempt`` is its generation: 0, then 1 after a resume.

    ``block_ids`` are the target's reserved blocks for prompt block indices ``first_index``...;
    those whose index is in ``held`` have arrived in an earlier attempt and are not wanted.
    ``lease_ms`` counts from the moment the source reads the message. ``address`` is the target
    rank's (``wire.address``). ``shared`` is 1 when the target can read the source's shared memory.
    ``connection`` counts the endpoints to the source that the target has lost: a source that has
    lost fewer holds one that is paired with a closed one (``transfer.connection_numbers``).
    """

    key: str
    nonce: int
    attempt: int
    source_uuid: str
    source_boot_epoch: int
    target_uuid: str
    target_boot_epoch: int
    first_index: int
    block_ids: tuple[int, ...]
    held: tuple[int, ...]
    lease_ms: int
    address: bytes
    shared: int
    connection: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """The source will not serve this grant. ``reason`` is one of a small fixed set of words."""

    key: str
    nonce: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """The chunk announced by record ``serial`` did not match its digest."""

    key: str
    nonce: int
    serial: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """Every wanted block has been verified by the target."""

    key: str
    nonce: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """The target wants nothing (more) under this nonce. Repeated until END comes in band."""

    key: str
    nonce: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """The source has sent everything and heard nothing."""

    key: str
    nonce: int


ControlMessage = Grant | Refusal | Again | Receipt | Cancel | Probe

_KINDS: dict[int, type[ControlMessage]] = {
    1: Grant,
    2: Refusal,
    3: Again,
    4: Receipt,
    5: Cancel,
    6: Probe,
}
_NUMBERS = {kind: number for number, kind in _KINDS.items()}


def pack_control(message: ControlMessage) -> bytes:
    """Write a control message."""
    values = [getattr(message, field.name) for field in fields(message)]
    packed: bytes = msgpack.packb([CONTROL_VERSION, _NUMBERS[type(message)], *values])
    return packed


def unpack_control(payload: bytes) -> ControlMessage:
    """Read a control message.

    Raises:
        ValueError: not one of these messages, another version, or a field out of its bounds.
    """
    try:
        array: Any = msgpack.unpackb(
            payload, use_list=False, raw=False, max_array_len=MAX_BLOCKS, max_map_len=0
        )
    except Exception as error:  # msgpack raises half a dozen unrelated types
        raise ValueError(f"not a control message: {error}") from error
    if not isinstance(array, tuple) or len(array) < 2:
        raise ValueError("not a control message: no [version, kind, ...] array")
    version, number, *values = array
    if version != CONTROL_VERSION:
        raise ValueError(f"control version {version!r}; this node speaks {CONTROL_VERSION}")
    kind = _KINDS.get(number) if isinstance(number, int) else None
    if kind is None:
        raise ValueError(f"control kind {number!r} is unknown")
    names = [field.name for field in fields(kind)]
    if len(values) != len(names):
        raise ValueError(f"{kind.__name__} has {len(names)} fields, not {len(values)}")
    message = kind(**dict(zip(names, values, strict=True)))
    _check(message)
    return message


_TYPES: dict[str, type] = {
    "key": str,
    "reason": str,
    "source_uuid": str,
    "target_uuid": str,
    "address": bytes,
    "block_ids": tuple,
    "held": tuple,
}


def _check(message: ControlMessage) -> None:
    """Bound every field of a message that a peer sent."""
    for field in fields(message):
        value: Any = getattr(message, field.name)
        fault = _fault(value, _TYPES.get(field.name, int))
        if fault:
            raise ValueError(f"{type(message).__name__}.{field.name} {fault}")
    if not 0 < message.nonce < _NONCE_LIMIT:
        raise ValueError(f"nonce {message.nonce} is not in 1..2^40-1")


def _fault(value: Any, wanted: type) -> str:
    """What is wrong with a value; empty when nothing is."""
    kind: type = type(value)
    if kind is not wanted:
        return f"is {kind.__name__}, not {wanted.__name__}"
    if wanted is int and not 0 <= value < (1 << 63):
        return f"= {value} is not in 0..2^63-1"
    if wanted is str and len(value) > MAX_KEY_CHARS:
        return f"has {len(value)} > {MAX_KEY_CHARS} characters"
    if wanted is tuple and not all(type(i) is int and 0 <= i < (1 << 40) for i in value):
        return "holds something else than block numbers"
    return ""
