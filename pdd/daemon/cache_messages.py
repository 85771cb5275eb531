"""A node's words about its cache, checked. Whose words they are its stream says, not they."""

from pdd.core.identity import NodeIdentity
from pdd.directory.entries import MESSAGE_KEY_COUNT_MAX, BlockDelta, SnapshotPart
from pdd.directory.keys import KEY_SIZE_BYTES
from pdd.rpc.v1 import cluster_pb2

_SEQUENCE_MAX = 2**53


class MessageFault(Exception):
    """A message that cannot be true. The text names field, value and limit."""


def read_position(message: cluster_pb2.CachePosition) -> int:
    """Number of the node's last delta. Raises MessageFault."""
    return _sequence("sequence", message.sequence, least=0)


def read_delta(message: cluster_pb2.CacheDelta, identity: NodeIdentity) -> BlockDelta:
    """Raises MessageFault."""
    first = _sequence("first_sequence", message.first_sequence, least=1)
    last = _sequence("last_sequence", message.last_sequence, least=first)
    _check_keys("removed", message.removed)
    _check_keys("stored", message.stored)
    _check_count(len(message.removed) + len(message.stored))
    return BlockDelta(
        node=identity.name,
        boot_epoch=identity.boot_epoch,
        first_sequence=first,
        last_sequence=last,
        is_cleared=message.cleared,
        removed=message.removed,
        stored=message.stored,
    )


def read_part(
    message: cluster_pb2.CacheSnapshotPart, identity: NodeIdentity, *, block_count: int
) -> SnapshotPart:
    """Raises MessageFault. ``block_count``: of the node's pool, which bounds the parts."""
    part_count_max = -(-block_count // MESSAGE_KEY_COUNT_MAX)
    if not 1 <= message.part_count <= part_count_max:
        raise MessageFault(
            f"part_count is {message.part_count}, must be in 1..{part_count_max} for a pool of "
            f"{block_count} blocks"
        )
    if not 0 <= message.part_index < message.part_count:
        raise MessageFault(
            f"part_index is {message.part_index}, must be in 0..{message.part_count - 1}"
        )
    _check_keys("keys", message.keys)
    _check_count(len(message.keys))
    return SnapshotPart(
        node=identity.name,
        boot_epoch=identity.boot_epoch,
        as_of_sequence=_sequence("as_of_sequence", message.as_of_sequence, least=0),
        part_index=message.part_index,
        part_count=message.part_count,
        keys=message.keys,
    )


def _sequence(field: str, value: int, *, least: int) -> int:
    if not least <= value <= _SEQUENCE_MAX:
        raise MessageFault(f"{field} is {value}, must be in {least}..2**53")
    return value


def _check_keys(field: str, keys: bytes) -> None:
    if len(keys) % KEY_SIZE_BYTES:
        raise MessageFault(
            f"{field} has {len(keys)} bytes, which is no multiple of {KEY_SIZE_BYTES}"
        )


def _check_count(size_bytes: int) -> None:
    if size_bytes > MESSAGE_KEY_COUNT_MAX * KEY_SIZE_BYTES:
        raise MessageFault(
            f"it names {size_bytes // KEY_SIZE_BYTES} keys, at most {MESSAGE_KEY_COUNT_MAX}"
        )
