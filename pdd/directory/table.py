"""A hash table from 128-bit keys to one 32-bit word, in numpy arrays; no object per key.

    bucket   96 bytes: 16 tags (uint16, 0 = empty column), then 16 row ids (uint32)
    row      24 bytes: high, low (uint64, the key), word (uint32, 0 = the row is free), unused

A key's bucket and tag follow from all of its 128 bits (`addresses`), so that keys which are no
hashes, counters for instance, are spread like any others. A look-up gathers that one bucket,
compares its 16 tags, then gathers one row: always the same few vector operations and about two
cache misses per key, however many keys there are. The table
grows by *linear hashing*: with every few new keys some buckets, from the first on, are split in two
by one more bit of the key, so growth costs each batch the same and nothing ever pauses to copy the
table. Keys that find their bucket full (under 1 % on average), and those whose 16 bits are 0, go to
``_spill``, a dict from bucket to rows.

Arrays are reserved for ``max_key_count`` at once and touched as they fill: the operating system
gives pages only when they are used. At the bound `insert` refuses; the caller counts that.
Memory is kept for the highest number of keys that was there: it does not shrink.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

U64: TypeAlias = npt.NDArray[np.uint64]
U32: TypeAlias = npt.NDArray[np.uint32]
Index: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]

WIDTH = 16
_FIRST_ROW_ID = WIDTH // 2  # tags are half as wide
_BUCKET_WORDS = _FIRST_ROW_ID + WIDTH
_FACTORS = np.array(
    [[0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93], [0xC2B2AE3D27D4EB4F, 0xA0761D6478BD642F]],
    dtype=np.uint64,
)
_FACTOR_ROWS: list[list[int]] = _FACTORS.tolist()
_FIRST_BUCKET_COUNT = 64
_MEAN_KEYS_PER_BUCKET = 6.0
"""Split so that this holds over all buckets. Those not yet split in a round hold up to twice as
many, which must stay well below ``WIDTH``."""
_SPLIT_CHUNK = 4096
NO_ROW = -1


class Addresses(NamedTuple):
    """Where keys belong, ``(count,)`` each. ``numbers``: their low bits choose a bucket."""

    numbers: U64
    tags: npt.NDArray[np.uint16]


def addresses(keys: U64) -> Addresses:
    """``keys``: ``(count, 2)``.

    A product's high bits depend on all bits of its factors: those of one product are swapped to
    where buckets are chosen, those of another one are the tag.
    """
    products = keys @ _FACTORS
    return Addresses(products[:, 0].byteswap(), products.view(np.uint16)[:, 7])


def address_of(high: int, low: int) -> tuple[int, int]:
    """Number and tag of one key."""
    (high_a, high_b), (low_a, low_b) = _FACTOR_ROWS
    first, second = (high * high_a + low * low_a), (high * high_b + low * low_b)
    number = int.from_bytes((first % 2**64).to_bytes(8, "little"), "big")
    return number, second % 2**64 >> 48


def as_words(keys: bytes) -> U64:
    """Joined 16-byte keys as ``(count, 2)`` uint64: columns high, low. No copy."""
    return np.frombuffer(keys, dtype=np.uint64).reshape(-1, 2)


class Probe(NamedTuple):
    """What one look at each key's bucket showed, ``(count,)`` each."""

    bucket: Index
    column: Index
    """Of the first equal tag; 0 where there is none."""
    seen: Mask
    """``(count, WIDTH)``: which tags are equal."""
    row: Index
    hit: Mask


class KeyTable:
    """Rows are stable: a key keeps its row until it is freed."""

    def __init__(self, *, max_key_count: int) -> None:
        if not 1 <= max_key_count < 2**31:
            raise ValueError(
                f"max_key_count is {max_key_count}, must be in 1..2147483647: "
                "give the number of distinct blocks in the cell"
            )
        self.max_key_count = max_key_count
        buckets = max(2 * _FIRST_BUCKET_COUNT, int(max_key_count / _MEAN_KEYS_PER_BUCKET) + 2)
        self._buckets = np.zeros((buckets, _BUCKET_WORDS), dtype=np.uint32)
        self._tags = self._buckets.view(np.uint16)[:, :WIDTH]
        self._row_ids = self._buckets[:, _FIRST_ROW_ID:]
        rows = np.zeros((max_key_count, 3), dtype=np.uint64)
        self.high, self.low = rows[:, 0], rows[:, 1]
        self.words = rows.view(np.uint32)[:, 4]
        self._free_rows = np.zeros(max_key_count, dtype=np.uint32)
        self._free_count = 0
        self.row_end = 0
        """Rows from here on were never used."""
        self._round_size = _FIRST_BUCKET_COUNT  # buckets at the start of this round of splits
        self._bucket_count = _FIRST_BUCKET_COUNT
        self._homes = np.empty(4 << buckets.bit_length(), dtype=np.int64)
        """The bucket by its number with one bit more than this round's: itself or, where that is
        not split yet, the one it will come from. A gather costs less than the arithmetic."""
        self._homes[: 2 * _FIRST_BUCKET_COUNT] = np.arange(2 * _FIRST_BUCKET_COUNT)
        self._begin_round()
        self._spill: dict[int, list[int]] = {}
        self._spilled = np.zeros(buckets, dtype=np.bool_)

    @property
    def key_count(self) -> int:
        return self.row_end - self._free_count

    def _bucket_of(self, numbers: U64) -> Index:
        return self._homes.take((numbers & self._double_mask).view(np.int64))

    def probe(self, keys: U64) -> Probe:
        """One look at each key's bucket, for questions: the 64 low bits decide, with the 32 or
        more of bucket and tag, which depend on the others."""
        numbers, tags = addresses(keys)
        bucket = self._bucket_of(numbers)
        gathered = self._buckets.take(bucket, axis=0)
        seen = gathered.view(np.uint16)[:, :WIDTH] == tags[:, None]
        column = seen.argmax(axis=1)
        row = gathered.reshape(-1).take(column + _row_id_offsets(len(keys))).astype(np.int64)
        return Probe(bucket, column, seen, row, self.low[row] == keys[:, 1])

    def row_after_miss(self, probe: Probe, keys: U64, position: int) -> int:
        """The row of a key that `probe` did not hit, or `NO_ROW`."""
        # The first equal tag, if there is one: where this one differs, so do all.
        tag_seen = probe.seen[position, probe.column[position]]
        if not tag_seen and not self._spilled[probe.bucket[position]]:
            return NO_ROW
        return self.find_one(int(keys[position, 0]), int(keys[position, 1]))

    def find(self, keys: U64) -> Index:
        """The row of each key, `NO_ROW` for those that are not here. All 128 bits decide."""
        probe = self.probe(keys)
        row = probe.row
        hit = probe.hit & (self.high[row] == keys[:, 0])
        hit &= self.words[row] != 0
        missed = np.flatnonzero(~hit)
        if len(missed):
            row[missed] = NO_ROW
            unsure = probe.seen[missed].any(axis=1) | self._spilled.take(probe.bucket[missed])
            for position in missed[unsure].tolist():
                row[position] = self.find_one(int(keys[position, 0]), int(keys[position, 1]))
        return row

    def find_one(self, high: int, low: int) -> int:
        """The row of one key, or `NO_ROW`."""
        number, tag = address_of(high, low)
        bucket = int(self._homes[number & (2 * self._round_size - 1)])
        rows = [
            int(self._row_ids[bucket, column])
            for column in np.flatnonzero(self._tags[bucket] == tag).tolist()
        ]
        for row in (*rows, *self._spill.get(bucket, ())):
            if self.high[row] == high and self.low[row] == low and self.words[row]:
                return int(row)
        return NO_ROW

    def insert(self, keys: U64, words: U32) -> Index:
        """Give each key a row that holds its word; the rows, in order.

        ``keys`` are distinct and none is here; words are not 0. At the bound the first keys get
        the rows that are left, and the answer is as long as those.
        """
        count = min(len(keys), self.max_key_count - self.key_count)
        keys, words = keys[:count], words[:count]
        self._split_for(self.key_count + count)
        rows = self._take_rows(count)
        self.high[rows] = keys[:, 0]
        self.low[rows] = keys[:, 1]
        self.words[rows] = words
        self._place(rows, keys)
        return rows

    def free(self, rows: Index) -> None:
        """Forget the keys in these distinct rows."""
        if not len(rows):
            return
        keys = np.stack((self.high[rows], self.low[rows]), axis=1)
        bucket = self._bucket_of(addresses(keys).numbers)
        gathered = self._buckets.take(bucket, axis=0)
        same = gathered[:, _FIRST_ROW_ID:] == rows.astype(np.uint32)[:, None]
        same &= gathered.view(np.uint16)[:, :WIDTH] != 0
        placed = same.any(axis=1)
        self._tags[bucket[placed], same.argmax(axis=1)[placed]] = 0
        for position in np.flatnonzero(~placed).tolist():
            self._unspill(int(bucket[position]), int(rows[position]))
        self.words[rows] = 0
        self.low[rows] = 0  # so that no look-up hits them: an empty column may still name its row
        self._free_rows[self._free_count : self._free_count + len(rows)] = rows
        self._free_count += len(rows)

    def _take_rows(self, count: int) -> Index:
        reused = min(count, self._free_count)
        self._free_count -= reused
        old = self._free_rows[self._free_count : self._free_count + reused].astype(np.int64)
        new = np.arange(self.row_end, self.row_end + count - reused, dtype=np.int64)
        self.row_end += count - reused
        return np.concatenate((old[::-1], new)) if reused else new

    def _place(self, rows: Index, keys: U64) -> None:
        """Write rows into free columns of their buckets; where there is none, spill."""
        numbers, tags = addresses(keys)
        bucket = self._bucket_of(numbers)
        order = np.argsort(bucket, kind="stable")
        bucket, rows, tags = bucket[order], rows[order], tags[order]
        free = self._buckets.take(bucket, axis=0).view(np.uint16)[:, :WIDTH] == 0
        rank = _rank_in_group(bucket)
        # The first keys of a bucket take its first free columns: the rank-th one for each key.
        ordinal = np.cumsum(free, axis=1, dtype=np.int8)
        wanted = free & (ordinal == (np.minimum(rank, WIDTH) + 1).astype(np.int8)[:, None])
        column = wanted.argmax(axis=1)
        fits = wanted.any(axis=1) & (tags != 0)
        place = bucket[fits], column[fits]
        self._tags[place] = tags[fits]
        self._row_ids[place] = rows[fits]
        for position in np.flatnonzero(~fits).tolist():
            home = int(bucket[position])
            self._spill.setdefault(home, []).append(int(rows[position]))
            self._spilled[home] = True

    def _unspill(self, bucket: int, row: int) -> None:
        rows = self._spill[bucket]
        rows.remove(row)
        if not rows:
            del self._spill[bucket]
            self._spilled[bucket] = False

    def _split_for(self, key_count: int) -> None:
        wanted = min(int(key_count / _MEAN_KEYS_PER_BUCKET) + 1, len(self._buckets))
        while self._bucket_count < wanted:
            first = self._bucket_count - self._round_size
            count = min(wanted - self._bucket_count, self._round_size - first, _SPLIT_CHUNK)
            self._split(first, count)

    def _begin_round(self) -> None:
        """No bucket is split yet: every number with the new bit leads to the one without."""
        size = self._round_size
        self._double_mask = np.uint64(2 * size - 1)
        self._homes[size : 2 * size] = self._homes[:size]

    def _split(self, first: int, count: int) -> None:
        """Move the keys of ``count`` buckets that have the next bit set to new buckets."""
        source = slice(first, first + count)
        target = slice(first + self._round_size, first + self._round_size + count)
        tags, row_ids = self._tags[source], self._row_ids[source]
        keys = np.stack((self.high[row_ids], self.low[row_ids]), axis=-1)
        numbers = addresses(keys.reshape(-1, 2)).numbers.reshape(row_ids.shape)
        moved = (numbers & np.uint64(self._round_size)) != 0
        np.multiply(tags, moved, out=self._tags[target])
        self._row_ids[target] = row_ids
        np.multiply(tags, ~moved, out=tags)
        self._bucket_count += count
        self._homes[target] = np.arange(target.start, target.stop)
        homeless = [
            row
            for bucket in (np.flatnonzero(self._spilled[source]) + first).tolist()
            for row in self._spill.pop(bucket)
        ]
        self._spilled[source] = False
        if self._bucket_count == 2 * self._round_size:
            self._round_size *= 2
            self._begin_round()
        if homeless:
            rows = np.array(homeless, dtype=np.int64)
            self._place(rows, np.stack((self.high[rows], self.low[rows]), axis=1))


_OFFSETS = np.arange(1024, dtype=np.int64) * _BUCKET_WORDS + _FIRST_ROW_ID


def _row_id_offsets(count: int) -> Index:
    """Where the row ids of each of ``count`` gathered buckets begin, in uint32."""
    if count <= len(_OFFSETS):
        return _OFFSETS[:count]
    return np.arange(count, dtype=np.int64) * _BUCKET_WORDS + _FIRST_ROW_ID


def _rank_in_group(values: npt.NDArray[Any]) -> Index:
    """How many equal values stand before each one. ``values`` are sorted."""
    position = np.arange(len(values), dtype=np.int64)
    starts = np.ones(len(values), dtype=np.bool_)
    starts[1:] = values[1:] != values[:-1]
    rank: Index = position - np.maximum.accumulate(np.where(starts, position, 0))
    return rank
