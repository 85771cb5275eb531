from collections import Counter

from pdd.drill import run
from pdd.drill.faults import FREEZE_S, Fault, plan_rounds


def test_a_seed_fixes_every_round() -> None:
    assert plan_rounds(20, seed=7) == plan_rounds(20, seed=7)
    assert plan_rounds(20, seed=7) != plan_rounds(20, seed=8)


def test_every_kind_of_fault_comes_as_often_as_the_others() -> None:
    counts = Counter(round_.fault for round_ in plan_rounds(3 * len(Fault), seed=1))
    assert counts == dict.fromkeys(Fault, 3)


def test_a_frozen_scheduler_stays_so_for_longer_than_nodes_wait() -> None:
    holds_s = {r.fault: r.hold_s for r in plan_rounds(len(Fault), seed=1)}
    assert holds_s.pop(Fault.FREEZE_LEADER) == FREEZE_S > 10.0
    assert max(holds_s.values()) < 10.0


def test_a_round_has_as_long_as_all_its_parts_together() -> None:
    parts_s = (
        run.LEADER_TIMEOUT_S + run.BUSY_TIMEOUT_S + run.MEND_TIMEOUT_S,
        run.LEADER_TIMEOUT_S + run.FINISH_TIMEOUT_S + run.BLOCKS_TIMEOUT_S,
        max(r.load_s + r.hold_s for r in plan_rounds(200, seed=3)),
    )
    assert sum(parts_s) < run.ROUND_TIMEOUT_S
