"""Entries of the cell's log, to and from bytes.

    entry  = msgpack [version, HARD, [operation, ...]]      operation = [kind, field, ...]
           | msgpack [version, SOFT, bytes]                 of `pdd.cell.sequences`
    result = msgpack [log index, [status, ...], fault or None]      of a hard entry; else empty

An entry is decoded whole before any of it is applied, so it counts whole or not at all.

Versions: 1 (first); 2, roles (kinds 9 and 10). Within a kind, a field is only ever added at the
end, with the version it came with and what older entries mean by its absence; a new kind names its
version likewise. An entry is written in the oldest version that says all of it and that the release
before has as its own: so one scheduler of a cell may be updated after the other, and what only the
newer ones have is refused by an older one as a whole. A release reads everything that the one
before may have written, which is two versions back: after an update a log is full of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import msgpack

from pdd.cell.operations import (
    Cordoned,
    MemberJoined,
    MemberLeft,
    Operation,
    OverrideRemoved,
    OverrideSet,
    QuotaRemoved,
    QuotaSet,
    RoleReleased,
    RoleSet,
    Status,
    Uncordoned,
)

VERSION = 2
TEXT_MAX_CHARS = 512
COUNT_MAX = 2**53
OPERATIONS_MAX = 4096
"""In one entry."""


class EntryClass(IntEnum):
    """Numbers are in the log: never reuse one."""

    HARD = 1
    SOFT = 2


class EntryError(Exception):
    """Bytes that are no entry of a version known here; the message says why, without the bytes."""


Check = Callable[[str, Any], Any]
"""``(field name, value from outside) -> value``; raises EntryError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldRule:
    """One field. ``absent``: its value in entries older than ``since``."""

    name: str
    check: Check
    since: int = 1
    absent: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KindRule:
    """One operation."""

    made: type[Any]
    fields: tuple[FieldRule, ...]
    since: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class HardEntry:
    """Operations, applied in this order."""

    operations: tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftEntry:
    """What `pdd.cell.sequences` reads; it has versions of its own."""

    data: bytes


class Codec:
    """Of one release. ``kinds``: by number, which is never reused."""

    def __init__(self, kinds: Mapping[int, KindRule], *, version: int) -> None:
        self._kinds = kinds
        self._numbers = {rule.made: number for number, rule in kinds.items()}
        self.version = version
        self.oldest_written_version = max(version - 1, 1)
        self.oldest_readable_version = max(version - 2, 1)

    def encode(self, operations: Sequence[Any], *, version: int | None = None) -> bytes:
        """A hard entry. ``version``: None: see the module.

        Raises:
            EntryError: an operation that ``version`` does not have: upgrade the cell first.
        """
        if version is None:
            needed = (self._version_of(operation) for operation in operations)
            version = max([self.oldest_written_version, *needed])
        rows = [self._row(operation, version) for operation in operations]
        data: bytes = msgpack.packb([version, EntryClass.HARD, rows])
        return data

    def _version_of(self, operation: Any) -> int:
        """The oldest one in which nothing of it is lost."""
        rule = self._kinds[self._numbers[type(operation)]]
        told = (one.since for one in rule.fields if getattr(operation, one.name) != one.absent)
        return max([rule.since, *told])

    def _row(self, operation: Any, version: int) -> list[Any]:
        number = self._numbers[type(operation)]
        rule = self._kinds[number]
        if rule.since > version:
            raise EntryError(
                f"{rule.made.__name__} needs entries of version {rule.since}, this cell still "
                f"writes {version}: upgrade every scheduler first"
            )
        present = [field for field in rule.fields if field.since <= version]
        return [number, *(getattr(operation, field.name) for field in present)]

    def encode_soft(self, data: bytes) -> bytes:
        """A soft entry; the same in every version so far."""
        packed: bytes = msgpack.packb([self.oldest_written_version, EntryClass.SOFT, data])
        return packed

    def decode(self, data: bytes) -> HardEntry | SoftEntry:
        """Raises EntryError and nothing else."""
        try:
            entry = msgpack.unpackb(data, strict_map_key=True)
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise EntryError(f"no msgpack ({type(error).__name__})") from error
        if not isinstance(entry, list) or len(entry) != 3 or type(entry[0]) is not int:
            raise EntryError("an entry is [version, class, content]")
        version, entry_class, content = entry
        if not self.oldest_readable_version <= version <= self.version:
            raise EntryError(
                f"entry of version {version}; this release reads "
                f"{self.oldest_readable_version} to {self.version}: upgrade the older scheduler"
            )
        if entry_class == EntryClass.SOFT and isinstance(content, bytes):
            return SoftEntry(data=content)
        if entry_class != EntryClass.HARD or not isinstance(content, list):
            raise EntryError("neither a list of operations nor soft bytes")
        if len(content) > OPERATIONS_MAX:
            raise EntryError(f"{len(content)} operations, the most is {OPERATIONS_MAX}")
        return HardEntry(operations=tuple(self._operation(row, version) for row in content))

    def _operation(self, row: Any, version: int) -> Any:
        if not isinstance(row, list) or not row or type(row[0]) is not int:
            raise EntryError("an operation is [kind, field, ...]")
        rule = self._kinds.get(row[0])
        if rule is None or rule.since > version:
            raise EntryError(f"version {version} has no operation {row[0]}")
        present = [field for field in rule.fields if field.since <= version]
        if len(row) != len(present) + 1:
            raise EntryError(f"{rule.made.__name__} has {len(present)} fields, not {len(row) - 1}")
        values = {field.name: field.absent for field in rule.fields}
        for field, value in zip(present, row[1:], strict=True):
            values[field.name] = field.check(f"{rule.made.__name__}.{field.name}", value)
        return rule.made(**values)


def text(name: str, value: Any) -> str:
    """Text of bounded length."""
    if type(value) is not str or len(value) > TEXT_MAX_CHARS:
        raise EntryError(f"{name} is not text of at most {TEXT_MAX_CHARS} characters")
    return value


def count(name: str, value: Any) -> int:
    """A number from 0."""
    if type(value) is not int or not 0 <= value <= COUNT_MAX:
        raise EntryError(f"{name} is not an integer from 0 to 2**53")
    return value


def count_or_none(name: str, value: Any) -> int | None:
    """The same, or no limit."""
    return None if value is None else count(name, value)


def flag(name: str, value: Any) -> bool:
    """True or false."""
    if type(value) is not bool:
        raise EntryError(f"{name} is not true or false")
    return value


def kind(made: type[Any], *, since: int = 1, **checks: Check) -> KindRule:
    """A kind whose fields are all as old as itself."""
    fields = tuple(FieldRule(name=name, check=check, since=since) for name, check in checks.items())
    return KindRule(made=made, fields=fields, since=since)


KINDS: dict[int, KindRule] = {
    1: kind(
        MemberJoined,
        node=text,
        uuid=text,
        boot_epoch=count,
        role=text,
        address=text,
        block_count=count,
    ),
    2: kind(MemberLeft, node=text, uuid=text, boot_epoch=count),
    3: kind(Cordoned, node=text, message=text, is_drain=flag, at_ms=count),
    4: kind(Uncordoned, node=text),
    5: kind(OverrideSet, key=text, value=text),
    6: kind(OverrideRemoved, key=text),
    7: kind(
        QuotaSet,
        tenant=text,
        running_requests_max=count_or_none,
        tokens_per_minute_max=count_or_none,
    ),
    8: kind(QuotaRemoved, tenant=text),
    9: kind(RoleSet, since=2, node=text, role=text, is_by_hand=flag, message=text, at_ms=count),
    10: kind(RoleReleased, since=2, node=text),
}
CODEC = Codec(KINDS, version=VERSION)


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What a hard entry's result says."""

    index: int
    """Of the log: whoever follows the state up to here has seen it."""
    statuses: tuple[Status, ...]


def checked_size_bytes(operation: Operation) -> int:
    """What an operation takes in a hard entry. Raises EntryError: no replica would take it, nor
    anything that shares its entry."""
    entry = CODEC.encode([operation])
    CODEC.decode(entry)
    return len(entry)


def encode_operations(*operations: Operation) -> bytes:
    """A hard entry as this release writes it."""
    return CODEC.encode(operations)


def encode_result(index: int, statuses: Sequence[Status], *, fault: str | None = None) -> bytes:
    """Of a hard entry."""
    data: bytes = msgpack.packb([index, list(statuses), fault])
    return data


def decode_result(data: bytes) -> Applied:
    """Raises EntryError: the entry was refused as a whole."""
    index, statuses, fault = msgpack.unpackb(data)
    if fault is not None:
        raise EntryError(fault)
    return Applied(index=index, statuses=tuple(Status(status) for status in statuses))
