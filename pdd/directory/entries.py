"""What the directory's log entries say, and their bytes.

    entry = msgpack [version, [operation, ...]]
    operation = [kind, field, ...]       the fields of one class below, in its order

Everything is decoded before anything is applied, so an entry counts whole or not at all. Keys are
joined 16-byte `BlockKey`s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeAlias

import msgpack

from pdd.directory.keys import KEY_SIZE_BYTES

ENTRY_VERSION = 1
"""History: 1 = first. Readers take any version up to theirs; an entry from a newer one is refused
with a result, so a leader writes what the oldest member of the cell can read."""
_COUNT_MAX = 2**53
_TEXT_MAX = 512

MESSAGE_KEY_COUNT_MAX = 4096
"""Keys that one delta or part of a snapshot names: 64 KiB, and a few milliseconds to apply, in
which a scheduler does nothing else."""


class EntryError(Exception):
    """Bytes that are no entry of a version known here. `DirectoryMachine.apply` answers with it."""


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > _TEXT_MAX:
        raise EntryError(f"expected text of at most {_TEXT_MAX} characters, got {_short(value)}")
    return value


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _COUNT_MAX:
        raise EntryError(f"expected an integer in 0..2**53, got {_short(value)}")
    return value


def _flag(value: Any) -> bool:
    if type(value) is not bool:
        raise EntryError(f"expected true or false, got {_short(value)}")
    return value


def _keys(value: Any) -> bytes:
    if type(value) is not bytes or len(value) % KEY_SIZE_BYTES:
        raise EntryError(f"expected whole {KEY_SIZE_BYTES}-byte keys, got {_short(value)}")
    return value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeJoined:
    """A node's cache in one life begins, empty. Any older life's entries are void."""

    KIND: ClassVar[int] = 1
    node: str
    uuid: str
    boot_epoch: int
    block_count: int
    """Size of its pool: it cannot hold more than this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLeft:
    """A node is gone for good; one that only lost its connection keeps its entries."""

    KIND: ClassVar[int] = 2
    node: str
    boot_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockDelta:
    """What changed in a node's cache by its deltas ``first_sequence``..``last_sequence``.

    In this order: everything cleared, if so; then removed; then stored. `fold.Fold` brings events
    of any order into this form.
    """

    KIND: ClassVar[int] = 3
    node: str
    boot_epoch: int
    first_sequence: int
    last_sequence: int
    is_cleared: bool = False
    removed: bytes = b""
    stored: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotPart:
    """A slice of everything that a node holds after its delta ``as_of_sequence``.

    Parts come in order with no delta of that node between them; else the snapshot is dropped and
    has to be asked for again.
    """

    KIND: ClassVar[int] = 4
    node: str
    boot_epoch: int
    as_of_sequence: int
    part_index: int
    part_count: int
    keys: bytes


Operation: TypeAlias = NodeJoined | NodeLeft | BlockDelta | SnapshotPart

_CHECKS: dict[int, tuple[type[Operation], tuple[Any, ...]]] = {
    NodeJoined.KIND: (NodeJoined, (_text, _text, _count, _count)),
    NodeLeft.KIND: (NodeLeft, (_text, _count)),
    BlockDelta.KIND: (BlockDelta, (_text, _count, _count, _count, _flag, _keys, _keys)),
    SnapshotPart.KIND: (SnapshotPart, (_text, _count, _count, _count, _count, _keys)),
}
_NAMES = {kind: made.__slots__ for kind, (made, _) in _CHECKS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryEntry:
    operations: tuple[Operation, ...]

    def encode(self) -> bytes:
        packed: bytes = msgpack.packb([ENTRY_VERSION, [_fields_of(one) for one in self.operations]])
        return packed

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Raises `EntryError`, which says what is wrong, and nothing else."""
        try:
            entry = msgpack.unpackb(data, strict_map_key=True)
        except (ValueError, msgpack.UnpackException) as error:
            raise EntryError(f"no msgpack: {error}") from error
        if not isinstance(entry, list) or not entry or type(entry[0]) is not int:
            raise EntryError("no directory entry: it does not begin with a version")
        if not 1 <= entry[0] <= ENTRY_VERSION:
            raise EntryError(
                f"entry of version {entry[0]}, this pdd reads 1..{ENTRY_VERSION}: "
                "upgrade this replica, or let the leader write the older form"
            )
        if len(entry) != 2 or not isinstance(entry[1], list):
            raise EntryError("a directory entry is [version, operations]")
        return cls(operations=tuple(map(_decode_one, entry[1])))


def _fields_of(operation: Operation) -> list[Any]:
    return [operation.KIND, *(getattr(operation, name) for name in _NAMES[operation.KIND])]


def _decode_one(fields: Any) -> Operation:
    is_known = isinstance(fields, list) and fields and type(fields[0]) is int
    if not is_known or fields[0] not in _CHECKS:
        raise EntryError(f"unknown operation {_short(fields)}")
    made, checks = _CHECKS[fields[0]]
    if len(fields) != len(checks) + 1:
        raise EntryError(
            f"{made.__name__} has {len(checks)} fields, got {len(fields) - 1}: {_short(fields)}"
        )
    values = [check(value) for check, value in zip(checks, fields[1:], strict=True)]
    operation = made(**dict(zip(_NAMES[fields[0]], values, strict=True)))
    if isinstance(operation, BlockDelta):
        if not 1 <= operation.first_sequence <= operation.last_sequence:
            raise EntryError(
                f"a delta of {operation.node} runs from {operation.first_sequence} "
                f"to {operation.last_sequence}; sequences count up from 1"
            )
    elif isinstance(operation, SnapshotPart) and operation.part_index >= operation.part_count:
        raise EntryError(
            f"part {operation.part_index} of a snapshot of {operation.part_count} parts "
            f"of {operation.node}"
        )
    return operation


def joined(keys: Sequence[bytes]) -> bytes:
    """Keys as the entries carry them."""
    return b"".join(keys)
