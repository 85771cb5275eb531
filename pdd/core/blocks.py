"""The five states of a node's KV blocks, and what a count of all of them finds.

free         nobody uses it, it holds nothing
cached       nobody uses it, its content may be used again
active       a sequence uses it
leased       promised to a transfer that has not ended
quarantined  its owner is gone, a transfer may still touch it

A block is in exactly one of them. Each is counted from what it consists of, never as what the
others leave, so that their sum says something: a block in none of them is lost (nobody will give it
back), one in two of them will be used twice.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain

NAMED_COUNT_MAX = 8
"""So many blocks that are in the wrong place are named in messages; all are counted."""


class BlockState(StrEnum):
    """Where a block is; exactly one at a time."""

    FREE = "free"
    CACHED = "cached"
    ACTIVE = "active"
    LEASED = "leased"
    QUARANTINED = "quarantined"


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCensus:
    """Blocks by state. ``total``: those that can be handed out at all.

    ``lost_ids``, ``doubled_ids``: those in no state, and in several; from other processes only the
    first ``NAMED_COUNT_MAX``.
    """

    free: int
    cached: int
    active: int
    leased: int
    quarantined: int
    total: int
    lost_count: int = 0
    doubled_count: int = 0
    lost_ids: list[int] = field(default_factory=list)
    doubled_ids: list[int] = field(default_factory=list)

    @property
    def held_count(self) -> int:
        """Blocks that somebody holds."""
        return self.active + self.leased + self.quarantined

    @property
    def fault(self) -> str:
        """What does not add up, in words; empty when every block is somewhere, once."""
        return "; ".join(
            f"{count} of {self.total} KV blocks {what}: {_names(ids, count)}"
            for count, what, ids in (
                (self.lost_count, "are lost, in use by nobody and not free", self.lost_ids),
                (self.doubled_count, "are in two states at once", self.doubled_ids),
            )
            if count
        )


def take_census(
    *,
    usable: Iterable[int],
    free: Iterable[int],
    cached: Iterable[int],
    active: Iterable[int],
    leased: Iterable[int],
    quarantined: Iterable[int],
) -> BlockCensus:
    """Count. All are block ids; ``usable``: every block that can be handed out, once.

    ``active``, ``leased`` and ``quarantined`` are what their holders say, a block as often as it is
    held (a shared prefix); it counts for the first of the three. ``free`` and ``cached`` may name a
    block once only, and none that is held.
    """
    known = set(usable)
    unheld = (list(free), list(cached))
    is_active = set(active)
    is_leased = set(leased) - is_active
    is_quarantined = set(quarantined) - is_active - is_leased
    seen: set[int] = set()
    doubled: set[int] = set()
    for block in chain(*unheld):
        (doubled if block in seen else seen).add(block)
    held = is_active | is_leased | is_quarantined
    doubled |= held & seen
    lost = known - seen - held
    return BlockCensus(
        free=len(unheld[0]),
        cached=len(unheld[1]),
        active=len(is_active),
        leased=len(is_leased),
        quarantined=len(is_quarantined),
        total=len(known),
        lost_count=len(lost),
        doubled_count=len(doubled),
        lost_ids=sorted(lost),
        doubled_ids=sorted(doubled),
    )


def _names(ids: Iterable[int], count: int) -> str:
    named = list(ids)[:NAMED_COUNT_MAX]
    return ", ".join(map(str, named)) + (", ..." if count > len(named) else "")
