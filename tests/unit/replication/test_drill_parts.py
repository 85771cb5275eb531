"""The drill's plan and its verdict; the verdict must see each kind of broken promise."""

from __future__ import annotations

from pdd.replication.drill.faults import Fault, plan_rounds
from pdd.replication.drill.verdict import (
    lost_writes,
    misplaced_writes,
    terms_with_two_leaders,
)


def test_the_seed_decides_the_plan() -> None:
    assert plan_rounds(20, seed=3) == plan_rounds(20, seed=3)
    assert plan_rounds(20, seed=3) != plan_rounds(20, seed=4)


def test_twenty_rounds_have_every_fault_at_least_twice() -> None:
    faults = [round_.fault for round_ in plan_rounds(20, seed=1)]
    assert min(faults.count(fault) for fault in Fault) == 2


def test_every_fault_comes_up_with_soft_load_and_without() -> None:
    rounds = plan_rounds(2 * len(Fault), seed=1)
    for fault in Fault:
        loads = {one.has_soft_load for one in rounds if one.fault is fault}
        assert loads == {True, False}, fault


WRITTEN = {"k": [(1, True), (2, False), (3, True)]}


def test_a_state_that_kept_its_promises_passes() -> None:
    for value in ((1, 3), (1, 2, 3)):
        assert lost_writes(WRITTEN, {"k": value}) == []
        assert misplaced_writes(WRITTEN, {"k": value}) == []


def test_an_acknowledged_write_that_is_gone_is_found() -> None:
    assert lost_writes(WRITTEN, {"k": (1, 2)}) == ["write 3 on k was acknowledged and is gone"]
    assert len(lost_writes(WRITTEN, {})) == 2


def test_a_write_that_took_effect_twice_or_out_of_order_or_from_nowhere_is_found() -> None:
    for value in ((1, 2, 2, 3), (3, 1), (1, 3, 4)):
        assert len(misplaced_writes(WRITTEN, {"k": value})) == 1


def test_two_leaders_in_one_term_are_found() -> None:
    assert terms_with_two_leaders({1: {"a"}, 2: {"b"}}) == []
    assert terms_with_two_leaders({1: {"a"}, 2: {"c", "b"}}) == ["term 2 had leaders ['b', 'c']"]
