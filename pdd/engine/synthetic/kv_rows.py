"""The bytes of the pool: what a position writes, and what all positions of a sequence say.

::

    row(p) = expand(xxh3_128(row(p - 1) of every rank, p, token(p)))    row(-1): the model's seed
    digest = xxh3_64(rows 0 .. end - 1 of rank 0, then of rank 1, ...)

``row(p - 1)`` is read from the pool, so a wrong block spoils everything that is computed on top of
it, wherever chunks begin. Rows do not depend on tenants: isolation is the block hashes' task.
"""

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import xxhash

ROW_UNIT_BYTES = 16
_POSITION_AND_TOKEN = struct.Struct("<II")
Pool = np.ndarray[Any, np.dtype[np.uint8]]


class KvRows:
    """Reads and writes rows by block table.

    Args:
        pools: one per rank, uint8 ``[block_count, block_size * row_bytes]``; kept, not copied.
        block_size: positions per block.
        model_seed: stands for the weights.
    """

    def __init__(self, *, pools: Sequence[Pool], block_size: int, model_seed: int) -> None:
        self._pools = tuple(pools)
        self._block_size = block_size
        self._row_bytes = pools[0].shape[1] // block_size
        if self._row_bytes % ROW_UNIT_BYTES or self._row_bytes == 0:
            raise ValueError(f"a row of {self._row_bytes} bytes is no multiple of {ROW_UNIT_BYTES}")
        self._repeats = self._row_bytes // ROW_UNIT_BYTES
        self._root = b"model seed " + str(model_seed).encode()

    def write(self, table: Sequence[int], start: int, token_ids: Sequence[int]) -> None:
        """Compute positions ``start``... from the row before them, and write their rows."""
        before = self._row(table, start - 1) if start else self._root
        rows: list[list[bytes]] = [[] for _ in self._pools]
        for position, token_id in enumerate(token_ids, start):
            head = xxhash.xxh3_128_digest(before + _POSITION_AND_TOKEN.pack(position, token_id))
            own = [head * self._repeats]
            own += [
                xxhash.xxh3_128_digest(head + rank.to_bytes(4, "little")) * self._repeats
                for rank in range(1, len(self._pools))
            ]
            for to, row in zip(rows, own, strict=True):
                to.append(row)
            before = own[0] if len(own) == 1 else b"".join(own)
        end = start + len(token_ids)
        for pool, own in zip(self._pools, rows, strict=True):
            self._scatter(pool, table, start, end, np.frombuffer(b"".join(own), np.uint8))

    def digest(self, table: Sequence[int], end: int) -> int:
        """64 bits over every byte of positions 0..``end`` - 1, read from the pool now."""
        hasher = xxhash.xxh3_64()
        whole, rest = divmod(end, self._block_size)
        for pool in self._pools:
            for block in table[:whole]:
                hasher.update(pool[block].data)
            if rest:
                hasher.update(pool[table[whole], : rest * self._row_bytes].data)
        return int(hasher.intdigest())

    def _row(self, table: Sequence[int], position: int) -> bytes:
        index, offset = divmod(position, self._block_size)
        at = offset * self._row_bytes
        return b"".join(
            pool[table[index], at : at + self._row_bytes].tobytes() for pool in self._pools
        )

    def _scatter(self, pool: Pool, table: Sequence[int], start: int, end: int, rows: Pool) -> None:
        position = start
        while position < end:
            index, offset = divmod(position, self._block_size)
            count = min(self._block_size - offset, end - position)
            at, size = (position - start) * self._row_bytes, count * self._row_bytes
            into = offset * self._row_bytes
            pool[table[index], into : into + size] = rows[at : at + size]
            position += count
