"""The machine at its edges; random histories are in tests/property/test_directory_machine.py."""

import pytest

from pdd.directory.entries import (
    BlockDelta,
    DirectoryEntry,
    EntryError,
    NodeJoined,
    NodeLeft,
    Operation,
    SnapshotPart,
)
from pdd.directory.keys import BlockKey
from pdd.directory.machine import DirectoryMachine, read_result
from pdd.directory.status import Status

KEYS = [BlockKey(bytes([number]) * 16) for number in range(1, 41)]


def apply(machine: DirectoryMachine, *operations: Operation) -> list[Status]:
    entry = DirectoryEntry(operations=operations)
    return read_result(machine.apply(1, entry.encode()))


def joined(node: str, *, epoch: int = 1, uuid: str = "u", blocks: int = 1000) -> NodeJoined:
    return NodeJoined(node=node, uuid=uuid, boot_epoch=epoch, block_count=blocks)


def stored(node: str, sequence: int, keys: list[BlockKey], *, epoch: int = 1) -> BlockDelta:
    return BlockDelta(
        node=node,
        boot_epoch=epoch,
        first_sequence=sequence,
        last_sequence=sequence,
        stored=b"".join(keys),
    )


def part(node: str, index: int, count: int, keys: list[BlockKey], *, as_of: int) -> SnapshotPart:
    return SnapshotPart(
        node=node,
        boot_epoch=1,
        as_of_sequence=as_of,
        part_index=index,
        part_count=count,
        keys=b"".join(keys),
    )


def make_machine(**changes: bool | int) -> DirectoryMachine:
    machine = DirectoryMachine(**{"max_key_count": 1000, **changes})  # type: ignore[arg-type]
    apply(machine, joined("a"), joined("b"))
    return machine


def prefixes(machine: DirectoryMachine, keys: list[BlockKey]) -> dict[str, int]:
    return machine.longest_prefixes(b"".join(keys)).by_node


def test_a_hole_ends_the_prefix_of_the_node_that_has_it_only() -> None:
    machine = make_machine()
    apply(machine, stored("a", 1, KEYS[:8]), stored("b", 1, KEYS[:3] + KEYS[4:10]))
    assert prefixes(machine, KEYS[:12]) == {"a": 8, "b": 3}
    assert machine.longest_prefixes(b"".join(KEYS[:12])).block_count == 8
    assert prefixes(machine, KEYS[4:12]) == {"a": 4, "b": 6}


def test_an_empty_chain_has_no_prefix() -> None:
    assert make_machine().longest_prefixes(b"").by_node == {}


def test_a_restarted_node_loses_its_old_entries_in_the_entry_that_says_so() -> None:
    machine = make_machine()
    apply(machine, stored("a", 1, KEYS[:8]))
    statuses = apply(machine, joined("a", epoch=2), stored("a", 2, KEYS[:9], epoch=1))
    assert statuses == [Status.APPLIED, Status.STALE]
    assert prefixes(machine, KEYS[:8]) == {}
    assert apply(machine, stored("a", 1, KEYS[:2], epoch=2)) == [Status.APPLIED]
    assert prefixes(machine, KEYS[:8]) == {"a": 2}


def test_another_machine_under_a_known_name_starts_empty_whatever_its_epoch() -> None:
    machine = make_machine()
    apply(machine, joined("a", epoch=7), stored("a", 1, KEYS[:8], epoch=7))
    assert apply(machine, joined("a", epoch=1, uuid="v")) == [Status.APPLIED]
    assert prefixes(machine, KEYS[:8]) == {}


def test_an_older_life_cannot_come_back() -> None:
    machine = make_machine()
    apply(machine, joined("a", epoch=2))
    assert apply(machine, joined("a", epoch=1)) == [Status.STALE]
    assert apply(machine, NodeLeft(node="a", boot_epoch=1)) == [Status.STALE]


def test_a_delta_of_a_life_that_has_not_joined_is_unknown() -> None:
    machine = make_machine()
    assert apply(machine, stored("a", 1, KEYS, epoch=2)) == [Status.UNKNOWN]
    assert apply(machine, stored("z", 1, KEYS)) == [Status.UNKNOWN]


def test_a_gap_asks_for_a_snapshot_until_a_whole_one_came() -> None:
    machine = make_machine()
    assert apply(machine, stored("a", 3, KEYS[:2])) == [Status.GAP]
    assert prefixes(machine, KEYS[:3]) == {"a": 2}
    assert machine.nodes_wanting_snapshot() == ["a"]
    apply(machine, part("a", 0, 2, KEYS[:4], as_of=5))
    assert machine.nodes_wanting_snapshot() == []  # it is on its way
    assert prefixes(machine, KEYS[:9]) == {"a": 2}  # and counts when it is whole
    apply(machine, part("a", 1, 2, KEYS[4:8], as_of=5))
    assert prefixes(machine, KEYS[:9]) == {"a": 8}
    assert machine.next_sequence("a") == 6
    assert apply(machine, stored("a", 6, KEYS[8:9])) == [Status.APPLIED]


def test_a_snapshot_older_than_what_is_known_is_stale() -> None:
    machine = make_machine()
    apply(machine, stored("a", 1, KEYS[:1]), stored("a", 2, KEYS[1:2]))
    assert apply(machine, part("a", 0, 1, [], as_of=1)) == [Status.STALE]
    assert prefixes(machine, KEYS) == {"a": 2}


def test_a_delta_amid_a_snapshot_drops_the_snapshot_and_keeps_the_delta() -> None:
    machine = make_machine()
    apply(machine, part("a", 0, 2, KEYS[:4], as_of=0), stored("a", 1, KEYS[:1]))
    assert apply(machine, part("a", 1, 2, KEYS[4:8], as_of=0)) == [Status.STALE]
    assert machine.nodes_wanting_snapshot() == ["a"]
    assert prefixes(machine, KEYS) == {"a": 1}


def test_a_cleared_cache_needs_no_snapshot_for_what_was_missed_before() -> None:
    machine = make_machine()
    apply(machine, stored("a", 5, KEYS[:4]))
    cleared = BlockDelta(
        node="a", boot_epoch=1, first_sequence=9, last_sequence=9, is_cleared=True, stored=KEYS[0]
    )
    assert apply(machine, cleared) == [Status.APPLIED]
    assert machine.nodes_wanting_snapshot() == []
    assert prefixes(machine, KEYS) == {"a": 1}


def test_a_node_that_holds_more_than_its_pool_is_asked_for_a_snapshot() -> None:
    machine = make_machine()
    apply(machine, joined("c", blocks=3), stored("c", 1, KEYS[:3]))
    assert machine.nodes_wanting_snapshot() == []
    apply(machine, stored("c", 2, KEYS[3:4]))
    assert machine.nodes_wanting_snapshot() == ["c"]


def test_blocks_beyond_the_bound_are_counted_and_leave_heads_of_chains_alone() -> None:
    machine = DirectoryMachine(max_key_count=10)
    apply(machine, joined("a"), joined("b"))
    apply(machine, stored("a", 1, KEYS[:16]), stored("b", 1, KEYS[:12]))
    assert prefixes(machine, KEYS) == {"a": 10, "b": 10}
    assert (machine.refused_count("a"), machine.refused_count("b")) == (6, 2)
    assert machine.unrecorded_count == 8
    assert machine.key_count == 10
    evicted = BlockDelta(
        node="a", boot_epoch=1, first_sequence=2, last_sequence=2, removed=b"".join(KEYS)
    )
    apply(machine, evicted, stored("b", 2, KEYS[10:12]))
    assert prefixes(machine, KEYS) == {"b": 10}
    assert machine.held_count("a") == 0


def test_more_lives_in_one_entry_than_there_are_slots_find_room() -> None:
    machine = make_machine()
    apply(machine, stored("a", 1, KEYS[:4]))
    lives = [joined("a", epoch=epoch) for epoch in range(2, 33_000)]
    apply(machine, *lives, stored("a", 1, KEYS[:2], epoch=32_999), stored("b", 1, KEYS[:3]))
    assert prefixes(machine, KEYS) == {"a": 2, "b": 3}


def test_many_nodes_may_store_one_prefix_in_one_entry() -> None:
    machine = make_machine()
    names = [f"n{number:03}" for number in range(200)]
    apply(machine, *(joined(name) for name in names))
    apply(machine, *(stored(name, 1, KEYS[:5]) for name in names))
    assert prefixes(machine, KEYS) == dict.fromkeys(names, 5)
    apply(machine, *(NodeLeft(node=name, boot_epoch=1) for name in names[1:]))
    assert prefixes(machine, KEYS) == {names[0]: 5}


def test_an_entry_that_cannot_be_read_changes_nothing_and_says_why() -> None:
    machine = make_machine()
    before = machine.state_hash()
    with pytest.raises(EntryError, match="entry 7: no msgpack"):
        read_result(machine.apply(7, b"\xc1"))
    assert machine.state_hash() == before


def test_a_snapshot_amid_a_node_snapshot_carries_on_alike() -> None:
    machine = make_machine()
    apply(machine, stored("a", 1, KEYS[:9]), part("b", 0, 2, KEYS[:4], as_of=3))
    copy = DirectoryMachine(max_key_count=1000)
    copy.restore(machine.snapshot())
    for one in (machine, copy):
        apply(one, part("b", 1, 2, KEYS[4:6], as_of=3))
        assert prefixes(one, KEYS) == {"a": 9, "b": 6}
    assert copy.state_hash() == machine.state_hash()
    assert copy.snapshot() == machine.snapshot()


def test_a_replica_restored_without_blocks_wants_them_again_and_hashes_alike() -> None:
    machine = make_machine(has_blocks_in_snapshot=False)
    apply(machine, stored("a", 1, KEYS[:9]))
    copy = make_machine(has_blocks_in_snapshot=False)
    copy.restore(machine.snapshot())
    assert copy.state_hash() == machine.state_hash()
    assert prefixes(copy, KEYS) == {}
    assert copy.nodes_wanting_snapshot() == ["a", "b"]
    for one in (machine, copy):
        assert apply(one, part("a", 0, 1, KEYS[:9], as_of=1)) == [Status.APPLIED]
    assert prefixes(copy, KEYS) == {"a": 9}
    assert copy.state_hash() == machine.state_hash()
    assert copy.nodes_wanting_snapshot() == ["b"]


def test_snapshots_of_another_kind_or_version_are_refused_and_change_nothing() -> None:
    machine = make_machine()
    before = machine.state_hash()
    with pytest.raises(EntryError, match="has_blocks_in_snapshot=False, this replica has True"):
        machine.restore(make_machine(has_blocks_in_snapshot=False).snapshot())
    with pytest.raises(EntryError, match="version 9, this pdd reads 1"):
        machine.restore(b"\x94\x09\xc3\xc4\x00\x90")
    with pytest.raises(EntryError, match="no directory snapshot"):
        machine.restore(b"\xc1")
    assert machine.state_hash() == before
