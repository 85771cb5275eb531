"""On a node: what its engine's prefix cache holds, as pdd's keys, and what changed since last told.

    engine events  ──stored/removed/cleared──>  NodeMirror  ──take_delta()──>      to schedulers
    (engine's own hashes, token ids)                        ──snapshot_parts()──>  when it asks

The engine can say what changed but not what it holds, so this watches it from its start. Its own
hashes (any hashable value) are only used to find a block again; what leaves the node are keys
computed from the token ids. Facts about vLLM 0.32 (``v1/core/block_pool.py``) that shape this:

- Two blocks may hold the same content. Each is stored and removed with an event of its own, so
  copies are counted and a key is gone with its last one. (A request with ``kv_cache_report_mode``
  "full" would have reused blocks told again, and spoil the count; pdd leaves the default.)
- A stored block names its parent by the engine's hash. If that is unknown (events were lost) the
  key cannot be computed: the block is left out and counted.
- Engine hashes cover tenant salt and adapter as `ChainScope` does, so one hash has one key.

Bounded by the pool: more blocks than ``block_count`` means that removals were missed, and
`is_beyond_repair` asks the driver to reset the engine's cache and this mirror.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from pdd.directory.entries import MESSAGE_KEY_COUNT_MAX, BlockDelta, SnapshotPart
from pdd.directory.fold import Fold
from pdd.directory.keys import BlockKey, ChainScope, block_keys, split_keys


class NodeMirror:
    """One life of one node. Fed and asked by one task of the node daemon."""

    def __init__(self, *, node: str, boot_epoch: int, block_count: int) -> None:
        self._node = node
        self._boot_epoch = boot_epoch
        self._block_count = block_count
        self._keys: dict[Hashable, BlockKey] = {}
        self._copies: dict[Hashable, int] = {}  # beyond the first one
        self._fold = Fold()
        self._sequence = 0
        self.orphan_count = 0
        """Blocks stored behind a parent that is unknown here."""

    def __len__(self) -> int:
        """Distinct blocks."""
        return len(self._keys)

    @property
    def is_beyond_repair(self) -> bool:
        return len(self._keys) + sum(self._copies.values()) > self._block_count

    @property
    def pending_count(self) -> int:
        """Keys that the next deltas will name."""
        return len(self._fold)

    @property
    def last_sequence(self) -> int:
        """Number of the last delta that was taken; 0 before the first."""
        return self._sequence

    def stored(
        self,
        engine_hashes: Sequence[Hashable],
        *,
        parent: Hashable | None,
        token_ids: Sequence[int],
        scope: ChainScope,
    ) -> None:
        """Consecutive blocks are in the cache. ``token_ids`` are theirs alone; ``parent`` is the
        engine's hash of the block before them, None at a prompt's start.

        Raises:
            ValueError: another number of token ids than the blocks have.
        """
        expected = len(engine_hashes) * scope.block_size_tokens
        if len(token_ids) != expected:
            raise ValueError(
                f"{len(engine_hashes)} stored blocks of {scope.block_size_tokens} tokens came with "
                f"{len(token_ids)} token ids instead of {expected}"
            )
        parent_key = scope.root() if parent is None else self._keys.get(parent)
        if parent_key is None:
            self.orphan_count += len(engine_hashes)
            return
        chain = block_keys(parent_key, token_ids, block_size_tokens=scope.block_size_tokens)
        keys = split_keys(chain)
        for engine_hash, key in zip(engine_hashes, keys, strict=True):
            if self._keys.setdefault(engine_hash, key) is not key:
                self._copies[engine_hash] = self._copies.get(engine_hash, 0) + 1
        self._fold.store(keys)

    def removed(self, engine_hashes: Iterable[Hashable]) -> None:
        """These blocks left the cache, one copy each. Unknown ones were orphans."""
        gone = []
        for engine_hash in engine_hashes:
            copies = self._copies.pop(engine_hash, 0)
            if copies > 1:
                self._copies[engine_hash] = copies - 1
            elif not copies and engine_hash in self._keys:
                gone.append(self._keys.pop(engine_hash))
        self._fold.remove(gone)

    def cleared(self) -> None:
        """The engine's cache is empty."""
        self._keys.clear()
        self._copies.clear()
        self._fold.clear()
        self.orphan_count = 0

    def take_delta(self) -> BlockDelta | None:
        """What changed since the last delta or snapshot, numbered; None where nothing did.

        At most ``MESSAGE_KEY_COUNT_MAX`` keys: what is more comes with the next call."""
        if not self._fold:
            return None
        fold = self._fold.split_off(MESSAGE_KEY_COUNT_MAX)
        self._sequence += 1
        return fold.delta(
            node=self._node,
            boot_epoch=self._boot_epoch,
            first_sequence=self._sequence,
            last_sequence=self._sequence,
        )

    def snapshot_parts(self) -> list[SnapshotPart]:
        """All that is held, changes not yet told included. Send the parts in this order and no
        delta between them; the next delta follows on them."""
        self._fold = Fold()
        keys = list(self._keys.values())
        slices = [
            b"".join(keys[start : start + MESSAGE_KEY_COUNT_MAX])
            for start in range(0, max(len(keys), 1), MESSAGE_KEY_COUNT_MAX)
        ]
        return [
            SnapshotPart(
                node=self._node,
                boot_epoch=self._boot_epoch,
                as_of_sequence=self._sequence,
                part_index=index,
                part_count=len(slices),
                keys=part,
            )
            for index, part in enumerate(slices)
        ]
