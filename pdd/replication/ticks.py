"""When the next tick is due. Pure: time is an argument.

Missed ticks are forgotten, not made up for: a process that was stopped for ten seconds must not run
through an election timeout before it has read what its peers sent meanwhile.
"""

from __future__ import annotations


class Ticks:
    def __init__(self, *, tick_s: float, now_s: float) -> None:
        self._tick_s = tick_s
        self.next_s = now_s + tick_s

    def take_due(self, now_s: float) -> bool:
        """Whether to tick now; at most once per call, whatever the delay."""
        if now_s < self.next_s:
            return False
        on_time = self.next_s + self._tick_s
        self.next_s = on_time if on_time > now_s else now_s + self._tick_s
        return True
