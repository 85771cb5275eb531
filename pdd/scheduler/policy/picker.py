"""The picker: the best score; among equals by rendezvous hash.

A rendezvous hash sends one key to the same node whatever the order of the list, spreads different
keys evenly, and moves only the keys of a node that comes or goes. There is no counter and no
random number: equal states give equal decisions.
"""

from collections.abc import Sequence

import numpy as np
import xxhash

from pdd.core.identity import NodeName
from pdd.scheduler.policy.parts import EQUAL, Column


def pick(names: Sequence[NodeName], scores: Column, *, key: bytes) -> int:
    """Index of the winner. At least one name; ``key`` is what belongs together."""
    best = int(scores.argmax())
    are_equal = scores >= scores[best] - EQUAL
    if np.count_nonzero(are_equal) == 1:
        return best
    equals = are_equal.nonzero()[0].tolist()
    prefix = key + b"\0"
    weigh = xxhash.xxh3_64_intdigest
    # Between two equal weights, the greater name.
    winner: int = max(
        (weigh(prefix + names[index].encode()), names[index], index) for index in equals
    )[2]
    return winner
