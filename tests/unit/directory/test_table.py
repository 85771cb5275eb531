"""The hash table: growth, spilled keys, bounds, and what it weighs."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pdd.directory import buckets
from pdd.directory.table import NO_ROW, KeyTable, as_words

ROOT = Path(__file__).parents[3]


def random_keys(count: int, *, seed: int) -> np.ndarray:
    return as_words(np.random.default_rng(seed).bytes(16 * count))


def numbers_and_tags(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of all keys at once: the 32 upper bits of one product, bytes swapped, the 16 of another."""
    products = keys @ np.array(buckets.FACTORS, dtype=np.uint64)
    return products[:, 0].byteswap().astype(np.uint32), products[:, 1] >> np.uint64(48)


def spilled_counts(table: KeyTable) -> list[int]:
    """Per bucket that has some, how many keys found no column in it."""
    counts = []
    for name in table._spilled[table._spilled != 0].tolist():
        count = 0
        while name:
            count, name = count + 1, int(table._rows[name - 1, 2]) >> 32
        counts.append(count)
    return counts


def one_bucket(count: int, *, seed: int) -> np.ndarray:
    """Distinct keys that stay in one bucket for ever, however many splits: solved for their low
    halves, since no such keys would come by themselves."""
    keys = random_keys(count, seed=seed).copy()
    (high_factor, _), (low_factor, _) = buckets.FACTORS
    inverse = np.uint64(pow(low_factor, -1, 2**64))
    keys[:, 1] = (np.uint64(77) - keys[:, 0] * np.uint64(high_factor)) * inverse
    assert len(np.unique(numbers_and_tags(keys[:1000])[0])) == 1
    return keys


def ones(count: int) -> np.ndarray:
    return np.ones(count, dtype=np.uint32)


def test_keys_keep_their_rows_while_the_table_grows_a_thousandfold() -> None:
    table = KeyTable(max_key_count=50_000)
    keys = random_keys(50_000, seed=1)
    rows = [
        table.insert(keys[start : start + 700], ones(len(keys[start : start + 700])))
        for start in range(0, 50_000, 700)
    ]
    assert (table.find(keys) == np.concatenate(rows)).all()
    assert (table.find(random_keys(1000, seed=2)) == NO_ROW).all()
    assert table.key_count == 50_000


def test_keys_that_fall_into_one_bucket_are_all_found_and_all_freed() -> None:
    keys = one_bucket(300, seed=3)
    table = KeyTable(max_key_count=5000)
    rows = table.insert(keys, ones(300))
    table.insert(random_keys(4000, seed=4), ones(4000))
    assert (table.find(keys) == rows).all()
    table.free(rows[::2].copy())
    assert (table.find(keys[::2].copy()) == NO_ROW).all()
    assert (table.find(keys[1::2].copy()) == rows[1::2]).all()
    table.free(rows[1::2].copy())
    assert table.key_count == 4000


def test_keys_whose_tag_is_zero_or_equal_to_anothers_are_told_apart() -> None:
    many = one_bucket(2_000_000, seed=5)
    _, tags = numbers_and_tags(many)
    keys = np.concatenate([many[tags == 0][:20], many[tags == tags[0]][:20]])
    assert len(keys) == 40
    table = KeyTable(max_key_count=100)
    rows = table.insert(keys[::2].copy(), ones(20))
    found = table.find(keys)
    assert (found[::2] == rows).all()
    assert (found[1::2] == NO_ROW).all()


@pytest.mark.parametrize(
    "make",
    [
        lambda number: number.to_bytes(16, "big"),
        lambda number: number.to_bytes(16, "little"),
        lambda number: number.to_bytes(8, "big") + bytes(8),
        lambda number: bytes(8) + number.to_bytes(8, "little"),
        lambda number: b"%016d" % number,
        lambda number: b"key-%012x" % number,
    ],
)
def test_keys_that_are_no_hashes_are_spread_like_those_that_are(
    make: Callable[[int], bytes],
) -> None:
    # Spilled keys are looked for one by one, all of a bucket each time: with 550,000 counters in
    # one bucket an entry took minutes.
    table = KeyTable(max_key_count=60_000)
    keys = as_words(b"".join(map(make, range(60_000))))
    table.insert(keys, ones(60_000))
    assert (table.find(keys) != NO_ROW).all()
    assert max(spilled_counts(table), default=0) <= 8
    assert sum(spilled_counts(table)) < 600


def test_one_keys_address_is_that_of_the_vector() -> None:
    keys = random_keys(200, seed=9)
    numbers, tags = numbers_and_tags(keys)
    for (high, low), number, tag in zip(keys, numbers, tags, strict=True):
        assert buckets.address(high, low) == (number, tag)


def test_freed_rows_are_used_again_and_their_old_keys_are_gone() -> None:
    table = KeyTable(max_key_count=1000)
    old, new = random_keys(1000, seed=6), random_keys(1000, seed=7)
    table.free(table.insert(old, ones(1000)))
    assert len(table.insert(new, ones(1000))) == 1000
    assert (table.find(old) == NO_ROW).all()
    assert (table.find(new) != NO_ROW).all()
    assert table.row_end == 1000


def test_a_row_that_a_key_once_had_is_not_taken_for_it() -> None:
    # All in one bucket, with one tag: the freed column still has the tag, but no row.
    many = one_bucket(2_000_000, seed=9)
    _, tags = numbers_and_tags(many)
    first, other, key = many[tags == tags[0]][:3].reshape(3, 1, 2)
    table = KeyTable(max_key_count=10)
    row = table.insert(first, ones(1))
    other_row = table.insert(other, ones(1))
    table.free(row)
    assert table.find(first) == table.find(key) == NO_ROW
    assert table.walk(first) == (0, 0, 0)
    assert table.insert(key, ones(1)) == row
    assert table.find(first) == NO_ROW
    assert (table.find(key), table.find(other)) == (row, other_row)


@pytest.mark.parametrize("count", [1, 40])
def test_a_row_that_is_freed_twice_ends_the_process_and_no_loop_looks_for_it_for_ever(
    count: int,
) -> None:
    """Alone in its bucket, and where others are in the bucket's list."""
    table = KeyTable(max_key_count=100)
    rows = table.insert(one_bucket(1000, seed=11)[:count], ones(count))
    table.free(rows[:1])
    with pytest.raises(AssertionError, match="in no bucket"):
        table.free(rows[:1])


def test_a_walk_ends_at_the_first_key_that_is_missing_and_tells_where_words_change() -> None:
    keys = random_keys(3000, seed=10)
    table = KeyTable(max_key_count=5000)
    words = np.repeat(np.array([5, 7, 5, 9], dtype=np.uint32), (1, 1200, 799, 1000))
    rows = table.insert(keys, words)
    assert table.walk(keys) == (3000, 4, 5)
    assert table.runs(4) == [(0, 5), (1, 7), (1201, 5), (2000, 9)]
    assert table.walk(keys[1:20]) == (19, 1, 7)
    assert table.runs(1) == [(0, 7)]
    table.free(rows[1300:1301])
    assert table.walk(keys) == (1300, 3, 5)
    assert table.runs(3) == [(0, 5), (1, 7), (1201, 5)]
    assert table.walk(keys[1300:]) == table.walk(keys[:0]) == (0, 0, 0)


def test_at_the_bound_the_first_keys_get_the_last_rows() -> None:
    table = KeyTable(max_key_count=10)
    keys = random_keys(15, seed=8)
    assert len(table.insert(keys, ones(15))) == 10
    assert ((table.find(keys) == NO_ROW) == (np.arange(15) >= 10)).all()


@pytest.mark.parametrize("bound", [0, 2**31])
def test_a_bound_that_rows_cannot_count_is_refused(bound: int) -> None:
    with pytest.raises(ValueError, match=f"max_key_count is {bound}"):
        KeyTable(max_key_count=bound)


def test_a_key_costs_less_than_64_bytes_all_in() -> None:
    # 1.5 million keys, each on 1.5 of 1,000 nodes, in a fresh process: what the kernel says it grew
    # by. With fewer, what the interpreter itself takes meanwhile counts for a third of it.
    code = """
from pdd.cli.bench_directory import measure
print(measure(1_500_000, 1000, 1)["bytes_per_key"])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert 30 < float(done.stdout) < 64
