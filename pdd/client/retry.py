"""Which address next, after what pause, and when to give up. Pure: time is an argument.

As long as no server has taken the request, each address is tried once. From then on the request may
be running somewhere, and is looked for at all of them in turn until ``patience_s`` after the last
news: longer than a cluster holds it would be in vain.
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
        self._news_s: float | None = None

    @property
    def address(self) -> str:
        """Whom to ask."""
        return self._addresses[self._index]

    @property
    def is_taken(self) -> bool:
        """Some server may have the request."""
        return self._news_s is not None

    def taken(self, *, now_s: float) -> None:
        """The request was sent, or something came from a server."""
        self._news_s = now_s
        self._failure_count = 0

    def failed(self, *, now_s: float) -> float | None:
        """Go to the next address: seconds to wait before; None: give up."""
        self._index = (self._index + 1) % len(self._addresses)
        self._failure_count += 1
        rounds, place = divmod(self._failure_count, len(self._addresses))
        if self._news_s is None:
            return 0.0 if rounds == 0 else None
        if place:
            return 0.0
        pause_s = min(PAUSE_S_MIN * 2 ** min(rounds - 1, 10), PAUSE_S_MAX)
        return pause_s if now_s + pause_s < self._news_s + self._patience_s else None
