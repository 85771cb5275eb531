"""Sets of nodes in 32-bit words."""

from itertools import combinations, islice

import numpy as np

from pdd.directory.node_sets import SLOT_LIMIT, NodeSets


def words(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.uint32)


def with_slots(sets: NodeSets, *slots: int) -> np.ndarray:
    """One used word that holds these slots, added one by one."""
    word = words(0)
    for slot in slots:
        grown = sets.add(word, words(slot))
        sets.reassign(word, grown)
        word = grown
    return word


def test_equal_sets_have_equal_words_in_whatever_order_they_grew() -> None:
    sets = NodeSets()
    for slots in ((7,), (7, 3), (7, 3, 32767), (5, 4, 3, 2, 1)):
        forward, backward = with_slots(sets, *slots), with_slots(sets, *reversed(slots))
        assert forward == backward
        assert sets.members(int(forward[0])) == tuple(sorted(slots))


def test_adding_twice_and_removing_what_is_not_there_change_nothing() -> None:
    sets = NodeSets()
    for slots in ((), (7,), (3, 7), (3, 7, 9), (3, 7, 9, 11)):
        word = with_slots(sets, *slots)
        for slot in slots:
            assert (sets.add(word, words(slot)) == word).all()
        assert (sets.remove(word, words(8)) == word).all()


def test_removing_goes_back_through_the_same_words() -> None:
    sets = NodeSets()
    steps = [with_slots(sets, *range(1, count + 1)) for count in range(6)]
    word = steps[5]
    for count in range(5, 0, -1):
        word = sets.remove(word, words(count))
        assert word == steps[count - 1]


def test_cleaning_drops_closed_slots_at_every_size() -> None:
    sets = NodeSets()
    grown = [with_slots(sets, *range(1, count + 1)) for count in range(6)]
    sets.closed[[2, 3]] = True
    sets.any_closed = True
    cleaned = [sets.members(int(sets.clean(word)[0])) for word in grown]
    assert cleaned == [(), (1,), (1,), (1,), (1, 4), (1, 4, 5)]
    others = [with_slots(sets, *slots) for slots in ((2, 3), (3,), (2, 9), (3, 9, 11))]
    cleaned = [sets.members(int(sets.clean(word)[0])) for word in others]
    assert cleaned == [(), (), (9,), (9, 11)]


def test_cleaning_takes_more_sets_than_there_are_slots() -> None:
    """An id of an interned set is no slot: its low half may be any 16 bits."""
    sets = NodeSets()
    made = list(islice(combinations(range(1, 100), 3), SLOT_LIMIT + 2))
    all_words = words(*(sets.word_of(members) for members in made))
    sets.reassign(np.zeros_like(all_words), all_words)
    sets.closed[1] = True
    sets.any_closed = True
    cleaned = sets.clean(all_words[-2:])
    assert [sets.members(int(word)) for word in cleaned] == [
        tuple(slot for slot in members if slot != 1) for members in made[-2:]
    ]


def test_sets_that_nobody_uses_are_forgotten() -> None:
    sets = NodeSets()
    word = with_slots(sets, 1, 2, 3, 4)
    assert sets.interned_count == 1  # {1, 2, 3} was only passed through
    sets.closed[1] = sets.any_closed = True
    cleaned = sets.clean(word)
    grown = sets.add(cleaned, words(9))
    sets.reassign(word, grown)
    assert sets.interned_count == 1  # {2, 3, 4, 9}
    sets.reassign(grown, words(0))
    assert sets.interned_count == 0


def test_ids_of_forgotten_sets_are_used_again() -> None:
    sets = NodeSets()
    seen = set()
    for first in range(1, 300):
        word = with_slots(sets, first, first + 1, first + 2)
        seen.add(int(word[0]))
        sets.reassign(word, words(0))
    assert len(seen) == 1
