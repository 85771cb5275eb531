"""pdd's own block keys: a chain of xxh3-128 hashes over full blocks of token ids.

    root  = xxh3_128(version, block size, tenant salt, model, adapter, KV layout fingerprint)
    key 0 = xxh3_128(root  + token ids of block 0 as little-endian uint32)
    key i = xxh3_128(key i-1 + token ids of block i)

A key therefore names a block *and everything before it*, for one tenant, model, adapter and KV
layout: equal keys mean equal KV bytes, as far as 128 bits can say. The hash is not a
cryptographic one and needs not be: the directory is a hint, and the engine's own hash decides what
is reused. The gateway computes the chain once per request, the node daemon recomputes it from the
token ids in the engine's events (`pdd.directory.mirror`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NewType

import xxhash

BlockKey = NewType("BlockKey", bytes)
"""16 bytes, as xxh3-128's canonical (big-endian) digest."""

KEY_SIZE_BYTES = 16
_TOKEN_SIZE_BYTES = 4
_PACKER_COUNT_MAX = 256
"""Of so many lengths, in whole blocks, a packer is kept: some 200 bytes each."""
_CHAIN_VERSION = 1
"""History: 1 = first. A change makes every old key meaningless, so it goes with a new cell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainScope:
    """What a chain belongs to. Two scopes that differ anywhere share no key."""

    block_size_tokens: int
    model: str
    kv_layout: str
    """Fingerprint of layout, dtype and packing of the KV pool: blocks that differ in it cannot
    replace each other."""
    tenant_salt: bytes = b""
    adapter: str = ""

    def __post_init__(self) -> None:
        if self.block_size_tokens < 1:
            raise ValueError(
                f"block_size_tokens is {self.block_size_tokens}, must be at least 1: "
                "give the engine's block size"
            )

    def root(self) -> BlockKey:
        """The parent of every first block. Fields are length-prefixed, so that none can lend a
        byte to its neighbour."""
        digest = xxhash.xxh3_128()
        digest.update(_CHAIN_VERSION.to_bytes(4, "little"))
        digest.update(self.block_size_tokens.to_bytes(4, "little"))
        for field in (
            self.tenant_salt,
            self.model.encode(),
            self.adapter.encode(),
            self.kv_layout.encode(),
        ):
            digest.update(len(field).to_bytes(4, "little"))
            digest.update(field)
        return BlockKey(digest.digest())


def block_keys(parent: BlockKey, token_ids: Sequence[int], *, block_size_tokens: int) -> bytes:
    """The keys of the full blocks in ``token_ids``, 16 bytes each, joined.

    ``parent`` is `ChainScope.root` for a prompt's start, else the key of the block before. A
    partial last block has no key.

    Raises:
        ValueError: a token id is not in 0..4294967295.
    """
    packed = pack_blocks(token_ids, block_size_tokens=block_size_tokens)
    return chain(parent, packed, block_size_tokens)


def pack_blocks(token_ids: Sequence[int], *, block_size_tokens: int) -> bytes:
    """The token ids of the full blocks as little-endian uint32.

    Raises:
        ValueError: a token id is not in 0..4294967295.
    """
    token_count = len(token_ids) // block_size_tokens * block_size_tokens
    try:
        return _packer(token_count)(*token_ids[:token_count])
    except struct.error as error:
        raise ValueError(f"token ids must be integers in 0..4294967295: {error}") from error


def chain(parent: bytes, packed: bytes, block_size_tokens: int) -> bytes:
    """The keys of packed blocks, joined; `pdd.directory.compiled_keys` has it compiled."""
    digest, key = xxhash.xxh3_128_digest, parent
    blocks = struct.iter_unpack(f"{block_size_tokens * _TOKEN_SIZE_BYTES}s", packed)
    return b"".join([key := digest(key + block) for (block,) in blocks])


@lru_cache(maxsize=_PACKER_COUNT_MAX)
def _packer(token_count: int) -> Callable[..., bytes]:
    """Compiled, it takes two thirds of the time that ``struct.pack`` does."""
    return struct.Struct(f"<{token_count}I").pack


def split_keys(keys: bytes) -> list[BlockKey]:
    """Joined keys, one by one."""
    return [
        BlockKey(keys[start : start + KEY_SIZE_BYTES])
        for start in range(0, len(keys), KEY_SIZE_BYTES)
    ]


def parse_key(text: str) -> BlockKey | None:
    """A key from its 32 hexadecimal digits, or None where ``text`` is something else."""
    if len(text) != 2 * KEY_SIZE_BYTES:
        return None
    try:
        return BlockKey(bytes.fromhex(text))
    except ValueError:
        return None
