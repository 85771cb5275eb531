"""The index over its table against a dict of sets: growth, full buckets, closed slots, the bound.

A third of the keys fall into one bucket however often it is split, many of them with equal tags, so
that columns, lists of spilled rows and rows that are used again all take part.
"""

from __future__ import annotations

import random

import hypothesis.strategies as st
import numpy as np
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pdd.directory import buckets
from pdd.directory.index import BlockIndex

KEY_COUNT_MAX = 600
SLOT_COUNT = 6


def make_keys() -> list[tuple[int, int]]:
    """``(high, low)``: 400 at random; 200 of one bucket, solved for their low halves, of which half
    have tags below 4."""
    rng = np.random.default_rng(20)
    keys = rng.integers(0, 2**64, size=(300_000, 2), dtype=np.uint64)
    (high_factor, high_other), (low_factor, low_other) = buckets.FACTORS
    inverse = np.uint64(pow(low_factor, -1, 2**64))
    keys[400:, 1] = (np.uint64(5) - keys[400:, 0] * np.uint64(high_factor)) * inverse
    tags = keys[400:, 0] * np.uint64(high_other) + keys[400:, 1] * np.uint64(low_other)
    alike = keys[400:][tags >> np.uint64(48) < 64][:100]
    assert len(alike) == 100
    chosen = np.concatenate((keys[:400], alike, keys[400:500]))
    assert len(np.unique(chosen[:, 0])) == 600
    return [(int(high), int(low)) for high, low in chosen]


KEYS = make_keys()
CROWDED = KEYS[400:]
seeds = st.integers(0, 2**32)


def joined(keys: list[tuple[int, int]]) -> np.ndarray:
    return np.array(keys, dtype=np.uint64).reshape(-1, 2)


class IndexHistory(RuleBasedStateMachine):
    @initialize(limit=st.sampled_from([150, KEY_COUNT_MAX]))
    def begin(self, limit: int) -> None:
        self.limit = limit
        self.index = BlockIndex(max_key_count=limit)
        self.model: dict[tuple[int, int], set[int]] = {}
        self.slots = [self.index.open_slot() for _ in range(SLOT_COUNT)]

    def draw(
        self, seed: int, count: int, *, is_narrow: bool
    ) -> tuple[list[tuple[int, int]], list[int]]:
        """Keys and slots of one batch; narrow: of the crowded bucket. Pairs do not repeat, keys
        do."""
        rng = random.Random(seed)
        pairs = {
            (rng.choice(CROWDED if is_narrow else KEYS), rng.choice(self.slots)): None
            for _ in range(count)
        }
        return [key for key, _ in pairs], [slot for _, slot in pairs]

    @rule(seed=seeds, count=st.integers(1, 300), is_narrow=st.booleans())
    def store(self, seed: int, count: int, is_narrow: bool) -> None:
        keys, slots = self.draw(seed, count, is_narrow=is_narrow)
        if self.limit < KEY_COUNT_MAX:
            self.sweep_all()  # or keys that nobody holds any more would take room
        room, refused = self.limit - self.index.key_count, self.refused_count()
        self.index.store(joined(keys), np.array(slots, dtype=np.uint32))
        for key, slot in zip(keys, slots, strict=True):
            if key not in self.model and not room:
                refused += 1
                continue
            room -= key not in self.model
            self.model.setdefault(key, set()).add(slot)
        assert self.refused_count() == refused

    @rule(seed=seeds, count=st.integers(1, 300), is_narrow=st.booleans())
    def remove(self, seed: int, count: int, is_narrow: bool) -> None:
        keys, slots = self.draw(seed, count, is_narrow=is_narrow)
        self.index.remove(joined(keys), np.array(slots, dtype=np.uint32))
        for key, slot in zip(keys, slots, strict=True):
            self.forget(key, slot)

    @rule(which=st.integers(0, SLOT_COUNT - 1), rows=st.integers(0, 400))
    def close_a_slot_and_open_another(self, which: int, rows: int) -> None:
        self.index.close_slot(self.slots[which])
        for key in list(self.model):
            self.forget(key, self.slots[which])
        self.slots[which] = self.index.open_slot()
        self.index.sweep(rows)

    @rule()
    def sweep_all(self) -> None:
        self.index.finish_sweep()
        self.index.finish_sweep()
        assert self.index.key_count == len(self.model)

    def refused_count(self) -> int:
        return sum(self.index.refused_count(slot) for slot in self.slots)

    def forget(self, key: tuple[int, int], slot: int) -> None:
        holders = self.model.get(key, set())
        holders.discard(slot)
        if not holders:
            self.model.pop(key, None)

    @invariant()
    def every_key_has_the_holders_of_the_model(self) -> None:
        for key in KEYS[::7]:
            found = set(self.index.slots_of(joined([key]))) & set(self.slots)
            assert found == self.model.get(key, set())

    @rule(seed=seeds, length=st.integers(1, 150), is_narrow=st.booleans())
    def ask_for_a_chain(self, seed: int, length: int, is_narrow: bool) -> None:
        rng = random.Random(seed)
        pool = [key for key in KEYS if key in self.model] if seed % 4 else KEYS
        pool = [key for key in pool if not is_narrow or key in CROWDED] or KEYS
        chain = rng.sample(pool, min(length, len(pool)))
        expected = {}
        for slot in self.slots:
            held = 0
            while held < len(chain) and slot in self.model.get(chain[held], ()):
                held += 1
            if held:
                expected[slot] = held
        found = self.index.longest_prefixes(joined(chain))
        assert {slot: held for slot, held in found.items() if slot in self.slots} == expected


TestIndexHistory = IndexHistory.TestCase
TestIndexHistory.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
