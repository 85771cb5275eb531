"""The inner loops of the key table, compiled: find, walk, insert, release, grow.

    bucket   96 bytes: 16 tags (uint16; tags 0 and 8, 1 and 9, ... share a uint32), then 16 times
             the row with that tag plus one (uint32; 0 = empty column)
    row      24 bytes: high, low (uint64, the key), then its word and ``next`` (uint32 each)
    spilled  per bucket the first row that found no empty column, plus one; its ``next`` names the
             one after it likewise; 0 ends the list

A key's bucket and tag follow from all of its 128 bits (`address`), so that keys which are no
hashes, counters for instance, are spread like any others. Under 1 % of the keys are spilled.

What a look-up costs with many keys is waiting for memory: for the bucket, then for the row. So of
`_BATCH` keys all buckets are read before the first row is, by loops that decide nothing on what
they read: then the processor waits for many of them at once.

Buckets grow by *linear hashing*: those below ``bucket_count - round_size`` have been split in this
round by one more bit of their keys' numbers, the upper half of each is ``round_size`` further on.
Splitting one with every few new keys costs each batch the same; nothing pauses to copy the table.

The arrays are `pdd.directory.table.KeyTable`'s, and so is checking that they are large enough.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from pdd.core.compiled import compiled

U64: TypeAlias = npt.NDArray[np.uint64]
U32: TypeAlias = npt.NDArray[np.uint32]
Index: TypeAlias = npt.NDArray[np.int64]

WIDTH = 16
BUCKET_WORDS = 24
ROW_WORDS = 3
NO_ROW = -1
_PAIRS = 8  # of tags
_BATCH = 16
_BYTE = np.uint64(0xFF)
_HALF_BITS = np.uint64(32)
_HALF_MASK = np.uint64(0xFFFFFFFF)
_TAG_BITS = np.uint32(16)
_TAG_MASK = np.uint32(0xFFFF)
FACTORS = ((0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93), (0xC2B2AE3D27D4EB4F, 0xA0761D6478BD642F))
_HIGH_A, _HIGH_B = np.uint64(FACTORS[0][0]), np.uint64(FACTORS[0][1])
_LOW_A, _LOW_B = np.uint64(FACTORS[1][0]), np.uint64(FACTORS[1][1])


@compiled("UniTuple(uint32, 2)(uint64, uint64)")
def address(high: np.uint64, low: np.uint64) -> tuple[np.uint32, np.uint32]:
    """``(number, tag)`` of a key: the low bits of its number choose a bucket.

    A product's high bits depend on all bits of its factors: the upper bytes of one product,
    swapped, choose the bucket, the top of another one is the tag.
    """
    first = high * _HIGH_A + low * _LOW_A
    second = high * _HIGH_B + low * _LOW_B
    number = first >> np.uint64(56)
    number |= (first >> np.uint64(48) & _BYTE) << np.uint64(8)
    number |= (first >> np.uint64(40) & _BYTE) << np.uint64(16)
    number |= (first >> np.uint64(32) & _BYTE) << np.uint64(24)
    return np.uint32(number), np.uint32(second >> np.uint64(48))


@compiled("int64(uint64)")
def _signed(value: np.unsignedinteger[Any]) -> int:
    """For arithmetic with other whole numbers: of an unsigned and a signed one numba makes a
    float64."""
    return np.int64(value)  # type: ignore[return-value]  # an int as much as callers need


@compiled("int64(uint32, int64, int64)")
def _bucket_of(number: np.uint32, round_size: int, bucket_count: int) -> int:
    bucket = _signed(number) & (2 * round_size - 1)
    return bucket if bucket < bucket_count else bucket - round_size


@compiled("uint32(uint32[:, ::1], int64, int64)")
def _tag_at(buckets: U32, bucket: int, column: int) -> np.uint32:
    pair = buckets[bucket, column & (_PAIRS - 1)]
    return np.uint32(pair >> _TAG_BITS if column >= _PAIRS else pair & _TAG_MASK)


@compiled("int64(uint64, uint64, uint32, int64, uint32[:, ::1], uint64[:, ::1], uint32[::1])")
def _row_in(
    high: np.uint64,
    low: np.uint64,
    tag: np.uint32,
    bucket: int,
    buckets: U32,
    rows: U64,
    spilled: U32,
) -> int:
    """The row of a key by a look at all that its bucket has, or `NO_ROW`."""
    for column in range(WIDTH):
        if _tag_at(buckets, bucket, column) == tag:
            row = _signed(buckets[bucket, _PAIRS + column]) - 1
            if row >= 0 and rows[row, 0] == high and rows[row, 1] == low:
                return row
    row = _signed(spilled[bucket]) - 1
    while row >= 0:
        if rows[row, 0] == high and rows[row, 1] == low:
            return row
        row = _signed(rows[row, 2] >> _HALF_BITS) - 1
    return NO_ROW


@compiled(
    "void(Array(uint64, 2, 'C', True), int64, int64, uint32[:, ::1], uint64[:, ::1], int64, int64,"
    " uint32[:, ::1])"
)
def _look(
    keys: U64,
    start: int,
    count: int,
    buckets: U32,
    rows: U64,
    round_size: int,
    bucket_count: int,
    seen: U32,
) -> None:
    """One look at the tags of the buckets of ``count`` keys.

    ``seen``, ``(5, _BATCH)``: bucket, tag, then of a row with this tag and this key its number
    plus one and its word, 0 where there is none at first sight. The last line keeps the compiler
    from leaving out reads that are there to be done early.
    """
    for position in range(count):
        number, tag = address(keys[start + position, 0], keys[start + position, 1])
        seen[0, position] = _bucket_of(number, round_size, bucket_count)
        seen[1, position] = tag
    touched = np.uint32(0)
    for position in range(count):
        bucket = seen[0, position]
        touched |= buckets[bucket, 0] | buckets[bucket, BUCKET_WORDS - 1]
    for position in range(count):
        bucket, tag = seen[0, position], seen[1, position]
        found = np.uint32(0)
        for column in range(_PAIRS):
            pair = buckets[bucket, column]
            lower = buckets[bucket, _PAIRS + column]
            upper = buckets[bucket, 2 * _PAIRS + column]
            found = max(found, lower if pair & _TAG_MASK == tag else np.uint32(0))
            found = max(found, upper if pair >> _TAG_BITS == tag else np.uint32(0))
        seen[2, position] = found
    for position in range(count):
        touched |= np.uint32(rows[max(_signed(seen[2, position]) - 1, 0), 0])
    seen[4, 0] = touched
    for position in range(count):
        found = seen[2, position]
        row = max(_signed(found) - 1, 0)
        differs = rows[row, 0] ^ keys[start + position, 0]
        differs |= rows[row, 1] ^ keys[start + position, 1]
        word = np.uint32(rows[row, 2] & _HALF_MASK)
        seen[2, position] = np.uint32(0) if differs else found
        seen[3, position] = word if found and not differs else np.uint32(0)


@compiled(
    "void(Array(uint64, 2, 'C', True), uint32[:, ::1], uint64[:, ::1], uint32[::1], int64, int64,"
    " int64[::1])"
)
def find(
    keys: U64,
    buckets: U32,
    rows: U64,
    spilled: U32,
    round_size: int,
    bucket_count: int,
    answer: Index,
) -> None:
    """``answer``: the row of each key, `NO_ROW` for those that are not here."""
    seen = np.empty((5, _BATCH), dtype=np.uint32)
    for start in range(0, len(keys), _BATCH):
        count = min(_BATCH, len(keys) - start)
        _look(keys, start, count, buckets, rows, round_size, bucket_count, seen)
        for position in range(count):
            row = _signed(seen[2, position]) - 1
            if row < 0:
                high, low = keys[start + position, 0], keys[start + position, 1]
                tag, bucket = seen[1, position], _signed(seen[0, position])
                row = _row_in(high, low, tag, bucket, buckets, rows, spilled)
            answer[start + position] = row


@compiled(
    "UniTuple(int64, 3)(Array(uint64, 2, 'C', True), uint32[:, ::1], uint64[:, ::1], uint32[::1],"
    " int64, int64, uint32[:, ::1])"
)
def walk(
    keys: U64,
    buckets: U32,
    rows: U64,
    spilled: U32,
    round_size: int,
    bucket_count: int,
    runs: U32,
) -> tuple[int, int, int]:
    """From the first key on as far as all are here.

    Returns ``(keys, runs of equal words among them, word of the first)``. ``runs``, ``(2, count)``
    for as many keys: the position at which each run begins, and its word.
    """
    seen = np.empty((5, _BATCH), dtype=np.uint32)
    run_count, first, last = 0, 0, np.uint32(0)
    for start in range(0, len(keys), _BATCH):
        count = min(_BATCH, len(keys) - start)
        _look(keys, start, count, buckets, rows, round_size, bucket_count, seen)
        for position in range(count):
            word = seen[3, position]
            if word == 0:
                high, low = keys[start + position, 0], keys[start + position, 1]
                tag, bucket = seen[1, position], _signed(seen[0, position])
                row = _row_in(high, low, tag, bucket, buckets, rows, spilled)
                if row < 0:
                    return start + position, run_count, first
                word = np.uint32(rows[row, 2] & _HALF_MASK)
            if word != last:
                if run_count == 0:
                    first = _signed(word)
                runs[0, run_count], runs[1, run_count] = start + position, word
                run_count, last = run_count + 1, word
    return len(keys), run_count, first


@compiled("void(uint32[:, ::1], int64, int64, uint32, uint32)")
def _write(buckets: U32, bucket: int, column: int, tag: np.uint32, name: np.uint32) -> None:
    pair = column & (_PAIRS - 1)
    if column >= _PAIRS:
        buckets[bucket, pair] = buckets[bucket, pair] & _TAG_MASK | tag << _TAG_BITS
    else:
        buckets[bucket, pair] = buckets[bucket, pair] & ~_TAG_MASK | tag
    buckets[bucket, _PAIRS + column] = name


@compiled("void(int64, uint32[:, ::1], uint64[:, ::1], uint32[::1], int64, int64)")
def _place(
    row: int, buckets: U32, rows: U64, spilled: U32, round_size: int, bucket_count: int
) -> None:
    """Into the first empty column of its bucket; where there is none, into its list."""
    number, tag = address(rows[row, 0], rows[row, 1])
    bucket = _bucket_of(number, round_size, bucket_count)
    for column in range(WIDTH):
        if buckets[bucket, _PAIRS + column] == 0:
            _write(buckets, bucket, column, tag, np.uint32(row + 1))
            return
    following = np.uint64(spilled[bucket])
    rows[row, 2] = (rows[row, 2] & _HALF_MASK) | following << _HALF_BITS
    spilled[bucket] = row + 1


@compiled(
    "void(Array(uint64, 2, 'C', True), Array(uint32, 1, 'C', True), int64[::1], uint32[:, ::1],"
    " uint64[:, ::1], uint32[::1], int64, int64)"
)
def insert(
    keys: U64,
    words: U32,
    row_ids: Index,
    buckets: U32,
    rows: U64,
    spilled: U32,
    round_size: int,
    bucket_count: int,
) -> None:
    """Write keys that are not here, and their words, into these unused rows."""
    for position in range(len(row_ids)):
        row = row_ids[position]
        rows[row, 0], rows[row, 1] = keys[position, 0], keys[position, 1]
        rows[row, 2] = np.uint64(words[position])
        _place(row, buckets, rows, spilled, round_size, bucket_count)


@compiled("void(int64, int64, uint64[:, ::1], uint32[::1])")
def _unspill(row: int, bucket: int, rows: U64, spilled: U32) -> None:
    following = rows[row, 2] >> _HALF_BITS
    before = _signed(spilled[bucket]) - 1
    assert before >= 0, "a row was freed that is in no bucket"
    if before == row:
        spilled[bucket] = following
        return
    while _signed(rows[before, 2] >> _HALF_BITS) - 1 != row:
        before = _signed(rows[before, 2] >> _HALF_BITS) - 1
        assert before >= 0, "a row was freed that is in no bucket"
    rows[before, 2] = (rows[before, 2] & _HALF_MASK) | following << _HALF_BITS


@compiled("void(int64[::1], uint32[:, ::1], uint64[:, ::1], uint32[::1], int64, int64)")
def release(
    row_ids: Index,
    buckets: U32,
    rows: U64,
    spilled: U32,
    round_size: int,
    bucket_count: int,
) -> None:
    """Take these distinct rows out of their buckets, or lists; their words are 0 then."""
    for position in range(len(row_ids)):
        row = row_ids[position]
        number, _ = address(rows[row, 0], rows[row, 1])
        bucket, name = _bucket_of(number, round_size, bucket_count), np.uint32(row + 1)
        is_placed = False
        for column in range(WIDTH):
            if buckets[bucket, _PAIRS + column] == name:
                buckets[bucket, _PAIRS + column] = 0
                is_placed = True
                break
        if not is_placed:
            _unspill(row, bucket, rows, spilled)
        rows[row, 2] = 0


@compiled("UniTuple(int64, 2)(int64, uint32[:, ::1], uint64[:, ::1], uint32[::1], int64, int64)")
def grow(
    wanted: int, buckets: U32, rows: U64, spilled: U32, round_size: int, bucket_count: int
) -> tuple[int, int]:
    """Split buckets until there are ``wanted``; new ``(round_size, bucket_count)``."""
    while bucket_count < wanted:
        source, target = bucket_count - round_size, bucket_count
        bucket_count += 1
        for column in range(WIDTH):
            name = buckets[source, _PAIRS + column]
            if name == 0:
                continue
            row = _signed(name) - 1
            number, tag = address(rows[row, 0], rows[row, 1])
            if _signed(number) & round_size:
                _write(buckets, target, column, tag, name)
                buckets[source, _PAIRS + column] = 0
        row = _signed(spilled[source]) - 1
        spilled[source] = 0
        while row >= 0:
            following = _signed(rows[row, 2] >> _HALF_BITS) - 1
            rows[row, 2] = rows[row, 2] & _HALF_MASK
            _place(row, buckets, rows, spilled, round_size, bucket_count)
            row = following
        if bucket_count == 2 * round_size:
            round_size *= 2
    return round_size, bucket_count
