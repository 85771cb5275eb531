"""Which scheduler may run a client's key, so that two that get it at once do not both run it.

The leader grants; whoever has a key is asked by the others (they follow its run instead). A claim
is kept by the leader alone and waited for by nobody but the request that has a key. The next leader
hears of it from whoever has it (`told`), before it grants anything; the sequence table, which comes
some tens of milliseconds later by the log, knows those of schedulers that are lost by then.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

CLAIMS_MAX = 10_000
"""Beyond so many the oldest is forgotten: by then its row is in the table of every scheduler."""


class KeyClaims:
    """Of one leader. All times are the order of calls."""

    def __init__(
        self,
        *,
        holder_of: Callable[[bytes], str | None],
        is_there: Callable[[str], bool],
        claims_max: int = CLAIMS_MAX,
    ) -> None:
        """
        Args:
            holder_of: who has a key as the sequence table says.
            is_there: whether a scheduler is known to live: one that does not loses what it has.
        """
        self._holder_of = holder_of
        self._is_there = is_there
        self._claims_max = claims_max
        self._holders: OrderedDict[bytes, str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._holders)

    def told(self, key: bytes, holder: str) -> None:
        """A scheduler has a request of that key already. What was claimed since stands."""
        if key not in self._holders:
            self._keep(key, holder)

    def claim(self, key: bytes, claimer: str, *, released_by: str = "") -> str:
        """Who has the key: ``claimer``, or the one that must be asked. ``released_by``: a scheduler
        that has said that it has nothing under that key (any more)."""
        holder = claimer
        # Who has claimed it, then who says to have it: another may have taken it over from there.
        for one in (self._holders.get(key), self._holder_of(key)):
            if one is not None and one != released_by and self._is_there(one):
                holder = one
                break
        self._keep(key, holder)
        return holder

    def _keep(self, key: bytes, holder: str) -> None:
        self._holders[key] = holder
        self._holders.move_to_end(key)
        if len(self._holders) > self._claims_max:
            self._holders.popitem(last=False)
