"""A deadline heap for the pure protocols. On firing, the user checks that it still matters."""

import heapq
import itertools
from collections.abc import Callable, Iterator

SWEPT_FROM = 1024


class Timers:
    """Times in the driver's monotonic seconds; equal times fire in the order of scheduling.

    Nobody takes a timer back. A transfer of some milliseconds leaves its deadline of some minutes
    behind, so those for whom nothing is kept any more are swept out each time the heap has doubled:
    it holds at most ``SWEPT_FROM`` timers, or twice those that mattered at the last sweep.

    Args:
        is_known: whether a key or a nonce can still have something looked at.
    """

    def __init__(self, is_known: Callable[[str | int], bool]) -> None:
        self._is_known = is_known
        self._heap: list[tuple[float, int, str, str | int]] = []
        self._order = itertools.count()
        self._sweep_at = SWEPT_FROM

    def __len__(self) -> int:
        return len(self._heap)

    def schedule(self, at_s: float, what: str, whom: str | int) -> None:
        """``what`` shall be looked at for ``whom`` (a key or a nonce) at ``at_s``."""
        heapq.heappush(self._heap, (at_s, next(self._order), what, whom))
        if len(self._heap) >= self._sweep_at:
            self._heap = [timer for timer in self._heap if self._is_known(timer[3])]
            heapq.heapify(self._heap)
            self._sweep_at = max(SWEPT_FROM, 2 * len(self._heap))

    def next_s(self) -> float | None:
        """The earliest time, or None."""
        return self._heap[0][0] if self._heap else None

    def due(self, now_s: float) -> Iterator[tuple[str, str | int]]:
        """Take out everything whose time has come."""
        while self._heap and self._heap[0][0] <= now_s:
            _, _, what, whom = heapq.heappop(self._heap)
            yield what, whom
