"""The bytes of the pool: what a position writes, and what all positions of a sequence say.

::

    row(p) = expand(xxh3_128(row(p - 1) of every head, p, token(p)))    row(-1): the model's seed
    digest = xxh3_64(rows 0 .. end - 1 of head 0, then of head 1, ...)

Each KV head has a plane of the pool of the rank that holds it (``planes_of``), so that neither
rows nor digest depend on how many ranks share the heads. Where ranks hold copies of a head, all
are written, and one that differs changes the digest.

``row(p - 1)`` is read from the pool, so a wrong block spoils everything that is computed on top of
it, wherever chunks begin. Rows do not depend on tenants: isolation is the block hashes' task.
"""

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import xxhash

from pdd.transfer.reshard import ShardLayout

ROW_UNIT_BYTES = 16
_POSITION_AND_TOKEN = struct.Struct("<II")
Pool = np.ndarray[Any, np.dtype[np.uint8]]


def planes_of(pools: Sequence[Pool], layout: ShardLayout) -> list[list[Pool]]:
    """Views of the ranks' pools by head; the first of a head is what is read, others are copies.

    Args:
        pools: one per rank, uint8 ``[block_count, heads_per_rank * plane_bytes]``.
        layout: one layer, order LHN: the planes of a rank's heads lie one after the other.
    """
    planes: list[list[Pool]] = [[] for _ in range(layout.kv_head_count)]
    plane_bytes = layout.block_tokens * layout.token_bytes
    for rank, pool in enumerate(pools):
        for index, head in enumerate(layout.heads(rank)):
            planes[head].append(pool[:, index * plane_bytes : (index + 1) * plane_bytes])
    return planes


class KvRows:
    """Reads and writes rows by block table.

    Args:
        pools: one per head, uint8 ``[block_count, block_size * row_bytes]``; kept, not copied.
        copies: further ones by head, with the same bytes.
        block_size: positions per block.
        model_seed: stands for the weights.
    """

    def __init__(
        self,
        *,
        pools: Sequence[Pool],
        copies: Sequence[Sequence[Pool]] = (),
        block_size: int,
        model_seed: int,
    ) -> None:
        self._pools = tuple(pools)
        self._copies = tuple(copies)
        self._block_size = block_size
        self._row_bytes = pools[0].shape[1] // block_size
        if self._row_bytes % ROW_UNIT_BYTES or self._row_bytes == 0:
            raise ValueError(f"a row of {self._row_bytes} bytes is no multiple of {ROW_UNIT_BYTES}")
        self._repeats = self._row_bytes // ROW_UNIT_BYTES
        self._block_bytes = block_size * self._row_bytes
        # Of a pool in one piece, a view without numpy between: this is done for every token.
        self._flat = pools[0].reshape(-1).data if _is_one_piece(pools, self._copies) else None
        self._root = b"model seed " + str(model_seed).encode()

    def write(self, table: Sequence[int], start: int, token_ids: Sequence[int]) -> None:
        """Compute positions ``start``... from the row before them, and write their rows."""
        if self._flat is not None:
            self._write_flat(self._flat, table, start, token_ids)
            return
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
        for number, (pool, own) in enumerate(zip(self._pools, rows, strict=True)):
            written = np.frombuffer(b"".join(own), np.uint8)
            for one in (pool, *(self._copies[number] if self._copies else ())):
                self._scatter(one, table, start, end, written)

    def copy_block(self, source: int, target: int) -> None:
        """All of a block's rows, of every head."""
        for pool in (*self._pools, *(copy for copies in self._copies for copy in copies)):
            pool[target] = pool[source]

    def digest(self, table: Sequence[int], end: int) -> int:
        """64 bits over every byte of positions 0..``end`` - 1, read from the pool now."""
        hasher = xxhash.xxh3_64()
        whole, rest = divmod(end, self._block_size)
        if (flat := self._flat) is not None:
            size = self._block_bytes
            for block in table[:whole]:
                hasher.update(flat[block * size : block * size + size])
            if rest:
                at = table[whole] * size
                hasher.update(flat[at : at + rest * self._row_bytes])
            return int(hasher.intdigest())
        for pool in self._pools:
            for block in table[:whole]:
                hasher.update(pool[block].data)
            if rest:
                hasher.update(pool[table[whole], : rest * self._row_bytes].data)
        for head, copies in enumerate(self._copies):
            if not all(self._same(self._pools[head], copy, table, end) for copy in copies):
                hasher.update(b"a copy differs")
        return int(hasher.intdigest())

    def _write_flat(
        self, flat: memoryview, table: Sequence[int], start: int, token_ids: Sequence[int]
    ) -> None:
        row_bytes, block_size = self._row_bytes, self._block_size
        before = self._root
        if start:
            index, offset = divmod(start - 1, block_size)
            at = (table[index] * block_size + offset) * row_bytes
            before = bytes(flat[at : at + row_bytes])
        for position, token_id in enumerate(token_ids, start):
            head = xxhash.xxh3_128_digest(before + _POSITION_AND_TOKEN.pack(position, token_id))
            before = head * self._repeats
            index, offset = divmod(position, block_size)
            at = (table[index] * block_size + offset) * row_bytes
            flat[at : at + row_bytes] = before

    def _same(self, pool: Pool, copy: Pool, table: Sequence[int], end: int) -> bool:
        whole, rest = divmod(end, self._block_size)
        blocks, tail = list(table[:whole]), rest * self._row_bytes
        return bool(np.array_equal(pool[blocks], copy[blocks])) and (
            not rest or bool(np.array_equal(pool[table[whole], :tail], copy[table[whole], :tail]))
        )

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


def _is_one_piece(pools: Sequence[Pool], copies: Sequence[Sequence[Pool]]) -> bool:
    """One head, of which nobody has a copy, and whose blocks lie one after the other."""
    return len(pools) == 1 and not any(copies) and bool(pools[0].flags.c_contiguous)
