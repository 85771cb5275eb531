"""Whose KV blocks are whose: the scopes of block keys, and the keys of a prompt.

Nodes and schedulers must agree on these, or no prompt would ever match what a node holds.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache

from pdd.core.requests import DEFAULT_TENANT, GenerateRequest
from pdd.directory.keys import BlockKey, ChainScope, chain, pack_blocks

_SCOPE_COUNT_MAX = 1024
_CUT_PREFIXES = ("tensor_parallel_size", "kv_order", "kv_block_", "kv_reshard", "transfer_")
"""Names in a fingerprint that say how a node cuts and sends its blocks, not what is in them: nodes
that differ there may exchange blocks (``pdd.transfer.pairing``)."""


def kv_layout(fingerprint: Mapping[str, str]) -> str:
    """What makes blocks replace each other: weights, dtype, heads, block size, and so on. Equal on
    all nodes that fit together."""
    return "\n".join(
        f"{name}={fingerprint[name]}"
        for name in sorted(fingerprint)
        if not name.startswith(_CUT_PREFIXES)
    )


class PromptKeys:
    """Hashes each prompt once, where it enters the scheduler."""

    def __init__(self, *, model: str, chain: Callable[[bytes, bytes, int], bytes] = chain) -> None:
        """``chain``: `pdd.directory.keys.chain`, or the compiled one where there is a compiler."""
        self._model = model
        self._chain = chain
        self._block_size_tokens = 0
        self._layout = ""
        self._root = lru_cache(maxsize=_SCOPE_COUNT_MAX)(self._make_root)

    def fit(self, *, block_size_tokens: int, fingerprint: Mapping[str, str]) -> None:
        """A node has joined: its blocks are what is asked for from now on. Nodes that do not fit
        those that are there were refused, so that this changes only when all of them have."""
        layout = kv_layout(fingerprint)
        if (block_size_tokens, layout) != (self._block_size_tokens, self._layout):
            self._block_size_tokens, self._layout = block_size_tokens, layout
            self._root.cache_clear()

    def of(self, request: GenerateRequest) -> bytes:
        """The keys of the prompt's full blocks, joined; see ``pdd.directory.keys``. None before
        the first node."""
        if not self._block_size_tokens:
            return b""
        size = self._block_size_tokens
        packed = pack_blocks(request.prompt_token_ids, block_size_tokens=size)
        return self._chain(self._root(prefix_salt(request)), packed, size)

    def _make_root(self, salt: str) -> BlockKey:
        return ChainScope(
            block_size_tokens=self._block_size_tokens,
            model=self._model,
            kv_layout=self._layout,
            tenant_salt=salt.encode(),
        ).root()


def prefix_salt(request: GenerateRequest) -> str:
    """Keeps tenants and salts apart, in keys and in the engines' prefix caches."""
    if request.tenant == DEFAULT_TENANT and not request.cache_salt:
        return ""
    return f"{len(request.tenant)}:{request.tenant}:{request.cache_salt}"
