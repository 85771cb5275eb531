"""Which address next, after what pause, and when to give up. Pure: time is an argument.

As long as no server has taken the request, each address is tried once. From then on the request may
be running somewhere, and is looked for at all of them in turn, for ``patience_s`` in all since the
last news: longer than a cluster holds it would be in vain. Time in which a server has it counts for
nothing: a long prompt may be silent for minutes. A server that only takes it, and loses it again,
is no news, so that nobody is asked for ever.
"""

from collections.abc import Sequence

PAUSE_S_MIN = 0.1
PAUSE_S_MAX = 1.0


class Retry:
    """One request's. At first it is at the first address."""

    def __init__(self, addresses: Sequence[str], *, patience_s: float) -> None:
        """``addresses``: URLs; at least one."""
        assert addresses, "somebody must be asked"
        self._addresses = tuple(addresses)
        self._patience_s = patience_s
        self._index = 0
        self._failure_count = 0
        self._looked_s = 0.0
        self._lost_s: float | None = None
        self.is_taken = False
        """Some server may have the request."""

    @property
    def address(self) -> str:
        """Whom to ask."""
        return self._addresses[self._index]

    def taken(self, *, now_s: float) -> None:
        """A server has the request, or it was sent to one."""
        if not self.is_taken:
            self.is_taken = True
            self._failure_count = 0
            self._lost_s = None
        if self._lost_s is not None:
            self._looked_s += now_s - self._lost_s
            self._lost_s = None

    def heard(self) -> None:
        """Something new has come from the server that has it."""
        self._failure_count = 0
        self._looked_s = 0.0

    def failed(self, *, now_s: float) -> float | None:
        """Go to the next address: seconds to wait before; None: give up."""
        self._index = (self._index + 1) % len(self._addresses)
        self._failure_count += 1
        rounds, place = divmod(self._failure_count, len(self._addresses))
        if not self.is_taken:
            return 0.0 if rounds == 0 else None
        if self._lost_s is None:
            self._lost_s = now_s
        if place:
            return 0.0
        pause_s = min(PAUSE_S_MIN * 2 ** min(rounds - 1, 10), PAUSE_S_MAX)
        looked_s = self._looked_s + now_s - self._lost_s
        return pause_s if looked_s + pause_s < self._patience_s else None
