"""The compiled chain gives the keys that the one in Python gives."""

import platform
import random

import pytest
import xxhash._xxhash

from pdd.core.library_calls import word_pair_function
from pdd.directory import compiled_keys, keys


@pytest.mark.parametrize("block_size_tokens", [1, 2, 3, 4, 5, 8, 16, 32, 56, 57, 64, 128, 1000])
def test_both_chains_are_equal_for_every_range_of_lengths_that_the_hash_treats_apart(
    block_size_tokens: int,
) -> None:
    rng = random.Random(block_size_tokens)
    for block_count in (0, 1, 2, 129):
        parent = rng.randbytes(keys.KEY_SIZE_BYTES)
        token_ids = rng.choices(range(2**32), k=block_count * block_size_tokens)
        packed = keys.pack_blocks(token_ids, block_size_tokens=block_size_tokens)
        chain = compiled_keys.chain(parent, packed, block_size_tokens)
        assert len(chain) == block_count * keys.KEY_SIZE_BYTES
        assert chain == keys.chain(parent, packed, block_size_tokens)


@pytest.mark.skipif(
    platform.machine() not in ("x86_64", "aarch64"), reason="only compiled on x86-64 and AArch64"
)
def test_here_the_chain_is_the_compiled_one() -> None:
    assert compiled_keys.chain is not keys.chain


def test_a_library_that_gives_other_keys_would_not_be_used(monkeypatch) -> None:
    assert compiled_keys._gives_the_same()
    monkeypatch.setattr(keys, "chain", lambda parent, packed, size: bytes(len(packed)))
    assert not compiled_keys._gives_the_same()


def test_a_function_that_a_library_lacks_is_none_instead_of_a_crash(tmp_path) -> None:
    assert word_pair_function(xxhash._xxhash.__file__, "XXH3_no_such_function") is None
    assert word_pair_function(str(tmp_path / "none.so"), "XXH3_128bits") is None


def test_on_a_processor_with_another_calling_convention_it_is_none(monkeypatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert word_pair_function(xxhash._xxhash.__file__, "XXH3_128bits") is None
