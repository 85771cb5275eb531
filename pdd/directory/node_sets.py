"""Which nodes hold a block, in one 32-bit word.

    0                      nobody
    slot                   one node              slots are 1..32767
    slot | slot' << 16     two nodes, slot < slot'
    2**31 | id             three or more: an interned tuple, shared by all blocks with that set

Most blocks sit on one or two nodes and cost nothing beside their word. A prefix that many nodes
share (a system prompt) is one interned set, however many blocks it has, so a look-up sees one run
of equal words. Equal sets have equal words, except that words may still name closed slots: those
are dropped when the word is next changed or swept (`BlockIndex.sweep`).

A *slot* is one life of one node's cache; a restart or a cleared cache gets a new one, which makes
all old entries void at once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

import numpy as np

from pdd.directory.table import U32, Mask

SLOT_LIMIT = 2**15
"""Slots are below this; 0 is none."""
_WIDE = 2**31
_LOW_HALF = np.uint32(0xFFFF)
_HALF_BITS = np.uint32(16)
_SLOT_BITS = np.uint32(SLOT_LIMIT - 1)


class NodeSets:
    """Interned sets with use counts, and the arithmetic on words. Words in, words out: it never
    sees a key or a row."""

    def __init__(self) -> None:
        self.closed = np.zeros(SLOT_LIMIT, dtype=np.bool_)
        self.any_closed = False
        self._members: list[tuple[int, ...]] = []
        self._ids: dict[tuple[int, ...], int] = {}
        self._free_ids: list[int] = []
        self._fresh_ids: list[int] = []  # made since the last `reassign`; some only in passing
        self._uses = np.zeros(64, dtype=np.int64)

    @property
    def interned_count(self) -> int:
        return len(self._ids)

    def members(self, word: int) -> tuple[int, ...]:
        """The slots in a word, ascending, closed ones included."""
        if word >= _WIDE:
            return self._members[word - _WIDE]
        if word >> 16:
            return (word & 0xFFFF, word >> 16)
        return (word,) if word else ()

    def word_of(self, slots: Iterable[int]) -> int:
        """The word of ascending distinct slots. The next `reassign` forgets it if unused."""
        members = tuple(slots)
        if len(members) < 3:
            return sum(slot << (16 * place) for place, slot in enumerate(members))
        found = self._ids.get(members)
        if found is None:
            if self._free_ids:
                found = self._free_ids.pop()
                self._members[found] = members
            else:
                found = len(self._members)
                self._members.append(members)
                if found == len(self._uses):
                    self._uses = np.concatenate((self._uses, np.zeros_like(self._uses)))
            self._ids[members] = found
            self._fresh_ids.append(found)
        return found + _WIDE

    def clean(self, words: U32) -> U32:
        """The words without closed slots."""
        if not self.any_closed:
            return words
        low, high = words & _LOW_HALF, words >> _HALF_BITS
        wide = words >= _WIDE
        # Halves of an interned set's word are no slots, but must not point beyond the slots either.
        low_closed = self.closed.take(low & _SLOT_BITS)
        high_closed = self.closed.take(high & _SLOT_BITS)
        # An inline word without its low half is its high half, moved down.
        cleaned = np.where(high_closed, low, words)
        cleaned = np.where(low_closed, np.where(high_closed, 0, high), cleaned)
        cleaned = np.where(wide, words, cleaned).astype(np.uint32)
        if wide.any():
            unique, inverse = np.unique(words[wide], return_inverse=True)
            fresh = [
                self.word_of(slot for slot in self.members(word) if not self.closed[slot])
                for word in unique.tolist()
            ]
            cleaned[wide] = np.array(fresh, dtype=np.uint32)[inverse]
        return cleaned

    def add(self, words: U32, slots: U32) -> U32:
        """Each word with its slot added; ``(count,)`` each."""
        low, high = words & _LOW_HALF, words >> _HALF_BITS
        here = (low == slots) | (high == slots)
        added = np.where(low < slots, low | (slots << _HALF_BITS), slots | (low << _HALF_BITS))
        added = np.where(words == 0, slots, np.where(here, words, added))
        return self._in_python(words, slots, added, (words >= _WIDE) | ((high != 0) & ~here), True)

    def remove(self, words: U32, slots: U32) -> U32:
        """Each word without its slot, where it had it."""
        low, high = words & _LOW_HALF, words >> _HALF_BITS
        removed = np.where(high == slots, low, np.where(low == slots, high, words))
        return self._in_python(words, slots, removed, words >= _WIDE, False)

    def _in_python(self, words: U32, slots: U32, result: U32, which: Mask, adding: bool) -> U32:
        """Interned sets: one Python step per distinct (word, slot), which in a batch are few."""
        if not which.any():
            return result
        pairs = (words[which].astype(np.uint64) << np.uint64(16)) | slots[which]
        unique, inverse = np.unique(pairs, return_inverse=True)
        step = self._with if adding else self._without
        fresh = [step(pair >> 16, pair & 0xFFFF) for pair in unique.tolist()]
        result[which] = np.array(fresh, dtype=np.uint32)[inverse]
        return result

    def _with(self, word: int, slot: int) -> int:
        members = self.members(word)
        place = bisect_left(members, slot)
        if place < len(members) and members[place] == slot:
            return word
        return self.word_of((*members[:place], slot, *members[place:]))

    def _without(self, word: int, slot: int) -> int:
        members = self.members(word)
        if slot not in members:
            return word
        return self.word_of(member for member in members if member != slot)

    def reassign(self, old: U32, new: U32) -> None:
        """Rows changed from ``old`` to ``new`` words: count uses, forget sets without any."""
        gained, lost = new[new >= _WIDE] - np.uint32(_WIDE), old[old >= _WIDE] - np.uint32(_WIDE)
        if len(gained):
            np.add.at(self._uses, gained, 1)
        if len(lost):
            np.subtract.at(self._uses, lost, 1)
        for set_id in dict.fromkeys((*np.unique(lost).tolist(), *self._fresh_ids)):
            if not self._uses[set_id]:
                del self._ids[self._members[set_id]]
                self._members[set_id] = ()
                self._free_ids.append(set_id)
        self._fresh_ids.clear()
