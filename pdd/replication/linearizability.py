"""Is a history of concurrent operations one that a single copy could have produced?

The search of Wing and Gong with Lowe's memory of visited configurations: take the operations that
could come first (invoked before the earliest answer still missing), try each on the model, go on;
a pair (operations done, state) seen before is not tried again. One key at a time: linearizability
is local (Herlihy and Wing 1990).

An operation with an unknown outcome may have happened at any time after its call, or never.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

Value = tuple[int, ...]
"""A list of elements, each unique in the whole history."""

NEVER = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    client: str
    key: str
    kind: str
    """put, add or get."""
    argument: int = 0
    called_at: int
    """Of one clock, in any unit, the same in the whole history."""
    answered_at: int = NEVER
    result: Value | None = None
    """The list after a put or add, or as read; None while unknown."""

    @property
    def is_known(self) -> bool:
        return self.answered_at != NEVER


def apply_to_model(state: Value, operation: Operation) -> Value:
    match operation.kind:
        case "put":
            return (operation.argument,)
        case "add":
            return (*state, operation.argument)
        case _:
            return state


def find_violation(history: Sequence[Operation]) -> str | None:
    """None when every key's history is linearizable, else the first bad key and its operations."""
    by_key = sorted(history, key=lambda o: (o.key, o.called_at, o.client))
    for key, operations in groupby(by_key, key=lambda o: o.key):
        relevant = _without_unseen(list(operations))
        if not is_linearizable(relevant):
            lines = "\n".join(f"  {operation}" for operation in relevant)
            return f"history of {key!r} is not linearizable:\n{lines}"
    return None


def _without_unseen(operations: list[Operation]) -> list[Operation]:
    """Unknown reads say nothing. An unknown write whose element no answer shows might as well not
    have happened: elements are unique, and any answer between it and the next put would show it."""
    seen = {element for o in operations if o.result is not None for element in o.result}
    return [o for o in operations if o.is_known or (o.kind != "get" and o.argument in seen)]


def is_linearizable(operations: Sequence[Operation]) -> bool:
    """``operations`` of one key. Starts from the empty list."""
    pending = sorted(operations, key=lambda o: o.called_at)
    wanted = sum(1 << n for n, operation in enumerate(pending) if operation.is_known)
    visited: set[tuple[int, Value]] = set()
    stack: list[tuple[int, Value]] = [(0, ())]
    while stack:
        done, state = stack.pop()
        if done & wanted == wanted:
            return True
        if (done, state) in visited:
            continue
        visited.add((done, state))
        earliest_answer = min(
            operation.answered_at for n, operation in enumerate(pending) if not done >> n & 1
        )
        for n, operation in enumerate(pending):
            if operation.called_at > earliest_answer:
                break
            if done >> n & 1:
                continue
            after = apply_to_model(state, operation)
            if operation.result is None or operation.result == after:
                stack.append((done | 1 << n, after))
    return False
