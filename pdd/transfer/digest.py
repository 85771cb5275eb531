"""The digest of a chunk: xxh3-64 over its packed bytes."""

from collections.abc import Sequence
from typing import Any

import xxhash


def digest_of(pieces: Sequence[Any]) -> int:
    """Over the pieces in their order; never 0, which stands for "not taken"."""
    if len(pieces) == 1:
        return xxhash.xxh3_64_intdigest(pieces[0]) or 1
    state = xxhash.xxh3_64()
    for piece in pieces:
        state.update(piece)
    return state.intdigest() or 1
