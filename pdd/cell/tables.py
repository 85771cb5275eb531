"""A bounded table of frozen rows by name, whose hash follows each change."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Generic, TypeVar

import msgpack
import xxhash

HASH_BYTES = 16
_HASH_MODULUS = 1 << (8 * HASH_BYTES)

Row = TypeVar("Row")


class Table(Generic[Row]):
    """At ``row_count_max`` a new name is not taken; known ones may still change."""

    def __init__(self, made: type[Row], *, row_count_max: int) -> None:
        self._made = made
        self._names = tuple(field.name for field in fields(made))  # type: ignore[arg-type]
        self._rows: dict[str, Row] = {}
        self._row_count_max = row_count_max
        self.hash = 0
        """Sum over the rows: equal for equal rows, in whatever order they came."""

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, name: str) -> bool:
        return name in self._rows

    def get(self, name: str) -> Row | None:
        """The row of that name."""
        return self._rows.get(name)

    def __getitem__(self, name: str) -> Row:
        return self._rows[name]

    def names(self) -> list[str]:
        """Sorted."""
        return sorted(self._rows)

    def put(self, name: str, row: Row) -> bool:
        """False: the table is full."""
        former = self._rows.get(name)
        if former is None and len(self._rows) >= self._row_count_max:
            return False
        if former is not None:
            self.hash -= self._hash_of(name, former)
        self._rows[name] = row
        self.hash = (self.hash + self._hash_of(name, row)) % _HASH_MODULUS
        return True

    def drop(self, name: str) -> bool:
        """False: there is none."""
        former = self._rows.pop(name, None)
        if former is None:
            return False
        self.hash = (self.hash - self._hash_of(name, former)) % _HASH_MODULUS
        return True

    def export(self) -> list[list[Any]]:
        """By name: the same bytes on every replica."""
        return [[name, *self._values(self._rows[name])] for name in sorted(self._rows)]

    def load(self, rows: list[list[Any]]) -> None:
        """Into an empty table, what `export` gave; an older one may lack the last fields, which
        have defaults then."""
        for name, *values in rows:
            self.put(name, self._made(**dict(zip(self._names, values, strict=False))))

    def _values(self, row: Row) -> list[Any]:
        return [getattr(row, name) for name in self._names]

    def _hash_of(self, name: str, row: Row) -> int:
        number: int = xxhash.xxh3_128_intdigest(msgpack.packb([name, *self._values(row)]))
        return number
