"""How requests ended, and which duty a late one was late by. Measured; no model is asked.

A request is *good* when its first token came within ``ttft_s`` and the others at ``tpot_s`` or
faster. A late one is blamed on one duty: on decode when its tokens came slowly or when it waited
longest for room there, on prefill when its prompt took longest. (Who waits for room that is
promised to prompts in the making waits for prefill: ``demand.Measured``.)
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from pdd.core.identity import Role
from pdd.scheduler.roles.settings import RoleSettings

_OUTCOME_COUNT_MAX = 20_000
"""Beyond it the oldest are forgotten; the guard then sees a shorter time before a switch."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One request. ``late_by``: None for a good one."""

    arrived_s: float
    ended_s: float
    late_by: Role | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Of ``count`` requests: the fractions that were good, and late by each duty."""

    count: int
    good: float
    late: dict[Role, float]


@dataclass(slots=True, kw_only=True)
class Goodput:
    """The latest outcomes."""

    settings: RoleSettings
    kept: deque[Outcome] = field(default_factory=lambda: deque(maxlen=_OUTCOME_COUNT_MAX))

    def observe(
        self,
        *,
        arrived_s: float,
        now_s: float,
        queue_s: float,
        prefill_s: float,
        tpot_s: float | None,
        queue_is_prefill: bool,
    ) -> None:
        """A request has ended by itself. ``tpot_s``: None for fewer than two tokens;
        ``queue_is_prefill``: it waited for prefill, before it had a place."""
        late_by = None
        if queue_s + prefill_s > self.settings.ttft_s:
            by_prefill = prefill_s > queue_s or queue_is_prefill
            late_by = Role.PREFILL if by_prefill else Role.DECODE
        elif tpot_s is not None and tpot_s > self.settings.tpot_s:
            late_by = Role.DECODE
        self.kept.append(Outcome(arrived_s, now_s, late_by))

    def failed(self, *, arrived_s: float, now_s: float, late_by: Role) -> None:
        """A request was refused for want of room, or passed its deadline."""
        self.kept.append(Outcome(arrived_s, now_s, late_by))

    def shares(
        self,
        *,
        ended_from_s: float,
        arrived_from_s: float,
        overdue: Sequence[Outcome] = (),
    ) -> Shares:
        """Of those that ended and arrived at these moments or later.

        ``overdue``: requests that have not ended and are late already. A pool that is far too small
        ends nothing; without them it would look as if it had nothing to do.
        """
        found = [one.late_by for one in overdue if one.arrived_s >= arrived_from_s]
        for outcome in reversed(self.kept):
            if outcome.ended_s < ended_from_s:
                break
            if outcome.arrived_s >= arrived_from_s:
                found.append(outcome.late_by)
        count = len(found)
        return Shares(
            count=count,
            good=found.count(None) / count if count else 1.0,
            late={
                role: found.count(role) / count if count else 0.0
                for role in (Role.PREFILL, Role.DECODE)
            },
        )
