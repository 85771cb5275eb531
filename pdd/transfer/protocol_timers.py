"""A deadline heap for the pure protocols. On firing, the user checks that it still matters."""

import heapq
import itertools
from collections.abc import Iterator


class Timers:
    """Times in the driver's monotonic seconds; equal times fire in the order of scheduling."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, str, str | int]] = []
        self._order = itertools.count()

    def schedule(self, at_s: float, what: str, whom: str | int) -> None:
        """``what`` shall be looked at for ``whom`` (a key or a nonce) at ``at_s``."""
        heapq.heappush(self._heap, (at_s, next(self._order), what, whom))

    def next_s(self) -> float | None:
        """The earliest time, or None."""
        return self._heap[0][0] if self._heap else None

    def due(self, now_s: float) -> Iterator[tuple[str, str | int]]:
        """Take out everything whose time has come."""
        while self._heap and self._heap[0][0] <= now_s:
            _, _, what, whom = heapq.heappop(self._heap)
            yield what, whom
