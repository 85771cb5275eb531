"""The checker itself: it must accept what a single copy could do, and nothing else."""

from __future__ import annotations

import itertools
import random

import pytest

from pdd.replication.linearizability import (
    NEVER,
    Operation,
    Value,
    apply_to_model,
    find_violation,
    is_linearizable,
)


def op(
    kind: str,
    called_at: int,
    answered_at: int = NEVER,
    *,
    argument: int = 0,
    result: Value | None = None,
    key: str = "k",
) -> Operation:
    return Operation(
        client="c",
        key=key,
        kind=kind,
        argument=argument,
        called_at=called_at,
        answered_at=answered_at,
        result=result,
    )


GOOD = {
    "nothing": [],
    "one after the other": [
        op("put", 0, 1, argument=1, result=(1,)),
        op("add", 2, 3, argument=2, result=(1, 2)),
        op("get", 4, 5, result=(1, 2)),
    ],
    "concurrent writes in either order": [
        op("add", 0, 10, argument=1, result=(2, 1)),
        op("add", 0, 10, argument=2, result=(2,)),
    ],
    "a read concurrent with a write sees either": [
        op("put", 0, 10, argument=1, result=(1,)),
        op("get", 1, 2, result=()),
        op("get", 3, 4, result=(1,)),
    ],
    "an unknown write that did happen, late": [
        op("put", 0, argument=1),
        op("get", 5, 6, result=()),
        op("get", 7, 8, result=(1,)),
    ],
    "an unknown write that never happened": [
        op("put", 0, argument=1),
        op("get", 5, 6, result=()),
    ],
    "an unknown read": [op("get", 0), op("put", 1, 2, argument=1, result=(1,))],
}
BAD = {
    "stale read": [
        op("put", 0, 1, argument=1, result=(1,)),
        op("get", 2, 3, result=()),
    ],
    "lost write": [
        op("put", 0, 1, argument=1, result=(1,)),
        op("add", 2, 3, argument=2, result=(2,)),
    ],
    "applied twice": [
        op("add", 0, 1, argument=1, result=(1,)),
        op("get", 2, 3, result=(1, 1)),
    ],
    "read of what nobody wrote": [op("get", 0, 1, result=(9,))],
    "a value goes back": [
        op("put", 0, 10, argument=1, result=(1,)),
        op("get", 1, 2, result=(1,)),
        op("get", 3, 4, result=()),
    ],
    "two orders at once": [
        op("add", 0, 10, argument=1, result=(1,)),
        op("add", 0, 10, argument=2, result=(2,)),
    ],
    "a write seen before it was called": [
        op("get", 0, 1, result=(1,)),
        op("put", 2, 3, argument=1, result=(1,)),
    ],
    "an unknown write that comes and goes": [
        op("put", 0, argument=1),
        op("get", 5, 6, result=(1,)),
        op("get", 7, 8, result=()),
    ],
    "acknowledged write undone by a failover": [
        op("put", 0, 1, argument=1, result=(1,)),
        op("put", 2, 3, argument=2, result=(2,)),
        op("get", 4, 5, result=(1,)),
    ],
}


@pytest.mark.parametrize("name", GOOD)
def test_a_good_history_is_accepted(name: str) -> None:
    assert find_violation(GOOD[name]) is None


@pytest.mark.parametrize("name", BAD)
def test_a_bad_history_is_refused(name: str) -> None:
    violation = find_violation(BAD[name])
    assert violation is not None
    assert "'k' is not linearizable" in violation


def test_keys_are_independent() -> None:
    bad = BAD["stale read"]
    good = [op("put", 0, 1, argument=7, result=(7,), key="a")]
    assert find_violation(good) is None
    assert find_violation(good + bad) is not None


def brute_force(operations: list[Operation]) -> bool:
    """All subsets of the unknown, in all orders."""
    known = [o for o in operations if o.is_known]
    unknown = [o for o in operations if not o.is_known]
    for count in range(len(unknown) + 1):
        for chosen in itertools.combinations(unknown, count):
            for order in itertools.permutations([*known, *chosen]):
                if _respects_time(order) and _respects_model(order):
                    return True
    return False


def _respects_time(order: tuple[Operation, ...]) -> bool:
    return all(
        not later.answered_at < earlier.called_at
        for n, earlier in enumerate(order)
        for later in order[n + 1 :]
    )


def _respects_model(order: tuple[Operation, ...]) -> bool:
    state: Value = ()
    for operation in order:
        state = apply_to_model(state, operation)
        if operation.result is not None and operation.result != state:
            return False
    return True


def random_history(rng: random.Random) -> list[Operation]:
    """Often linearizable, then spoilt a little."""
    history = []
    state: Value = ()
    time_ms = 0
    for argument in range(1, rng.randint(2, 6)):
        kind = rng.choice(("put", "add", "get"))
        time_ms += rng.randint(1, 3)
        operation = op(kind, 0, argument=argument)
        state = apply_to_model(state, operation)
        called_at = max(0, time_ms - rng.randint(0, 5))
        unknown = rng.random() < 0.2
        result = state if rng.random() < 0.9 else state[:-1]
        history.append(
            op(
                kind,
                called_at,
                NEVER if unknown else time_ms + rng.randint(0, 5),
                argument=argument,
                result=None if unknown else result,
            )
        )
    return history


def test_it_agrees_with_trying_every_order() -> None:
    rng = random.Random(3)
    verdicts = set()
    for number in range(1_500):
        history = random_history(rng)
        verdict = brute_force(history)
        verdicts.add(verdict)
        assert is_linearizable(history) is verdict, f"history {number}: {history}"
        assert (find_violation(history) is None) is verdict, f"history {number}: {history}"
    assert verdicts == {True, False}
