"""Block states of the synthetic engine's pool."""

import pytest

from pdd.engine.synthetic.ledger import BlockLedger, Hold


def ledger_of(usable: int) -> BlockLedger:
    return BlockLedger(block_count=usable + 1)


def counts(ledger: BlockLedger) -> tuple[int, int, int, int, int]:
    now = ledger.counts()
    return (now.free, now.cached, now.active, now.leased, now.quarantined)


def test_block_zero_is_never_handed_out():
    ledger = ledger_of(5)
    assert sorted(ledger.take(5, Hold.ACTIVE) or []) == [1, 2, 3, 4, 5]
    assert ledger.take(1, Hold.ACTIVE) is None


def test_taking_more_than_there_is_changes_nothing():
    ledger = ledger_of(3)
    assert ledger.take(4, Hold.LEASED) is None
    assert counts(ledger) == (3, 0, 0, 0, 0)


def test_a_block_goes_through_all_states_and_every_state_is_counted():
    ledger = ledger_of(1)
    (block,) = ledger.take(1, Hold.LEASED) or []
    assert counts(ledger) == (0, 0, 0, 1, 0)
    ledger.change([block], Hold.LEASED, Hold.QUARANTINED)
    assert counts(ledger) == (0, 0, 0, 0, 1)
    ledger.change([block], Hold.QUARANTINED, Hold.ACTIVE)
    assert counts(ledger) == (0, 0, 1, 0, 0)
    ledger.remember(block, b"h")
    ledger.release([block], Hold.ACTIVE)
    assert counts(ledger) == (0, 1, 0, 0, 0)
    ledger.take(1, Hold.ACTIVE)
    ledger.release([block], Hold.ACTIVE)
    assert counts(ledger) == (1, 0, 0, 0, 0), "eviction has made it forget its hash"
    assert ledger.find([b"h"]) == []


def test_a_shared_block_is_active_as_long_as_any_sequence_uses_it():
    ledger = ledger_of(2)
    blocks = ledger.take(2, Hold.ACTIVE) or []
    ledger.hold(blocks, Hold.LEASED)
    assert counts(ledger) == (0, 0, 2, 0, 0)
    ledger.release(blocks, Hold.ACTIVE)
    assert counts(ledger) == (0, 0, 0, 2, 0)
    ledger.check({Hold.LEASED: [blocks]})


def test_the_least_recently_used_block_is_evicted_first_and_the_end_of_a_prompt_before_its_start():
    ledger = ledger_of(4)
    first = ledger.take(2, Hold.ACTIVE) or []
    second = ledger.take(2, Hold.ACTIVE) or []
    for block, block_hash in zip([*first, *second], (b"a", b"b", b"c", b"d"), strict=True):
        ledger.remember(block, block_hash)
    ledger.release(reversed(first), Hold.ACTIVE)
    ledger.release(reversed(second), Hold.ACTIVE)
    assert ledger.take(1, Hold.ACTIVE) == [first[1]]
    assert ledger.find([b"a", b"b"]) == [first[0]]
    assert ledger.find([b"c", b"d"]) == second


def test_a_cached_block_that_is_used_again_is_not_evicted():
    ledger = ledger_of(2)
    blocks = ledger.take(2, Hold.ACTIVE) or []
    for block, block_hash in zip(blocks, (b"a", b"b"), strict=True):
        ledger.remember(block, block_hash)
    ledger.release(blocks, Hold.ACTIVE)
    ledger.hold([blocks[0]], Hold.ACTIVE)
    assert ledger.take(1, Hold.ACTIVE) == [blocks[1]]
    assert ledger.take(1, Hold.ACTIVE) is None


def test_of_two_blocks_with_the_same_content_the_first_is_found_and_the_other_is_its_spare():
    ledger = ledger_of(2)
    first, second = ledger.take(2, Hold.ACTIVE) or []
    ledger.remember(first, b"same")
    ledger.remember(second, b"same")
    ledger.release([first, second], Hold.ACTIVE)
    assert ledger.find([b"same"]) == [first]
    assert counts(ledger) == (0, 2, 0, 0, 0)
    ledger.take(1, Hold.ACTIVE)
    assert ledger.find([b"same"]) == [second]
    assert ledger.take_evicted() == [b"same"]
    ledger.check({Hold.ACTIVE: [[first]]})


def test_an_emptied_cache_gives_nothing_back_and_all_of_it_is_free():
    ledger = ledger_of(3)
    blocks = ledger.take(2, Hold.ACTIVE) or []
    for block, block_hash in zip(blocks, (b"a", b"b"), strict=True):
        ledger.remember(block, block_hash)
    ledger.release(blocks, Hold.ACTIVE)
    ledger.forget_all()
    assert (ledger.find([b"a"]), ledger.take_evicted(), counts(ledger)) == ([], [], (3, 0, 0, 0, 0))
    ledger.check({})


def test_check_finds_a_hold_that_nobody_owns_up_to():
    ledger = ledger_of(3)
    blocks = ledger.take(2, Hold.ACTIVE) or []
    ledger.check({Hold.ACTIVE: [blocks]})
    with pytest.raises(AssertionError, match="holders say 0"):
        ledger.check({Hold.ACTIVE: [blocks[:1]]})
    with pytest.raises(AssertionError, match="holders say 1"):
        ledger.check({Hold.ACTIVE: [blocks], Hold.LEASED: [blocks[:1]]})


def test_check_finds_a_counter_that_has_gone_astray():
    ledger = ledger_of(3)
    ledger._counts[next(iter(ledger._counts))] += 1
    with pytest.raises(AssertionError, match="by counter"):
        ledger.check({})


def test_a_release_without_a_hold_is_a_bug():
    ledger = ledger_of(1)
    with pytest.raises(AssertionError, match="no hold ACTIVE"):
        ledger.release([1], Hold.ACTIVE)
