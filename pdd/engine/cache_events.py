"""What an engine tells about its prefix cache, in the order in which it happened.

Hashes are the engine's own, of any bytes: they only serve to find a block again. A block may be
stored several times over (copies with the same content) and is then removed as often.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheStored:
    """Consecutive full blocks may be reused from now on.

    ``parent``: the block before them, None at a prompt's start, where ``cache_salt`` and
    ``adapter`` say whose prompt it is (they are part of every hash behind). ``token_ids``: of
    these blocks alone.
    """

    hashes: tuple[bytes, ...]
    parent: bytes | None
    token_ids: Sequence[int]
    cache_salt: str = ""
    adapter: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheRemoved:
    """One copy of each of these blocks was evicted."""

    hashes: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheCleared:
    """The cache is empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheUnknown:
    """Events were lost for good: only an emptied cache is known again (``Engine.reset_cache``)."""

    reason: str


CacheEvent = CacheStored | CacheRemoved | CacheCleared | CacheUnknown
CacheListener = Callable[[Sequence[CacheEvent]], None]
