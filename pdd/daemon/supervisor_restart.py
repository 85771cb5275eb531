"""When to start a dead daemon again. Pure: time is an argument.

A daemon that dies is restarted after 0.5, 1, 2, 4 and 8 s. It has to stay ready for a minute to
earn these five attempts anew; a sixth death before that means that restarting at once does not
help. A node is then tried again every ``RARE_DELAY_S``, since the others can serve without it; a
cluster without a scheduler can do nothing and stops.
"""

from dataclasses import dataclass

RESTART_LIMIT = 5
FIRST_DELAY_S = 0.5
HEALTHY_AFTER_S = 60.0
RARE_DELAY_S = 30.0


@dataclass(slots=True)
class RestartBudget:
    """Attempts of one daemon."""

    used: int = 0
    ready_since_s: float | None = None

    def became_ready(self, *, now_s: float) -> None:
        self.ready_since_s = now_s

    def died(self, *, now_s: float) -> float | None:
        """Seconds to wait before the next start; None when the attempts are used up."""
        if self.ready_since_s is not None and now_s - self.ready_since_s >= HEALTHY_AFTER_S:
            self.used = 0
        self.ready_since_s = None
        if self.used == RESTART_LIMIT:
            return None
        self.used += 1
        return float(FIRST_DELAY_S * 2 ** (self.used - 1))
