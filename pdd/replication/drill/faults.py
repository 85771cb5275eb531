"""What happens in each round, drawn from the seed. Pure: `run` does it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Fault(StrEnum):
    KILL_LEADER = "kill_leader"
    STOP_LEADER = "stop_leader"
    KILL_ALL = "kill_all"
    KILL_LEADER_DURING_SNAPSHOT = "kill_leader_during_snapshot"
    KILL_LEADER_WITH_LAGGING_FOLLOWER = "kill_leader_with_lagging_follower"
    KILL_FOLLOWER = "kill_follower"
    KILL_TWO = "kill_two"
    STOP_FOLLOWER = "stop_follower"


FAILOVERS = frozenset(
    {
        Fault.KILL_LEADER,
        Fault.STOP_LEADER,
        Fault.KILL_LEADER_DURING_SNAPSHOT,
        Fault.KILL_LEADER_WITH_LAGGING_FOLLOWER,
    }
)
"""A majority stays up and has lost its leader: what these take until the next acknowledged write is
the failover time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    number: int
    fault: Fault
    load_s: float
    """Under load before the fault."""
    hold_s: float
    """From the fault (or the new leader) until everything runs again."""
    pick: int
    """Chooses among followers: an index, taken modulo their number."""
    has_soft_load: bool
    """Soft entries beside the writes."""


def plan_rounds(count: int, *, seed: int) -> Sequence[Round]:
    """Every fault in turn, so that each kind comes up as often as the others; a short drill has
    the leader's ones first. Soft load in every other round, beginning with one that has it, and
    the other way round when the faults come up again."""
    rng = random.Random(seed)  # noqa: S311 -- repeatable, guards nothing
    faults = list(Fault)
    return [
        Round(
            number=number,
            fault=faults[number % len(faults)],
            load_s=rng.uniform(0.5, 1.5),
            hold_s=rng.uniform(0.3, 1.0),
            pick=rng.randrange(1000),
            has_soft_load=(number + number // len(faults)) % 2 == 0,
        )
        for number in range(count)
    ]
