"""A count of all blocks: what it counts, and which fault it finds."""

from typing import Any

from pdd.core.blocks import BlockCensus, take_census


def census(**fields: Any) -> BlockCensus:
    """Of blocks 1 to 10; 1, 2 and 3 are free, 4 and 5 cached, unless said otherwise."""
    places: dict[str, Any] = {
        "free": [1, 2, 3],
        "cached": [4, 5],
        "active": [6, 7],
        "leased": [8, 9],
        "quarantined": [10],
    }
    return take_census(usable=range(1, 11), **(places | fields))


def states(one: BlockCensus) -> tuple[int, int, int, int, int]:
    return one.free, one.cached, one.active, one.leased, one.quarantined


def test_every_block_is_somewhere_once() -> None:
    counted = census()
    assert states(counted) == (3, 2, 2, 2, 1)
    assert sum(states(counted)) == counted.total == 10
    assert counted.fault == ""


def test_a_block_that_is_held_several_times_counts_for_the_first_of_its_holds() -> None:
    counted = census(active=[6, 7, 6, 8], leased=[8, 9, 7], quarantined=[10, 9])
    assert states(counted) == (3, 2, 3, 1, 1)
    assert counted.fault == ""


def test_a_block_that_nobody_names_is_lost() -> None:
    counted = census(active=[6])
    assert (counted.lost_count, counted.lost_ids) == (1, [7])
    assert counted.fault == "1 of 10 KV blocks are lost, in use by nobody and not free: 7"


def test_a_block_in_two_places_is_doubled_and_not_two_blocks() -> None:
    for places in (
        {"free": [1, 2, 3, 6]},  # free and in use
        {"cached": [4, 5, 10]},  # cached, and a transfer may write to it
        {"free": [1, 2, 3, 3]},  # twice in the list
        {"cached": [4, 5, 1]},  # free and cached
    ):
        counted = census(**places)
        assert counted.doubled_count == 1, places
        assert "in two states at once" in counted.fault
        assert sum(states(counted)) != counted.total, "no state is what the others leave"


def test_many_are_counted_and_few_are_named() -> None:
    counted = take_census(
        usable=range(1000), free=(), cached=(), active=(), leased=(), quarantined=()
    )
    assert counted.lost_count == 1000
    assert counted.fault.endswith(": 0, 1, 2, 3, 4, 5, 6, 7, ...")
