"""Which scheduler may run a client's key, so that two that get it at once do not both run it.

The leader grants; whoever has a key is asked by the others (they follow its run instead). A claim
is kept by the leader alone and waited for by nobody but the request that has a key. The next leader
hears of it from whoever has it (`told`), before it grants anything; the sequence table, which comes
some tens of milliseconds later by the log, knows those of schedulers that are lost by then.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection

CLAIMS_MAX = 10_000
"""Beyond so many the oldest is forgotten: by then its row is in the table of every scheduler."""


class KeyClaims:
    """Of one leader. All times are the order of calls."""

    def __init__(
        self, *, holder_of: Callable[[bytes], str | None], claims_max: int = CLAIMS_MAX
    ) -> None:
        """``holder_of``: who has a key as the sequence table says."""
        self._holder_of = holder_of
        self._claims_max = claims_max
        self._holders: OrderedDict[bytes, str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._holders)

    def told(self, key: bytes, holder: str, *, stands: Callable[[str], bool]) -> str:
        """A scheduler has a request of that key already. Returns who has the key: it, or who has
        claimed it since, if that ``stands``."""
        former = self._holders.get(key)
        if former is None or (former != holder and not stands(former)):
            self._keep(key, holder)
        return self._holders[key]

    def claimed(self, key: bytes) -> str | None:
        """Who has claimed it, or has told of it; None: nobody that is remembered."""
        return self._holders.get(key)

    def holder(self, key: bytes, *, without: Collection[str] = ()) -> str | None:
        """Who has the key; None: nobody but, perhaps, those ``without`` whom this is asked."""
        # Who has claimed it, then who says to have it: another may have taken it over from there.
        for one in (self._holders.get(key), self._holder_of(key)):
            if one is not None and one not in without:
                return one
        return None

    def claim(self, key: bytes, claimer: str, *, without: Collection[str] = ()) -> str:
        """Who has the key: ``claimer``, or the one that must be asked. ``without``: schedulers of
        which it is known that they have nothing under that key (any more)."""
        holder = self.holder(key, without=without) or claimer
        self._keep(key, holder)
        return holder

    def _keep(self, key: bytes, holder: str) -> None:
        self._holders[key] = holder
        self._holders.move_to_end(key)
        if len(self._holders) > self._claims_max:
            self._holders.popitem(last=False)
