"""A small replicated state for the benchmark, the drill and tests: named lists of numbers.

    put   [1, key, number]   the list becomes [number]
    add   [2, key, number]   the number is appended
    get   [key]              (a query) the list

Every answer is the whole list. Numbers are unique within a run, so a command that was lost, applied
twice or out of order shows in what is read later.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import msgpack
import xxhash

SNAPSHOT_VERSION = 1
_pack = msgpack.Packer().pack
"""See `pdd.raft.codec`."""
_HASH_BYTES = 16
_HASH_MODULUS = 1 << (8 * _HASH_BYTES)

Value = tuple[int, ...]


class Operation(IntEnum):
    PUT = 1
    ADD = 2


_OPERATIONS = {int(one): one for one in Operation}


class KvMachine:
    def __init__(self) -> None:
        self._lists: dict[str, Value] = {}
        self._hashes: dict[str, int] = {}
        self._hash = 0
        """Sum over all keys, so that it is kept up to date one key at a time."""

    def apply(self, index: int, data: bytes) -> bytes:
        """A malformed command is a result (an empty list), the same on every replica."""
        command = _decode(data)
        if command is None:
            return encode_value(())
        operation, key, number = command
        before = self._lists.get(key, ())
        after = (number,) if operation is Operation.PUT else (*before, number)
        self._lists[key] = after
        self._hash -= self._hashes.get(key, 0)
        self._hashes[key] = new_hash = _hash_of(key, after)
        self._hash = (self._hash + new_hash) % _HASH_MODULUS
        return encode_value(after)

    def query(self, data: bytes) -> bytes:
        (key,) = msgpack.unpackb(data)
        return encode_value(self._lists.get(key, ()))

    def snapshot(self) -> bytes:
        rows: Any = [[key, self._lists[key]] for key in sorted(self._lists)]
        data: bytes = msgpack.packb([SNAPSHOT_VERSION, rows])
        return data

    def restore(self, data: bytes) -> None:
        version, rows = msgpack.unpackb(data)
        if version != SNAPSHOT_VERSION:
            raise ValueError(f"kv snapshot version {version}; this reads {SNAPSHOT_VERSION}")
        self._lists = {key: tuple(value) for key, value in rows}
        self._hashes = {key: _hash_of(key, value) for key, value in self._lists.items()}
        self._hash = sum(self._hashes.values()) % _HASH_MODULUS

    def state_hash(self) -> bytes:
        return self._hash.to_bytes(_HASH_BYTES, "little")


def encode_put(key: str, number: int) -> bytes:
    data: bytes = _pack([Operation.PUT, key, number])
    return data


def encode_add(key: str, number: int) -> bytes:
    data: bytes = _pack([Operation.ADD, key, number])
    return data


def encode_get(key: str) -> bytes:
    data: bytes = _pack([key])
    return data


def encode_value(value: Value) -> bytes:
    data: bytes = _pack(value)
    return data


def decode_value(data: bytes) -> Value:
    return tuple(msgpack.unpackb(data))


def _decode(data: bytes) -> tuple[Operation, str, int] | None:
    try:
        operation, key, number = msgpack.unpackb(data)
        if type(key) is not str or type(number) is not int:
            return None
        return _OPERATIONS[operation], key, number
    except (ValueError, TypeError, KeyError, msgpack.UnpackException):
        return None


def _hash_of(key: str, value: Value) -> int:
    number: int = xxhash.xxh3_128_intdigest(_pack([key, value]))
    return number
