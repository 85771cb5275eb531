"""The digest of GPU pools, on CPU tensors: the arithmetic is the same."""

import itertools

import numpy as np
import pytest
import torch

from pdd.connector.device_digest import MIX_FACTOR, DeviceDigest, factors
from pdd.transfer.pool import DeviceMemory, host_memory

WORDS = 256


def on_cpu(piece):
    return torch.from_numpy(host_memory(piece.address, piece.size_bytes))


@pytest.fixture
def data():
    return np.random.default_rng(3).integers(0, 1 << 64, WORDS, np.uint64, endpoint=False)


@pytest.fixture
def digest():
    return DeviceDigest(torch.device("cpu"), view=on_cpu)


def pieces(data, *cuts):
    """The data as stretches of memory, cut before these words."""
    edges = [0, *cuts, len(data)]
    start = data.ctypes.data
    return [DeviceMemory(start + 8 * a, 8 * (b - a)) for a, b in itertools.pairwise(edges)]


def mixed(word):
    """Plainly, in Python's integers."""
    word ^= word >> 32
    word = word * MIX_FACTOR % (1 << 64)
    return word ^ (word >> 29)


def test_it_is_the_sum_of_mixed_words_times_odd_factors(data, digest):
    expected = sum(
        mixed(int(word)) * (int(factor) % (1 << 64))
        for word, factor in zip(data, factors(WORDS), strict=True)
    )
    assert digest(pieces(data)) == expected % (1 << 64)
    assert all(int(factor) % 2 for factor in factors(WORDS))


def test_the_factors_are_splitmix64_of_their_position():
    assert int(factors(1)[0]) % (1 << 64) == 0xE220A8397B1DCDAF  # its first output for seed 0


def test_it_does_not_depend_on_how_a_chunk_is_cut(data, digest):
    assert digest(pieces(data)) == digest(pieces(data, 1, 7, 200)) == digest(pieces(data, 128))


def test_every_single_bit_counts(data, digest):
    before = digest(pieces(data))
    for bit in range(0, WORDS * 64, 37):
        data[bit // 64] ^= np.uint64(1 << (bit % 64))
        assert digest(pieces(data)) != before, bit
        data[bit // 64] ^= np.uint64(1 << (bit % 64))
    assert digest(pieces(data)) == before


@pytest.mark.parametrize("bit", [0, 31, 32, 62, 63])
def test_the_same_bit_changed_in_two_words_is_seen(data, digest, bit):
    before = digest(pieces(data))
    flip = np.uint64(1 << bit)
    for first in range(0, WORDS - 1, 5):
        for second in range(first + 1, WORDS, 17):
            data[[first, second]] ^= flip
            assert digest(pieces(data)) != before, (first, second)
            data[[first, second]] ^= flip


def test_changes_in_the_top_of_some_words_are_seen(data, digest):
    rng = np.random.default_rng(11)
    before = digest(pieces(data))
    for _ in range(3000):
        where = rng.choice(WORDS, 4, replace=False)
        flips = rng.integers(1, 8, 4).astype(np.uint64) << np.uint64(60)
        data[where] ^= flips
        assert digest(pieces(data)) != before
        data[where] ^= flips


def test_exchanged_words_and_stretches_are_seen(data, digest):
    before = digest(pieces(data))
    assert digest(list(reversed(pieces(data, 100)))) != before
    data[[3, 200]] = data[[200, 3]]
    assert digest(pieces(data)) != before


def test_a_short_chunk_before_and_after_a_long_one_has_one_digest(data, digest):
    short = pieces(data[:10])
    before = digest(short)
    digest(pieces(data))
    assert digest(short) == before


def test_zeros_have_a_digest_too(digest):
    assert digest(pieces(np.zeros(WORDS, np.uint64))) == 1


def test_stretches_that_are_not_whole_words_are_refused_with_what_to_do(data, digest):
    with pytest.raises(ValueError, match=r"transfer\.digest = false"):
        digest([DeviceMemory(data.ctypes.data, 12)])
    with pytest.raises(ValueError, match="words of 8 B"):
        digest([DeviceMemory(data.ctypes.data + 4, 16)])
