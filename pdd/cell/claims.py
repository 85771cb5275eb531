"""Which scheduler may run a client's key, so that two that get it at once do not both run it.

The leader grants; whoever has a key is asked by the others (they follow its run instead). A claim
is kept by the leader and waited for by nobody but the request that has a key. The next leader hears
of it from whoever has it (`told`), before it grants anything. What a leader claims for itself would
be lost with it: such a request begins when another scheduler has noted the claim (`HeardClaims`),
from which the next leader hears of it. The sequence table, which comes some tens of milliseconds
later by the log, knows those of schedulers that are lost by then.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

CLAIMS_MAX = 10_000
"""Beyond so many the oldest is forgotten: by then its row is in the table of every scheduler."""


class KeyClaims:
    """Of one leader. All times are the order of calls."""

    def __init__(
        self, *, sources: Sequence[Callable[[bytes], str | None]], claims_max: int = CLAIMS_MAX
    ) -> None:
        """``sources``: who has a key as others say, whoever is to be believed first."""
        self._sources = sources
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

    def granted(self) -> list[tuple[bytes, str]]:
        """All that is remembered, and to whom; the one that was asked for longest ago first."""
        return list(self._holders.items())

    def claimed(self, key: bytes) -> str | None:
        """Who has claimed it, or has told of it; None: nobody that is remembered."""
        return self._holders.get(key)

    def holder(self, key: bytes, *, without: Collection[str] = ()) -> str | None:
        """Who has the key; None: nobody but, perhaps, those ``without`` whom this is asked."""
        # Who has claimed it, then who says to have it: another may have taken it over from there.
        for source in (self.claimed, *self._sources):
            if (one := source(key)) is not None and one not in without:
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


@dataclass(frozen=True, slots=True)
class HeardClaim:
    """A leader has claimed a key for itself, ``age_s`` ago."""

    key: bytes
    holder: str
    age_s: float


class HeardClaims:
    """Of one scheduler: what others have claimed while they led. It outlasts their leadership."""

    def __init__(self, *, claims_max: int = CLAIMS_MAX) -> None:
        """``claims_max``: beyond so many the one that was noted first is forgotten."""
        self._claims_max = claims_max
        self._said: OrderedDict[bytes, tuple[str, float]] = OrderedDict()

    def note(self, claim: HeardClaim, now_s: float) -> None:
        """The latest claim of a key counts, whichever way it came."""
        said_s = now_s - claim.age_s
        _, known_s = self._said.get(claim.key, ("", said_s))
        if known_s > said_s:
            return
        self._said[claim.key] = claim.holder, said_s
        self._said.move_to_end(claim.key)
        if len(self._said) > self._claims_max:
            self._said.popitem(last=False)

    def holder_of(self, key: bytes) -> str | None:
        """Who has claimed it last."""
        said = self._said.get(key)
        return None if said is None else said[0]

    def let_go(self, key: bytes, holder: str) -> None:
        """It has nothing under that key (any more), as it says itself."""
        if self.holder_of(key) == holder:
            del self._said[key]

    def all(self, now_s: float) -> list[HeardClaim]:
        """For a scheduler that comes to lead."""
        return [
            HeardClaim(key, holder, now_s - said_s) for key, (holder, said_s) in self._said.items()
        ]
