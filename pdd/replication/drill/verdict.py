"""What must hold after a drill. Pure: everything comes in as values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pdd.replication.kv_machine import Value

Written = Sequence[tuple[int, bool]]
"""(number, acknowledged), in the order the one client of this key sent them."""


def lost_writes(written: Mapping[str, Written], found: Mapping[str, Value]) -> list[str]:
    """Acknowledged writes that are not in the final state, each with its key."""
    return [
        f"write {number} on {key} was acknowledged and is gone"
        for key, writes in written.items()
        for number, is_acknowledged in writes
        if is_acknowledged and number not in found.get(key, ())
    ]


def misplaced_writes(written: Mapping[str, Written], found: Mapping[str, Value]) -> list[str]:
    """Keys whose list is not what their client sent, in that order, each at most once."""
    faults = []
    for key, writes in written.items():
        sent = [number for number, _ in writes]
        value = found.get(key, ())
        expected = [number for number in sent if number in value]
        if list(value) != expected:
            faults.append(f"{key} holds {list(value)}, its client sent {sent}")
    return faults


def terms_with_two_leaders(leaders: Mapping[int, set[str]]) -> list[str]:
    return [
        f"term {term} had leaders {sorted(names)}"
        for term, names in sorted(leaders.items())
        if len(names) > 1
    ]
