"""The picker: the best score; among equals by rendezvous hash.

A rendezvous hash sends one key to the same node whatever the order of the list, spreads different
keys evenly, and moves only the keys of a node that comes or goes. There is no counter and no
random number: equal states give equal decisions.
"""

from collections.abc import Sequence

import xxhash

from pdd.core.identity import NodeName

_EQUAL = 1e-9


def pick(names: Sequence[NodeName], scores: Sequence[float], *, key: bytes) -> int:
    """Index of the winner. At least one name; ``key`` is what belongs together."""
    best = max(scores)
    equals = [index for index, score in enumerate(scores) if score >= best - _EQUAL]
    if len(equals) == 1:
        return equals[0]
    return max(equals, key=lambda index: (_weight(names[index], key), names[index]))


def _weight(name: NodeName, key: bytes) -> int:
    return xxhash.xxh3_64_intdigest(key + b"\0" + name.encode())
