"""The block keys of a prompt, hashed once, where it enters the scheduler."""

from functools import lru_cache

from pdd.core.requests import DEFAULT_TENANT, GenerateRequest
from pdd.directory.keys import BlockKey, ChainScope, block_keys

_SCOPE_COUNT_MAX = 1024


class PromptKeys:
    """Hashes in one model's scopes.

    The layout of KV blocks is no part of the scopes here: nodes that could not exchange blocks are
    refused when they join, so that a cluster has one.
    """

    def __init__(self, *, model: str) -> None:
        self._model = model
        self._root = lru_cache(maxsize=_SCOPE_COUNT_MAX)(self._make_root)

    def of(self, request: GenerateRequest, *, block_size_tokens: int) -> bytes:
        """The keys of the prompt's full blocks, joined; see ``pdd.directory.keys``."""
        return block_keys(
            self._root(prefix_salt(request), block_size_tokens),
            request.prompt_token_ids,
            block_size_tokens=block_size_tokens,
        )

    def _make_root(self, salt: str, block_size_tokens: int) -> BlockKey:
        return ChainScope(
            block_size_tokens=block_size_tokens,
            model=self._model,
            kv_layout="",
            tenant_salt=salt.encode(),
        ).root()


def prefix_salt(request: GenerateRequest) -> str:
    """Keeps tenants and salts apart, in keys and in the engines' prefix caches."""
    if request.tenant == DEFAULT_TENANT and not request.cache_salt:
        return ""
    return f"{len(request.tenant)}:{request.tenant}:{request.cache_salt}"
