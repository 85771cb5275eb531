"""Outcomes of proposals, and the Applier that makes them known."""

from __future__ import annotations

import msgpack
import pytest

from pdd.raft.core import Proposed
from pdd.raft.machine import Applier
from pdd.raft.proposals import Outcome, OutcomeKind, ProposalTracker
from pdd.raft.values import Entry, EntryKind, Snapshot, SnapshotMeta
from tests.simulation.raft.machine import ListMachine, encode_add


def tracker(*tokens: str) -> ProposalTracker[str]:
    one: ProposalTracker[str] = ProposalTracker()
    for index, token in enumerate(tokens, start=1):
        one.track(Proposed(index=index, term=3), token)
    return one


def applied(one: ProposalTracker[str], index: int, term: int) -> Outcome[str] | None:
    return one.on_applied(Entry(index=index, term=term, kind=EntryKind.NOOP, data=b""), b"r")


def test_the_own_entry_applied_is_ok() -> None:
    outcome = applied(tracker("a"), 1, 3)
    assert outcome == Outcome(token="a", kind=OutcomeKind.OK, result=b"r")


def test_another_entry_at_its_index_is_rejected_for_good() -> None:
    outcome = applied(tracker("a"), 1, 4)
    assert outcome == Outcome(token="a", kind=OutcomeKind.REJECTED)


def test_a_lost_leadership_makes_the_rest_unknown_never_failed() -> None:
    one = tracker("a", "b", "c")
    applied(one, 1, 3)
    outcomes = one.on_leadership_lost()
    assert [(o.token, o.kind) for o in outcomes] == [
        ("b", OutcomeKind.UNKNOWN),
        ("c", OutcomeKind.UNKNOWN),
    ]
    assert len(one) == 0
    assert applied(one, 2, 3) is None


def entry(index: int, kind: EntryKind = EntryKind.COMMAND) -> Entry:
    data = encode_add("k", index) if kind is EntryKind.COMMAND else b""
    return Entry(index=index, term=1, kind=kind, data=data)


def test_the_applier_skips_no_ops_and_reports_hashes_at_the_interval() -> None:
    machine = ListMachine()
    applier = Applier(machine=machine, hash_interval=2)
    results, hashes = applier.apply([entry(1, EntryKind.NOOP), entry(2), entry(3)])
    assert [result and msgpack.unpackb(result) for result in results] == [b"", [2], [2, 3]]
    assert [index for index, _ in hashes] == [2]
    assert machine.get("k") == (2, 3)
    assert applier.snapshot().meta == SnapshotMeta(index=3, term=1)


def test_the_applier_takes_no_entry_twice_and_none_out_of_order() -> None:
    applier = Applier(machine=ListMachine(), hash_interval=10)
    applier.apply([entry(1)])
    for index in (1, 3):
        with pytest.raises(AssertionError, match="after 1"):
            applier.apply([entry(index)])


def test_a_restored_applier_goes_on_after_the_snapshot() -> None:
    first = Applier(machine=ListMachine(), hash_interval=10)
    first.apply([entry(1), entry(2)])
    second = Applier(machine=ListMachine(), hash_interval=10)
    snapshot = first.snapshot()
    assert isinstance(snapshot, Snapshot)
    second.restore(snapshot)
    second.apply([entry(3)])
    assert second.index == 3
    assert isinstance(second.machine, ListMachine)
    assert second.machine.get("k") == (1, 2, 3)
