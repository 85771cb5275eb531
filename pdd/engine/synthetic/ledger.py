"""Which block is in which state, who may use it, and what it holds.

::

                 take                      release (last hold gone)
    FREE ------------------> held  -------------------------------> FREE    no hash
    CACHED --take (evict)-->  |    -------------------------------> CACHED  has a hash
    CACHED --reuse--------->  |
                              ACTIVE       a running sequence uses it
                              LEASED       promised to a transfer that has not ended
                              QUARANTINED  its owner is gone, a transfer may still touch it

A block may be held several times (a prefix that is shared, or read by a transfer): its state is
then the first of ACTIVE, LEASED, QUARANTINED that holds it. Every state has a counter of its own
that is kept with each change; ``census`` counts afresh, ``check`` compares.

Several blocks may hold the same content: each has the hash, the one that got it first is reused.
Who follows what the cache holds learns of evictions by ``take_evicted``.

Block 0 is never handed out (vLLM keeps one too, and the scheduler counts on that): whoever names
it by mistake is found.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from itertools import chain

from pdd.core.blocks import BlockCensus, BlockState, take_census


class Hold(IntEnum):
    """Why a block is held. The order is that in which a state is told."""

    ACTIVE = 0
    LEASED = 1
    QUARANTINED = 2


_STATE_OF_HOLD = {
    Hold.ACTIVE: BlockState.ACTIVE,
    Hold.LEASED: BlockState.LEASED,
    Hold.QUARANTINED: BlockState.QUARANTINED,
}


class BlockLedger:
    """The states of blocks 1..``block_count`` - 1."""

    def __init__(self, *, block_count: int) -> None:
        if block_count < 2:
            raise ValueError(f"a pool of {block_count} blocks: block 0 is kept, so 2 are needed")
        self._usable_count = block_count - 1
        self._free: deque[int] = deque(range(1, block_count))
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._holds: list[list[int]] = [[0, 0, 0] for _ in range(block_count)]
        self._hash_of: dict[int, bytes] = {}
        self._blocks_of: dict[bytes, dict[int, None]] = {}
        self._counts: dict[BlockState, int] = dict.fromkeys(BlockState, 0)
        self._counts[BlockState.FREE] = self._usable_count
        self.evicted_count = 0
        self._evicted: list[bytes] = []

    @property
    def usable_count(self) -> int:
        """Blocks that can be handed out at all."""
        return self._usable_count

    @property
    def available_count(self) -> int:
        """Blocks that nobody holds, cached ones included."""
        return len(self._free) + len(self._cached)

    def counts(self) -> BlockCensus:
        """The counters as they are kept."""
        return BlockCensus(
            free=self._counts[BlockState.FREE],
            cached=self._counts[BlockState.CACHED],
            active=self._counts[BlockState.ACTIVE],
            leased=self._counts[BlockState.LEASED],
            quarantined=self._counts[BlockState.QUARANTINED],
            total=self._usable_count,
        )

    def census(self, held: Mapping[Hold, Iterable[Sequence[int]]]) -> BlockCensus:
        """Count afresh: free and cached blocks in their lists, others with their holders.

        ``held``: by hold, the blocks of every holder.
        """

        def of(hold: Hold) -> Iterable[int]:
            return chain.from_iterable(held.get(hold, ()))

        return take_census(
            usable=range(1, self._usable_count + 1),
            free=self._free,
            cached=self._cached,
            active=of(Hold.ACTIVE),
            leased=of(Hold.LEASED),
            quarantined=of(Hold.QUARANTINED),
        )

    def take(self, count: int, hold: Hold) -> list[int] | None:
        """Hold ``count`` blocks whose content does not matter; None, and nothing done, if there
        are not so many. Evicts what was used longest ago."""
        if count > self.available_count:
            return None
        taken = []
        for _ in range(count):
            if self._free:
                block, before = self._free.popleft(), BlockState.FREE
            else:
                block, _ = self._cached.popitem(last=False)
                self._evicted.append(self._forget(block))
                before = BlockState.CACHED
                self.evicted_count += 1
            self._holds[block][hold] = 1
            self._moved(before, _STATE_OF_HOLD[hold])
            taken.append(block)
        return taken

    def find(self, hashes: Iterable[bytes]) -> list[int]:
        """Blocks of the longest known prefix of ``hashes``. Holds nothing."""
        found = []
        for block_hash in hashes:
            blocks = self._blocks_of.get(block_hash)
            if blocks is None:
                break
            found.append(next(iter(blocks)))
        return found

    def hold(self, blocks: Iterable[int], hold: Hold) -> None:
        """Hold blocks that are held already or cached."""
        for block in blocks:
            before = self._state(block)
            if before is BlockState.CACHED:
                del self._cached[block]
            assert before is not BlockState.FREE, f"block {block} is free: it has no content"
            self._holds[block][hold] += 1
            self._moved(before, self._state(block))

    def release(self, blocks: Iterable[int], hold: Hold) -> None:
        """End one hold on each. Give a sequence's blocks last first: its end is evicted first."""
        for block in blocks:
            before = self._state(block)
            assert self._holds[block][hold] > 0, f"block {block} has no hold {hold.name}"
            self._holds[block][hold] -= 1
            if not any(self._holds[block]):
                if block in self._hash_of:
                    self._cached[block] = None
                else:
                    self._free.append(block)
            self._moved(before, self._state(block))

    def change(self, blocks: Sequence[int], before: Hold, after: Hold) -> None:
        """Turn one kind of hold into another."""
        for block in blocks:
            state = self._state(block)
            assert self._holds[block][before] > 0, f"block {block} has no hold {before.name}"
            self._holds[block][before] -= 1
            self._holds[block][after] += 1
            self._moved(state, self._state(block))

    def remember(self, block: int, block_hash: bytes) -> None:
        """A held block is full and final: others may reuse it."""
        assert any(self._holds[block]), f"block {block} is held by nobody"
        assert block not in self._hash_of, f"block {block} is full already"
        self._hash_of[block] = block_hash
        self._blocks_of.setdefault(block_hash, {})[block] = None

    def take_evicted(self) -> list[bytes]:
        """Hashes of the blocks that were evicted since the last call, one for each, in order."""
        evicted, self._evicted = self._evicted, []
        return evicted

    def cached_hashes(self) -> list[bytes]:
        """Every hash that ``find`` knows, once."""
        return list(self._blocks_of)

    def forget_all(self) -> None:
        """Nobody holds a block, and none is reused any more. Nothing of it counts as evicted."""
        assert self.available_count == self._usable_count, "blocks are held"
        for block in list(self._cached):
            self._forget(block)
            self._free.append(block)
            self._moved(BlockState.CACHED, BlockState.FREE)
        self._cached.clear()
        self._evicted.clear()

    def _forget(self, block: int) -> bytes:
        block_hash = self._hash_of.pop(block)
        blocks = self._blocks_of[block_hash]
        del blocks[block]
        if not blocks:
            del self._blocks_of[block_hash]
        return block_hash

    def check(self, held: Mapping[Hold, Iterable[Sequence[int]]]) -> None:
        """Count everything afresh. ``held``: by hold, the blocks of every holder.

        Raises:
            AssertionError: a block is lost, held by nobody, or in two states.
        """
        expected = {
            hold: Counter(block for blocks in held.get(hold, ()) for block in blocks)
            for hold in Hold
        }
        recount = Counter[BlockState]()
        free, cached = Counter(self._free), Counter(self._cached.keys())
        for block in range(1, self._usable_count + 1):
            for hold in Hold:
                have, want = self._holds[block][hold], expected[hold][block]
                assert have == want, f"block {block}: {have} holds {hold.name}, holders say {want}"
            unheld = not any(self._holds[block])
            places = free[block] + cached[block] + (not unheld)
            assert places == 1, f"block {block} is in {places} places"
            assert bool(cached[block]) <= (block in self._hash_of), f"block {block} has no hash"
            recount[self._state(block)] += 1
        for block, block_hash in self._hash_of.items():
            assert block in self._blocks_of[block_hash], f"block {block}: hash points elsewhere"
        pointed = sum(map(len, self._blocks_of.values()))
        assert pointed == len(self._hash_of), "a hash points to a forgotten block"
        assert all(self._blocks_of.values()), "a hash is kept for no block"
        for state in BlockState:
            kept = self._counts[state]
            assert kept == recount[state], f"{kept} blocks {state} by counter, {recount[state]} are"
        assert sum(self._counts.values()) == self._usable_count

    def _state(self, block: int) -> BlockState:
        for hold, count in enumerate(self._holds[block]):
            if count:
                return _STATE_OF_HOLD[Hold(hold)]
        return BlockState.CACHED if block in self._hash_of else BlockState.FREE

    def _moved(self, before: BlockState, after: BlockState) -> None:
        self._counts[before] -= 1
        self._counts[after] += 1
