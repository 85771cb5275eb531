"""What happens in each round, drawn from the seed. Pure: ``run`` does it."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Fault(StrEnum):
    KILL_LEADER = "kill_leader"
    STOP_LEADER = "stop_leader"
    """The daemon stands still, its replica of the log does not."""
    CUT_OFF_LEADER = "cut_off_leader"
    """From the other schedulers; clients and nodes still reach it."""
    KILL_LEADER_AND_NODE = "kill_leader_and_node"
    KILL_FOLLOWER = "kill_follower"
    RESTART_LEADER = "restart_leader"
    FREEZE_LEADER = "freeze_leader"
    """Daemon and replica, as on a host that stands still, for longer than nodes wait for it."""


CHANGES_LEADER = frozenset(Fault) - {Fault.KILL_FOLLOWER}
FREEZE_S = 12.0
"""Above the 10 s after which a node gives up a scheduler that says nothing."""
LOAD_S_MAX = 1.5
HOLD_S_MAX = max(FREEZE_S, 4.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    number: int
    fault: Fault
    load_s: float
    """Under load before the fault."""
    hold_s: float
    """From the fault until what was broken is mended."""
    pick: int
    """Chooses among followers and among nodes: an index, taken modulo their number."""


def plan_rounds(count: int, *, seed: int) -> Sequence[Round]:
    """Every fault in turn, so that each kind comes up as often as the others; the seed draws their
    order."""
    rng = random.Random(seed)  # noqa: S311 -- repeatable, guards nothing
    faults = list(Fault)
    rng.shuffle(faults)
    rounds = []
    for number in range(count):
        fault = faults[number % len(faults)]
        held_s = rng.uniform(2.5, 4.5)
        rounds.append(
            Round(
                number=number,
                fault=fault,
                load_s=rng.uniform(0.2, LOAD_S_MAX),
                hold_s=FREEZE_S if fault is Fault.FREEZE_LEADER else held_s,
                pick=rng.randrange(1000),
            )
        )
    return rounds
