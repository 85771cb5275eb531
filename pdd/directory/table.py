"""A hash table from 128-bit keys to one 32-bit word, in numpy arrays; no object per key.

Where they lie and how they are found is in `pdd.directory.buckets`, which is compiled; this owns
the arrays, and says which rows are free and how many buckets there are to be.

Arrays are reserved for ``max_key_count`` at once and touched as they fill: the operating system
gives pages only when they are used. At the bound `insert` refuses; the caller counts that.
Memory is kept for the highest number of keys that was there: it does not shrink.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from pdd.directory import buckets
from pdd.directory.buckets import NO_ROW, U32, U64, Index

__all__ = ["NO_ROW", "U32", "U64", "Index", "KeyTable", "Mask", "as_words"]

Mask: TypeAlias = npt.NDArray[np.bool_]

_FIRST_BUCKET_COUNT = 64
_MEAN_KEYS_PER_BUCKET = 6.0
"""Split so that this holds over all buckets. Those not yet split in a round hold up to twice as
many, which must stay well below ``buckets.WIDTH``."""
_FIRST_RUN_COUNT = 1024


def as_words(keys: bytes) -> U64:
    """Joined 16-byte keys as ``(count, 2)`` uint64: columns high, low. No copy."""
    return np.frombuffer(keys, dtype=np.uint64).reshape(-1, 2)


class KeyTable:
    """Rows are stable: a key keeps its row until it is freed. Arrays given to it have no gaps."""

    def __init__(self, *, max_key_count: int) -> None:
        if not 1 <= max_key_count < 2**31:
            raise ValueError(
                f"max_key_count is {max_key_count}, must be in 1..2147483647: "
                "give the number of distinct blocks in the cell"
            )
        self.max_key_count = max_key_count
        bucket_count_max = int(max_key_count / _MEAN_KEYS_PER_BUCKET) + 2
        self._bucket_count_max = max(2 * _FIRST_BUCKET_COUNT, bucket_count_max)
        self._buckets = np.zeros((self._bucket_count_max, buckets.BUCKET_WORDS), dtype=np.uint32)
        self._spilled = np.zeros(self._bucket_count_max, dtype=np.uint32)
        self._rows = np.zeros((max_key_count, buckets.ROW_WORDS), dtype=np.uint64)
        self.high, self.low = self._rows[:, 0], self._rows[:, 1]
        self.words = self._rows.view(np.uint32)[:, 4]
        self._free_rows = np.zeros(max_key_count, dtype=np.uint32)
        self._free_count = 0
        self.row_end = 0
        """Rows from here on were never used."""
        self._round_size = self._bucket_count = _FIRST_BUCKET_COUNT
        self._runs = np.zeros((2, _FIRST_RUN_COUNT), dtype=np.uint32)

    @property
    def key_count(self) -> int:
        return self.row_end - self._free_count

    def find(self, keys: U64) -> Index:
        """The row of each key, `NO_ROW` for those that are not here."""
        answer = np.empty(len(keys), dtype=np.int64)
        buckets.find(
            keys,
            self._buckets,
            self._rows,
            self._spilled,
            self._round_size,
            self._bucket_count,
            answer,
        )
        return answer

    def walk(self, keys: U64) -> tuple[int, int, int]:
        """How many leading keys are here, how many `runs` of equal words they have, and the word
        of the first; 0 where there is none."""
        if len(keys) > self._runs.shape[1]:
            self._runs = np.zeros((2, 2 * len(keys)), dtype=np.uint32)
        return buckets.walk(
            keys,
            self._buckets,
            self._rows,
            self._spilled,
            self._round_size,
            self._bucket_count,
            self._runs,
        )

    def runs(self, count: int) -> list[tuple[int, int]]:
        """What the last `walk` came along: ``(position of the first key, word)`` of each run."""
        positions, words = self._runs[:, :count].tolist()
        return list(zip(positions, words, strict=True))

    def insert(self, keys: U64, words: U32) -> Index:
        """Give each key a row that holds its word; the rows, in order.

        ``keys`` are distinct and none is here; words are not 0. At the bound the first keys get
        the rows that are left, and the answer is as long as those.
        """
        rows = self._take_rows(min(len(keys), self.max_key_count - self.key_count))
        arrays = self._buckets, self._rows, self._spilled
        wanted = min(int(self.key_count / _MEAN_KEYS_PER_BUCKET) + 1, self._bucket_count_max)
        self._round_size, self._bucket_count = buckets.grow(
            wanted, *arrays, self._round_size, self._bucket_count
        )
        buckets.insert(keys, words, rows, *arrays, self._round_size, self._bucket_count)
        return rows

    def free(self, rows: Index) -> None:
        """Forget the keys in these distinct rows."""
        arrays = self._buckets, self._rows, self._spilled
        buckets.release(rows, *arrays, self._round_size, self._bucket_count)
        self._free_rows[self._free_count : self._free_count + len(rows)] = rows
        self._free_count += len(rows)

    def _take_rows(self, count: int) -> Index:
        reused = min(count, self._free_count)
        self._free_count -= reused
        old = self._free_rows[self._free_count : self._free_count + reused].astype(np.int64)
        new = np.arange(self.row_end, self.row_end + count - reused, dtype=np.int64)
        self.row_end += count - reused
        return np.concatenate((old[::-1], new)) if reused else new
