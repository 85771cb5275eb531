"""The digest of a chunk: xxh3-64 over its packed bytes."""

from collections.abc import Callable, Sequence
from typing import Any

import xxhash


class RunningDigest:
    """Takes a chunk's packed bytes piece by piece, while they are hot from being copied."""

    def __init__(self) -> None:
        self._state = xxhash.xxh3_64()
        self.update: Callable[[Any], object] = self._state.update
        """Take the next contiguous piece."""

    def value(self) -> int:
        """As ``digest_of`` all pieces so far."""
        return self._state.intdigest() or 1


def digest_of(pieces: Sequence[Any]) -> int:
    """Over the pieces in their order; never 0, which stands for "not taken"."""
    if len(pieces) == 1:
        return xxhash.xxh3_64_intdigest(pieces[0]) or 1
    state = xxhash.xxh3_64()
    for piece in pieces:
        state.update(piece)
    return state.intdigest() or 1
