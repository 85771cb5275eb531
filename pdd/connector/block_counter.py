"""Counts every block of vLLM's pool, in ``VLLM::EngineCore``, where all who hold some are known.

Free and cached blocks are those in the pool's queue; the others are what vLLM's requests have in
their tables, by what the scheduler half knows of each request:

* it runs: active; blocks that a decode job waits for: leased;
* it has ended and a transfer goes on reading its blocks: leased;
* it was cancelled while a transfer used its blocks: quarantined.

A table of a request that nobody knows holds nothing. Under asynchronous scheduling vLLM gives
blocks back a step after they have left their table (``Scheduler.deferred_frees``, out of reach from
here); so a block is lost only when it has been in no state for ``SETTLE_S``.

A count walks the pool, some 0.1 us a block, once a second while the engine steps and once after its
last step, which is asked for (``wants_step``). Source: vllm/v1/core/block_pool.py, vLLM 0.32.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from pdd.core.blocks import BlockCensus, BlockState, take_census

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheManager

INTERVAL_S = 1.0
SETTLE_S = 1.0
_RECOUNT_S = 0.25
"""Between counts while a block may be lost."""


class BlockCounter:
    """One per engine. What it does not hear of in time it takes for a leak."""

    def __init__(
        self, *, clock: Callable[[], float] = time.monotonic, leak_block_after_jobs: int = 0
    ) -> None:
        """``leak_block_after_jobs``: a fault for tests; 0 for none."""
        self._clock = clock
        self._leak_after = leak_block_after_jobs
        self._manager: KVCacheManager | None = None
        self._running: dict[str, tuple[int, ...]] = {}  # and the blocks that it waits for
        self._kept: dict[str, BlockState] = {}
        self._ended_count = 0
        self._missing_since_s: dict[int, float] = {}
        self._is_unsure = False
        self._changed = False
        self._counted_s = -INTERVAL_S

    def bind(self, manager: "KVCacheManager") -> None:
        """The pool to count."""
        self._manager = manager

    # --- who holds blocks --------------------------------------------------------------------

    def began(self, request_id: str) -> None:
        """Whatever is in its table is in use."""
        self._running[request_id] = ()

    def waits_for(self, request_id: str, block_ids: tuple[int, ...]) -> None:
        """A peer writes to these."""
        self._running[request_id] = block_ids

    def ended(self, request_id: str, kept: BlockState | None) -> None:
        """It is over. ``kept``: in which state vLLM keeps its table until ``released``."""
        self._running.pop(request_id, None)
        self._changed = True
        self._ended_count += 1
        if kept is not None:
            self._kept[request_id] = kept

    def released(self, request_ids: Iterable[str]) -> None:
        """No transfer touches their blocks."""
        for request_id in request_ids:
            self._changed = True
            self._kept.pop(request_id, None)
            if request_id in self._running:
                self._running[request_id] = ()

    def table_of(self, request_id: str) -> list[int]:
        """The blocks of a request, in prompt order; none where it has none."""
        assert self._manager is not None, "asked before bind"
        (tables,) = (one.req_to_blocks for one in self._manager.coordinator.single_type_managers)
        return [block.block_id for block in tables.get(request_id, ())]

    # --- counting ----------------------------------------------------------------------------

    @property
    def wants_step(self) -> bool:
        """Something has changed since the last count, or is not sure yet."""
        return self._manager is not None and (self._changed or self._is_unsure)

    def look(self, *, is_idle: bool) -> BlockCensus | None:
        """Once per step. ``is_idle``: it computes nothing. None when it is not time to count."""
        if self._manager is None:
            return None
        self._changed |= not is_idle
        if self._leak_after and self._ended_count >= self._leak_after:
            self._leak_after = 0
            self._manager.block_pool.get_new_blocks(1)
        now_s = self._clock()
        since_s = now_s - self._counted_s
        is_due = since_s >= (_RECOUNT_S if self._is_unsure else INTERVAL_S)
        is_last = is_idle and self._changed  # for all it knows
        if not is_last and not (is_due and (self._changed or self._is_unsure)):
            return None
        self._changed = False
        self._counted_s = now_s
        return self._settled(self.count(), now_s)

    def count(self) -> BlockCensus:
        """All blocks as they are now, whatever is on its way included among the lost ones."""
        manager = self._manager
        assert manager is not None, "count before bind"
        held: dict[BlockState, list[int]] = {state: [] for state in BlockState}
        (tables,) = (one.req_to_blocks for one in manager.coordinator.single_type_managers)
        for request_id, table in tables.items():
            block_ids = [block.block_id for block in table if not block.is_null]
            if (state := self._kept.get(request_id)) is not None:
                held[state] += block_ids
            elif (awaited := self._running.get(request_id)) is not None:
                held[BlockState.LEASED] += awaited
                mine = set(block_ids).difference(awaited) if awaited else block_ids
                held[BlockState.ACTIVE] += mine
        pool = manager.block_pool
        queue = pool.free_block_queue.get_all_free_blocks()
        return take_census(
            usable=(block.block_id for block in pool.blocks if not block.is_null),
            free=[block.block_id for block in queue if block.block_hash is None],
            cached=[block.block_id for block in queue if block.block_hash is not None],
            active=held[BlockState.ACTIVE],
            leased=held[BlockState.LEASED],
            quarantined=held[BlockState.QUARANTINED],
        )

    def _settled(self, census: BlockCensus, now_s: float) -> BlockCensus:
        """With those blocks only that have been lost long enough to be sure."""
        seen = {block: self._missing_since_s.get(block, now_s) for block in census.lost_ids}
        sure = [block for block, since_s in seen.items() if now_s - since_s >= SETTLE_S]
        self._missing_since_s = seen
        self._is_unsure = len(sure) < len(seen)
        return replace(census, lost_count=len(sure), lost_ids=sure)
