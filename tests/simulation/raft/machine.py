"""The replicated state the simulated clients work on: named lists, and a hash kept up to date."""

from __future__ import annotations

import hashlib
from typing import Any

import msgpack

Value = tuple[int, ...]


class ListMachine:
    """put: replace the list by one element; add: append one. Every element is unique in a run, so
    a command applied twice, lost or reordered shows in what later commands return."""

    def __init__(self) -> None:
        self.lists: dict[str, Value] = {}
        self._hash = b""

    def apply(self, index: int, data: bytes) -> bytes:
        operation, key, value = msgpack.unpackb(data)
        before = self.lists.get(key, ())
        after = (value,) if operation == "put" else (*before, value)
        self.lists[key] = after
        self._hash = hashlib.blake2b(self._hash + data, digest_size=8).digest()
        result: bytes = msgpack.packb(list(after))
        return result

    def get(self, key: str) -> Value:
        return self.lists.get(key, ())

    def snapshot(self) -> bytes:
        rows: Any = [[key, list(value)] for key, value in sorted(self.lists.items())]
        data: bytes = msgpack.packb([rows, self._hash])
        return data

    def restore(self, data: bytes) -> None:
        rows, self._hash = msgpack.unpackb(data)
        self.lists = {key: tuple(value) for key, value in rows}

    def state_hash(self) -> bytes:
        return self._hash


def encode_put(key: str, value: int) -> bytes:
    data: bytes = msgpack.packb(["put", key, value])
    return data


def encode_add(key: str, value: int) -> bytes:
    data: bytes = msgpack.packb(["add", key, value])
    return data
