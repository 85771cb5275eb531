"""The guard: what it takes to undo a switch. Requests of a second, before and after it."""

from dataclasses import dataclass

import pytest

from pdd.core.identity import NodeName, Role
from pdd.scheduler.roles.goodput import Goodput, Outcome
from pdd.scheduler.roles.guard import Guard
from pdd.scheduler.roles.settings import RoleSettings

PREFILL, DECODE = Role.PREFILL, Role.DECODE
NODE = NodeName("prefill-1")
SETTINGS = RoleSettings(
    ttft_s=1.0, tpot_s=0.1, guard_window_s=10.0, guard_loss_fraction=0.1, guard_count_min=20
)


def end(goodput: Goodput, count: int, *, at_s: float, late_by: Role | None = None) -> None:
    for _ in range(count):
        goodput.observe(
            arrived_s=at_s - 0.5,
            now_s=at_s,
            queue_s=0.0,
            prefill_s=2.0 if late_by is PREFILL else 0.2,
            tpot_s=0.2 if late_by is DECODE else 0.05,
            queue_is_prefill=False,
        )


@dataclass(frozen=True, kw_only=True)
class Mix:
    """Of 100 requests."""

    late_prefill: int = 0
    late_decode: int = 0

    def end(self, goodput: Goodput, *, at_s: float) -> None:
        end(goodput, self.late_prefill, at_s=at_s, late_by=PREFILL)
        end(goodput, self.late_decode, at_s=at_s, late_by=DECODE)
        end(goodput, 100 - self.late_prefill - self.late_decode, at_s=at_s)


def verdict(before: Mix, after: Mix) -> str | None:
    """Of a move from prefill to decode."""
    goodput, guard = Goodput(settings=SETTINGS), Guard(settings=SETTINGS)
    Mix(late_prefill=100).end(goodput, at_s=80.0)  # too long ago to count
    before.end(goodput, at_s=95.0)
    guard.begins(
        source=PREFILL, target=DECODE, nodes=[NODE], goodput=goodput, overdue=[], now_s=100.0
    )
    Mix(late_decode=100).end(goodput, at_s=102.0)  # in between, counts for nothing
    assert guard.verdict(goodput, overdue=[], now_s=103.0) is None
    guard.ended(NODE, is_done=True, now_s=105.0)
    end(goodput, 50, at_s=105.2, late_by=PREFILL)  # arrived before it was over
    after.end(goodput, at_s=110.0)
    assert guard.verdict(goodput, overdue=[], now_s=114.9) is None
    return guard.verdict(goodput, overdue=[], now_s=115.0)


@pytest.mark.parametrize(
    ("before", "after", "is_undone"),
    [
        (Mix(late_decode=60), Mix(), False),
        (Mix(late_decode=60), Mix(late_prefill=10), False),
        # what it took from prefill made prefill late
        (Mix(), Mix(late_prefill=30), True),
        (Mix(late_decode=20), Mix(late_prefill=60), True),
        # more are late, but by the pool that got a node: the load has grown
        (Mix(late_decode=20), Mix(late_decode=70), False),
        # both are late more often, the pool that got a node much more so
        (Mix(), Mix(late_prefill=15, late_decode=50), False),
        (Mix(), Mix(late_prefill=50, late_decode=15), True),
        # prefill is late more often, and yet more requests are good
        (Mix(late_decode=80), Mix(late_prefill=40), False),
        (Mix(), Mix(late_prefill=9), False),
    ],
)
def test_a_move_is_undone_when_the_pool_that_gave_makes_more_requests_late(
    before: Mix, after: Mix, is_undone: bool
) -> None:
    why = verdict(before, after)
    assert why is not None
    assert bool(why) is is_undone, why
    if is_undone:
        assert "good requests went from" in why


def test_too_few_requests_say_nothing_and_do_not_hold_it_up_for_ever() -> None:
    goodput, guard = Goodput(settings=SETTINGS), Guard(settings=SETTINGS)
    Mix().end(goodput, at_s=95.0)
    guard.begins(
        source=PREFILL, target=DECODE, nodes=[NODE], goodput=goodput, overdue=[], now_s=100.0
    )
    guard.ended(NODE, is_done=True, now_s=100.0)
    end(goodput, 19, at_s=105.0, late_by=PREFILL)
    assert guard.verdict(goodput, overdue=[], now_s=119.0) is None
    assert guard.verdict(goodput, overdue=[], now_s=120.0) == ""


def test_a_pool_that_ends_nothing_is_not_overlooked() -> None:
    """One prefill node is left and chokes: what has no first token yet is late by it."""
    goodput, guard = Goodput(settings=SETTINGS), Guard(settings=SETTINGS)
    Mix().end(goodput, at_s=95.0)
    guard.begins(
        source=PREFILL, target=DECODE, nodes=[NODE], goodput=goodput, overdue=[], now_s=100.0
    )
    guard.ended(NODE, is_done=True, now_s=100.0)
    overdue = [Outcome(arrived_s=101.0, ended_s=110.0, late_by=PREFILL)] * 20
    why = guard.verdict(goodput, overdue=overdue, now_s=110.0)
    assert why is not None
    assert "late by prefill from 0% to 100%" in why


def test_a_move_that_was_abandoned_needs_no_verdict() -> None:
    guard = Guard(settings=SETTINGS)
    goodput = Goodput(settings=SETTINGS)
    guard.begins(
        source=PREFILL, target=DECODE, nodes=[NODE], goodput=goodput, overdue=[], now_s=0.0
    )
    guard.ended(NODE, is_done=False, now_s=1.0)
    assert guard.move is None
    assert guard.verdict(goodput, overdue=[], now_s=2.0) == ""


@pytest.mark.parametrize(
    ("queue_s", "prefill_s", "tpot_s", "queue_is_prefill", "late_by"),
    [
        (0.1, 0.2, 0.05, False, None),
        (0.1, 0.2, None, False, None),
        (0.1, 1.2, 0.05, False, PREFILL),
        (1.2, 0.2, 0.05, False, DECODE),
        (1.2, 0.2, 0.05, True, PREFILL),
        (0.1, 0.2, 0.15, False, DECODE),
        (0.1, 1.2, 0.15, False, PREFILL),
    ],
)
def test_a_late_request_is_late_by_one_duty(
    queue_s: float,
    prefill_s: float,
    tpot_s: float | None,
    queue_is_prefill: bool,
    late_by: Role | None,
) -> None:
    goodput = Goodput(settings=SETTINGS)
    goodput.observe(
        arrived_s=0.0,
        now_s=9.0,
        queue_s=queue_s,
        prefill_s=prefill_s,
        tpot_s=tpot_s,
        queue_is_prefill=queue_is_prefill,
    )
    assert goodput.kept[0].late_by is late_by
