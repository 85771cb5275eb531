"""Which nodes hold which blocks: facts in batches in, longest prefix per node out.

*Longest prefix*: how many leading keys of a chain a node holds without a hole. An engine reuses
blocks from the start up to the first it lacks, so a block behind a hole is worth nothing; every key
up to the answer is looked at, none is guessed from its position.

Slots are opened and closed by `DirectoryMachine`, one per life of a node's cache. Closing is
immediate for every question; the words that name a closed slot are tidied by `sweep`, some rows
with each batch, and the slot is used again only after a whole pass.
"""

from __future__ import annotations

import heapq

import numpy as np

from pdd.directory.node_sets import SLOT_LIMIT, NodeSets
from pdd.directory.table import NO_ROW, U32, U64, Index, KeyTable

_MIX = np.uint64(0x9E3779B97F4A7C15)
_ROUNDS = 4
"""Pairs of one batch that name the same row are applied one after another, this many rounds in
numpy, the rest (a block that many nodes stored in one batch) in Python."""


class BlockIndex:
    """Keys to sets of slots, with a count and an order-free hash of what each slot holds.

    Bounded: at ``max_key_count`` distinct keys a new key is refused and counted. What was there
    stays true and room comes back as nodes evict, so heads of chains outlive tails.
    """

    def __init__(self, *, max_key_count: int) -> None:
        self._table = KeyTable(max_key_count=max_key_count)
        self._sets = NodeSets()
        self._counts = np.zeros(SLOT_LIMIT, dtype=np.int64)
        self._hashes = np.zeros(SLOT_LIMIT, dtype=np.uint64)
        self._refused = np.zeros(SLOT_LIMIT, dtype=np.int64)
        self._slot_end = 1
        self._free_slots: list[int] = []
        self._closing: list[int] = []  # wait for the next pass
        self._sweeping: list[int] = []  # leave when this pass ends
        self._sweep_row = 0

    @property
    def key_count(self) -> int:
        return self._table.key_count

    def open_slot(self) -> int:
        """A slot that holds nothing."""
        if not self._free_slots and self._slot_end == SLOT_LIMIT:
            self.finish_sweep()
            self.finish_sweep()  # the first pass may have begun before some of them closed
        if self._free_slots:
            return heapq.heappop(self._free_slots)
        assert self._slot_end < SLOT_LIMIT, "more live caches than slots; DirectoryMachine bounds"
        self._slot_end += 1
        return self._slot_end - 1

    def close_slot(self, slot: int) -> None:
        """All that the slot holds is void from now on."""
        self._sets.closed[slot] = True
        self._sets.any_closed = True
        self._counts[slot] = self._hashes[slot] = self._refused[slot] = 0
        self._closing.append(slot)

    def held_count(self, slot: int) -> int:
        return int(self._counts[slot])

    def held_hash(self, slot: int) -> int:
        """Sum over the slot's keys, mod 2**64; the same in whatever order they came."""
        return int(self._hashes[slot])

    def refused_count(self, slot: int) -> int:
        """Blocks of this slot that found no room since it was opened."""
        return int(self._refused[slot])

    def store(self, keys: U64, slots: U32) -> None:
        """``slots[i]`` holds ``keys[i]`` from now on. ``(count, 2)`` and ``(count,)``."""
        rows = self._table.find(keys)
        pending = np.ones(len(rows), dtype=np.bool_)
        missing = np.flatnonzero(rows == NO_ROW)
        if len(missing):
            first, same_as = _distinct(keys[missing])
            new_rows = self._table.insert(keys[missing[first]], slots[missing[first]])
            given = missing[first[: len(new_rows)]]
            pending[given] = False
            self._account(keys[given], slots[given], 1)
            padded = np.full(len(first), NO_ROW, dtype=np.int64)
            padded[: len(new_rows)] = new_rows
            rows[missing] = padded[same_as]
            refused = rows == NO_ROW
            if refused.any():
                np.add.at(self._refused, slots[refused], 1)
                pending &= ~refused
        self._change(rows[pending], keys[pending], slots[pending], adding=True)

    def remove(self, keys: U64, slots: U32) -> None:
        """``slots[i]`` no longer holds ``keys[i]``; where it did not, nothing changes."""
        rows = self._table.find(keys)
        found = rows != NO_ROW
        if not found.all():
            rows, keys, slots = rows[found], keys[found], slots[found]
        self._change(rows, keys, slots, adding=False)

    def _change(self, rows: Index, keys: U64, slots: U32, *, adding: bool) -> None:
        """Add or remove slots at known rows, which may repeat."""
        for turn in range(_ROUNDS):
            if not len(rows):
                return
            if turn + 1 == _ROUNDS:
                break
            leads = _first_of_each(rows)
            if leads is None:
                self._change_distinct(rows, keys, slots, adding)
                return
            self._change_distinct(rows[leads], keys[leads], slots[leads], adding)
            rows, keys, slots = rows[~leads], keys[~leads], slots[~leads]
        for position in range(len(rows)):
            one = slice(position, position + 1)
            self._change_distinct(rows[one], keys[one], slots[one], adding)

    def _change_distinct(self, rows: Index, keys: U64, slots: U32, adding: bool) -> None:
        before = self._table.words[rows]
        cleaned = self._sets.clean(before)
        after = self._sets.add(cleaned, slots) if adding else self._sets.remove(cleaned, slots)
        changed = cleaned != after
        self._account(keys[changed], slots[changed], 1 if adding else -1)
        self._write(rows, before, after)

    def _write(self, rows: Index, before: U32, after: U32) -> None:
        self._table.words[rows] = after
        self._sets.reassign(before, after)
        emptied = (after == 0) & (before != 0)
        if emptied.any():
            self._table.free(rows[emptied])

    def _account(self, keys: U64, slots: U32, sign: int) -> None:
        np.add.at(self._counts, slots, sign)
        mixed = key_mix(keys)
        if sign > 0:
            np.add.at(self._hashes, slots, mixed)
        else:
            np.subtract.at(self._hashes, slots, mixed)

    def sweep(self, row_count: int) -> None:
        """Tidy up to ``row_count`` rows. Does nothing while no slot was closed."""
        if not self._sweeping:
            if not self._closing:
                return
            self._sweeping, self._closing, self._sweep_row = self._closing, [], 0
        end = min(self._sweep_row + row_count, self._table.row_end)
        before = self._table.words[self._sweep_row : end]
        after = self._sets.clean(before)
        changed = np.flatnonzero(before != after)
        if len(changed):
            self._write(changed + self._sweep_row, before[changed], after[changed])
        self._sweep_row = end
        if end == self._table.row_end:
            for slot in self._sweeping:
                self._sets.closed[slot] = False
                heapq.heappush(self._free_slots, slot)
            self._sweeping = []
            self._sets.any_closed = bool(self._closing)

    def finish_sweep(self) -> None:
        """To the end of the current pass, or one whole pass. About 20 ms per million rows."""
        self.sweep(self._table.row_end + 1)

    def longest_prefixes(self, keys: U64) -> dict[int, int]:
        """Per slot how many leading keys it holds, where that is not 0. At least one key.

        Closed slots may be among the answers; the caller knows which are alive.
        """
        count, run_count, word = self._table.walk(keys)
        if not count:
            return {}
        alive = self._sets.members(word)
        if run_count == 1:
            return dict.fromkeys(alive, count)
        lengths: dict[int, int] = {}
        for position, word in self._table.runs(run_count)[1:]:
            members = self._sets.members(word)
            if members != alive:
                lengths.update((slot, position) for slot in alive if slot not in members)
                alive = tuple(slot for slot in alive if slot in members)
                if not alive:
                    break
        lengths.update(dict.fromkeys(alive, count))
        return lengths

    def slots_of(self, keys: U64) -> tuple[int, ...]:
        """Who holds the one key given, closed slots included."""
        row = self._table.find(keys)[0]
        return () if row == NO_ROW else self._sets.members(int(self._table.words[row]))

    def export(self) -> tuple[bytes, list[tuple[int, bytes]]]:
        """Every held key, joined, and per open slot the positions (uint32, joined) of its keys."""
        table = self._table
        distinct, kind = np.unique(table.words[: table.row_end], return_inverse=True)
        holders = [
            [slot for slot in self._sets.members(word) if not self._sets.closed[slot]]
            for word in distinct.tolist()
        ]
        rows = np.flatnonzero(np.array([bool(slots) for slots in holders], dtype=np.bool_)[kind])
        keys = np.stack((table.high[rows], table.low[rows]), axis=1)
        order = np.lexsort((keys[:, 1], keys[:, 0]))  # the same bytes on every replica
        keys, kind = keys[order], kind[rows][order]
        by_kind = np.argsort(kind, kind="stable").astype(np.uint32)
        ends = np.cumsum(np.bincount(kind, minlength=len(holders))).tolist()
        positions: dict[int, list[U32]] = {}
        for slots, start, end in zip(holders, [0, *ends], ends, strict=False):
            for slot in slots:
                positions.setdefault(slot, []).append(by_kind[start:end])
        return keys.tobytes(), [
            (slot, np.sort(np.concatenate(positions[slot])).tobytes()) for slot in sorted(positions)
        ]


def key_mix(keys: U64) -> U64:
    """64 bits of a key for order-free sums."""
    mixed: U64 = keys[:, 0] ^ (keys[:, 1] * _MIX)
    return mixed


def _first_of_each(rows: Index) -> np.ndarray[tuple[int], np.dtype[np.bool_]] | None:
    """Mask of the first mention of every row, or None where none repeats."""
    order = np.argsort(rows, kind="stable")
    ordered = rows[order]
    repeats = ordered[1:] == ordered[:-1]
    if not repeats.any():
        return None
    leads = np.ones(len(rows), dtype=np.bool_)
    leads[order[1:][repeats]] = False
    return leads


def _distinct(keys: U64) -> tuple[Index, Index]:
    """``(positions of first mentions, ascending; per key the ordinal of its first mention)``."""
    count = len(keys)
    ordered = np.sort(keys[:, 1])
    if not (ordered[1:] == ordered[:-1]).any():
        everything = np.arange(count, dtype=np.int64)
        return everything, everything
    order = np.lexsort((np.arange(count), keys[:, 1], keys[:, 0]))
    same = (keys[order[1:]] == keys[order[:-1]]).all(axis=1)
    starts = np.concatenate(([True], ~same))
    lead_of = np.empty(count, dtype=np.int64)
    lead_of[order] = order[starts][np.cumsum(starts) - 1]
    first = np.unique(lead_of)
    return first, np.searchsorted(first, lead_of).astype(np.int64)
