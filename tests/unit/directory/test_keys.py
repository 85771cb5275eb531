"""The chain of block keys."""

import dataclasses

import pytest
import xxhash

from pdd.directory.keys import ChainScope, block_keys, parse_key, split_keys

SCOPE = ChainScope(
    block_size_tokens=4, model="m", kv_layout="bf16", tenant_salt=b"acme", adapter="a"
)


def test_a_key_covers_its_block_and_everything_before_it() -> None:
    chain = split_keys(block_keys(SCOPE.root(), range(12), block_size_tokens=4))
    other = split_keys(block_keys(SCOPE.root(), [9, *range(1, 12)], block_size_tokens=4))
    longer = split_keys(block_keys(SCOPE.root(), range(20), block_size_tokens=4))
    assert len(set(chain)) == 3
    assert not set(chain) & set(other)
    assert longer[:3] == chain


def test_only_full_blocks_have_a_key() -> None:
    assert block_keys(SCOPE.root(), range(3), block_size_tokens=4) == b""
    assert len(block_keys(SCOPE.root(), range(11), block_size_tokens=4)) == 2 * 16


def test_a_chain_may_be_continued_from_its_last_key() -> None:
    whole = block_keys(SCOPE.root(), range(12), block_size_tokens=4)
    rest = block_keys(split_keys(whole)[0], range(4, 12), block_size_tokens=4)
    assert whole[16:] == rest


def test_the_hash_is_xxh3_128_over_parent_and_little_endian_token_ids() -> None:
    data = SCOPE.root() + b"\1\0\0\0" + b"\0\1\0\0" + b"\0\0\1\0" + b"\xff\xff\xff\xff"
    keys = block_keys(SCOPE.root(), [1, 256, 65536, 2**32 - 1], block_size_tokens=4)
    assert keys == xxhash.xxh3_128_digest(data)


def test_the_chain_of_version_1_never_changes() -> None:
    # Nodes of different pdd versions share keys; a new form needs a new _CHAIN_VERSION.
    assert block_keys(SCOPE.root(), range(4), block_size_tokens=4).hex() == (
        "f1752835628ce8bdcfbd56e64d89fccf"
    )


@pytest.mark.parametrize(
    "change",
    [
        {"block_size_tokens": 8},
        {"model": "n"},
        {"kv_layout": "fp8"},
        {"tenant_salt": b"other"},
        {"adapter": ""},
        # The same bytes, cut elsewhere.
        {"model": "ma", "adapter": ""},
    ],
)
def test_scopes_that_differ_anywhere_share_no_key(change: dict[str, object]) -> None:
    assert dataclasses.replace(SCOPE, **change).root() != SCOPE.root()  # type: ignore[arg-type]


@pytest.mark.parametrize("token_id", [-1, 2**32])
def test_a_token_id_that_does_not_fit_is_refused(token_id: int) -> None:
    with pytest.raises(ValueError, match=r"token ids must be integers in 0\.\.4294967295"):
        block_keys(SCOPE.root(), [0, 1, 2, token_id], block_size_tokens=4)


def test_an_empty_block_size_is_refused_with_its_value() -> None:
    with pytest.raises(ValueError, match="block_size_tokens is 0"):
        ChainScope(block_size_tokens=0, model="m", kv_layout="l")


def test_keys_are_read_back_from_their_hexadecimal_form_only() -> None:
    key = split_keys(block_keys(SCOPE.root(), range(4), block_size_tokens=4))[0]
    assert parse_key(key.hex()) == key
    assert parse_key("r-1234") is None
    assert parse_key("z" * 32) is None
