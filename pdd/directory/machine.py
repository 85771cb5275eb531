"""The block directory as a replicated state machine (`pdd.raft.machine.StateMachine`).

    apply(entry)  ->  [[status, ...] per operation]     deterministic
    longest_prefixes, holders                           read only; any replica may answer

Nodes count their deltas from 1 in every life. The next expected one is applied; one known already
is a duplicate; one that comes too early is applied too, but leaves a *gap*: every delta is a plain
fact about the keys it names, so later ones make the picture better, not worse, and the snapshot
that is asked for (`nodes_wanting_snapshot`) heals what was missed. A higher boot epoch, or another
uuid under the same name, voids everything that was known of the node in the same step.

With ``has_blocks_in_snapshot`` off, block entries are *soft*: they are left out of snapshots and of
the state hash, and a replica restored from one wants a snapshot of every node. Everything else,
sequence numbers included, is hard state in either case.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgpack
import numpy as np
import xxhash

from pdd.directory.entries import (
    BlockDelta,
    DirectoryEntry,
    EntryError,
    NodeJoined,
    NodeLeft,
    Operation,
    SnapshotPart,
)
from pdd.directory.index import BlockIndex
from pdd.directory.keys import BlockKey
from pdd.directory.nodes import NodeRecord, SnapshotProgress
from pdd.directory.status import Status
from pdd.directory.table import U32, U64, as_words

SNAPSHOT_VERSION = 1
"""History: 1 = first."""
NODE_COUNT_MAX = 8192
"""A cell has some hundreds of nodes. Each needs up to two slots at a time, of 32,767."""
_SWEEP_ROWS = 16_384
"""Rows tidied with each entry, about 0.2 ms, and as many more per key in it."""
_SWEEP_ROWS_PER_KEY = 4


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """Blocks from the start of a chain that each node holds without a hole; 0 is left out."""

    by_node: dict[str, int]

    @property
    def block_count(self) -> int:
        """The longest of them."""
        return max(self.by_node.values(), default=0)


class DirectoryMachine:
    """Bounds: `NODE_COUNT_MAX` nodes, ``max_key_count`` distinct blocks (further ones are not
    recorded and counted per node)."""

    def __init__(
        self,
        *,
        max_key_count: int,
        has_blocks_in_snapshot: bool = True,
    ) -> None:
        self._max_key_count = max_key_count
        self._has_blocks_in_snapshot = has_blocks_in_snapshot
        self._begin()

    def _begin(self) -> None:
        self._index = BlockIndex(max_key_count=self._max_key_count)
        self._nodes: dict[str, NodeRecord] = {}
        self._by_slot: dict[int, NodeRecord] = {}
        self._batch = _Batch(self._index)

    # --- the log -----------------------------------------------------------------------------

    def apply(self, index: int, data: bytes) -> bytes:
        """The entry's statuses as msgpack ``[[status, ...], fault or None]``, one per operation."""
        try:
            entry = DirectoryEntry.decode(data)
        except EntryError as error:
            return _result([], fault=f"entry {index}: {error}")
        statuses = [int(self._apply_one(operation)) for operation in entry.operations]
        key_count = self._batch.flush()
        self._index.sweep(_SWEEP_ROWS + _SWEEP_ROWS_PER_KEY * key_count)
        return _result(statuses, fault=None)

    def _apply_one(self, operation: Operation) -> Status:
        if isinstance(operation, BlockDelta):
            return self._apply_delta(operation)
        if isinstance(operation, SnapshotPart):
            return self._apply_snapshot_part(operation)
        if isinstance(operation, NodeJoined):
            return self._join(operation)
        return self._leave(operation)

    def _apply_delta(self, delta: BlockDelta) -> Status:
        node = self._nodes.get(delta.node)
        if node is None or delta.boot_epoch > node.boot_epoch:
            return Status.UNKNOWN
        if delta.boot_epoch < node.boot_epoch:
            return Status.STALE
        if delta.last_sequence < node.next_sequence:
            return Status.DUPLICATE
        if delta.first_sequence > node.next_sequence:
            node.has_gap = True
        node.next_sequence = delta.last_sequence + 1
        if node.snapshot is not None:
            # A part still to come could bring back what this delta removes.
            self._drop_snapshot(node)
        if delta.is_cleared:
            self._renew_slot(node)
            # What was missed before the clear no longer matters, and what came after it is here.
            node.has_gap = node.is_soft_state_lost = False
        self._batch.add(node.slot, removed=delta.removed, stored=delta.stored)
        return Status.GAP if node.has_gap else Status.APPLIED

    def _apply_snapshot_part(self, part: SnapshotPart) -> Status:
        node = self._nodes.get(part.node)
        if node is None or part.boot_epoch > node.boot_epoch:
            return Status.UNKNOWN
        if part.boot_epoch < node.boot_epoch or part.as_of_sequence < node.next_sequence - 1:
            return Status.STALE
        if part.part_index == 0:
            if node.snapshot is not None:
                self._close(node.snapshot.slot)
            node.snapshot = SnapshotProgress(
                as_of_sequence=part.as_of_sequence,
                part_count=part.part_count,
                next_part_index=0,
                slot=self._index.open_slot(),
            )
        progress = node.snapshot
        expected = None if progress is None else _header(progress)
        if progress is None or expected != (part.as_of_sequence, part.part_count, part.part_index):
            if progress is not None:
                self._drop_snapshot(node)
            return Status.SNAPSHOT_DROPPED
        self._batch.add(progress.slot, removed=b"", stored=part.keys)
        progress.next_part_index += 1
        if progress.next_part_index == progress.part_count:
            self._take_over(node, progress)
        return Status.APPLIED

    def _take_over(self, node: NodeRecord, progress: SnapshotProgress) -> None:
        """The snapshot is whole: it replaces what was known, in one step."""
        self._close(node.slot)
        node.slot, node.snapshot = progress.slot, None
        self._by_slot[node.slot] = node
        node.next_sequence = progress.as_of_sequence + 1
        node.has_gap = node.is_soft_state_lost = False

    def _join(self, joined: NodeJoined) -> Status:
        node = self._nodes.get(joined.node)
        if node is not None and node.uuid == joined.uuid:
            if joined.boot_epoch < node.boot_epoch:
                return Status.STALE
            if joined.boot_epoch == node.boot_epoch:
                if node.snapshot is None:
                    return Status.DUPLICATE
                # Its parts came in a stream that broke: there will be no more of them.
                self._drop_snapshot(node)
                return Status.GAP
        if node is None and len(self._nodes) == NODE_COUNT_MAX:
            return Status.FULL
        if node is not None:
            self._forget(node)
        slot = self._index.open_slot()
        node = NodeRecord(
            name=joined.node,
            uuid=joined.uuid,
            boot_epoch=joined.boot_epoch,
            block_count=joined.block_count,
            slot=slot,
        )
        self._nodes[node.name] = self._by_slot[slot] = node
        return Status.APPLIED

    def _leave(self, left: NodeLeft) -> Status:
        node = self._nodes.get(left.node)
        if node is None:
            return Status.UNKNOWN
        if left.boot_epoch != node.boot_epoch:
            return Status.STALE
        self._forget(node)
        return Status.APPLIED

    def _forget(self, node: NodeRecord) -> None:
        if node.snapshot is not None:
            self._drop_snapshot(node)
        self._close(node.slot)
        del self._nodes[node.name]

    def _renew_slot(self, node: NodeRecord) -> None:
        self._close(node.slot)
        node.slot = self._index.open_slot()
        self._by_slot[node.slot] = node

    def _drop_snapshot(self, node: NodeRecord) -> None:
        assert node.snapshot is not None
        self._close(node.snapshot.slot)
        node.snapshot = None
        node.has_gap = True

    def _close(self, slot: int) -> None:
        self._batch.flush()  # what is pending for the slot must not land in its next life
        self._by_slot.pop(slot, None)
        self._index.close_slot(slot)

    # --- questions ---------------------------------------------------------------------------

    def longest_prefixes(self, keys: bytes) -> PrefixMatch:
        """For a chain of joined keys, how many leading blocks each node holds."""
        if not keys:
            return PrefixMatch({})
        alive = self._by_slot
        by_slot = self._index.longest_prefixes(as_words(keys))
        by_node = {alive[slot].name: held for slot, held in by_slot.items() if slot in alive}
        return PrefixMatch(by_node)

    def holders(self, key: BlockKey) -> tuple[str, ...]:
        """The nodes that hold one block, by name, whatever they hold of its prefix."""
        slots = self._index.slots_of(as_words(key))
        return tuple(sorted(self._by_slot[slot].name for slot in slots if slot in self._by_slot))

    def nodes_wanting_snapshot(self) -> list[str]:
        """Names in order of joining. Not those whose snapshot is on its way. The driver asks each
        at most once at a time, with a pause that grows, so that a node that cannot answer well
        does not turn this into a loop."""
        return [
            node.name
            for node in self._nodes.values()
            if node.snapshot is None
            and (
                node.has_gap
                or node.is_soft_state_lost
                # More than its pool can hold: evictions were missed.
                or self._index.held_count(node.slot) > node.block_count
            )
        ]

    def note_lost(self, node: str) -> None:
        """What a node holds is not known here, though other replicas may: it wants a snapshot."""
        self._nodes[node].is_soft_state_lost = True

    def is_known(self, node: str) -> bool:
        """Whether what a node holds is known here, but for what it is still to tell."""
        record = self._nodes.get(node)
        return record is not None and not record.is_soft_state_lost

    def boot_epoch(self, node: str) -> int | None:
        """The life that is known of a node; None where none is."""
        record = self._nodes.get(node)
        return None if record is None else record.boot_epoch

    def held_count(self, node: str) -> int:
        """Blocks known of a node."""
        return self._index.held_count(self._nodes[node].slot)

    def refused_count(self, node: str) -> int:
        """Blocks of a node that were not recorded because ``max_key_count`` was reached."""
        return self._index.refused_count(self._nodes[node].slot)

    @property
    def unrecorded_count(self) -> int:
        """The same of all nodes that are known."""
        return sum(self._index.refused_count(node.slot) for node in self._nodes.values())

    def next_sequence(self, node: str) -> int:
        """Of the delta that is expected from a node."""
        return self._nodes[node].next_sequence

    @property
    def key_count(self) -> int:
        """Distinct keys with a record, those not yet tidied away included."""
        return self._index.key_count

    # --- replication -------------------------------------------------------------------------

    def state_hash(self) -> bytes:
        """16 bytes over the hard state, kept up to date by `apply`; here only nodes are walked."""
        digest = xxhash.xxh3_128()
        for name in sorted(self._nodes):
            digest.update(msgpack.packb(self._node_fields(self._nodes[name])))
        return digest.digest()

    def _node_fields(self, node: NodeRecord) -> list[Any]:
        fields: list[Any] = [
            *(node.name, node.uuid, node.boot_epoch, node.block_count),
            *(node.next_sequence, node.has_gap),
            None if node.snapshot is None else list(_header(node.snapshot)),
        ]
        if self._has_blocks_in_snapshot:
            slots = [node.slot] if node.snapshot is None else [node.slot, node.snapshot.slot]
            for slot in slots:
                fields += (self._index.held_count(slot), self._index.held_hash(slot))
        return fields

    def snapshot(self) -> bytes:
        """The whole state; about 20 bytes per block and 4 more per holder where those are in."""
        keys, held = b"", {}
        if self._has_blocks_in_snapshot:
            keys, by_slot = self._index.export()
            held = dict(by_slot)
        nodes = []
        for name in self._nodes:  # in order of joining
            node = self._nodes[name]
            shadow = None if node.snapshot is None else held.get(node.snapshot.slot, b"")
            nodes.append([self._node_fields(node)[:7], held.get(node.slot, b""), shadow])
        packed: bytes = msgpack.packb(
            [
                SNAPSHOT_VERSION,
                self._has_blocks_in_snapshot,
                keys,
                nodes,
            ]
        )
        return packed

    def restore(self, data: bytes) -> None:
        """Replace the whole state.

        Raises:
            EntryError: no snapshot of a version known here, or one made with the other
                ``has_blocks_in_snapshot``; nothing was changed.
        """
        try:
            fields = msgpack.unpackb(data)
            version, has_blocks = fields[:2]
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise EntryError(f"no directory snapshot: {error}") from error
        if version != SNAPSHOT_VERSION:
            raise EntryError(
                f"directory snapshot of version {version}, this pdd reads {SNAPSHOT_VERSION}"
            )
        if has_blocks is not self._has_blocks_in_snapshot:
            raise EntryError(
                f"directory snapshot with has_blocks_in_snapshot={has_blocks}, this replica has "
                f"{self._has_blocks_in_snapshot}: all replicas of a cell must agree on it"
            )
        fresh = DirectoryMachine(
            max_key_count=self._max_key_count,
            has_blocks_in_snapshot=has_blocks,
        )
        fresh._load(*fields[2:])
        self.__dict__.update(fresh.__dict__)

    def _load(self, keys: bytes, nodes: list[Any]) -> None:
        words = as_words(keys)
        for (name, uuid, boot_epoch, block_count, next_sequence, has_gap, header), *held in nodes:
            node = NodeRecord(
                name=name,
                uuid=uuid,
                boot_epoch=boot_epoch,
                block_count=block_count,
                slot=self._index.open_slot(),
                next_sequence=next_sequence,
                has_gap=has_gap,
                is_soft_state_lost=not self._has_blocks_in_snapshot,
            )
            self._nodes[name] = self._by_slot[node.slot] = node
            self._load_slot(node.slot, words, held[0])
            if header is not None:
                as_of_sequence, part_count, next_part_index = header
                node.snapshot = SnapshotProgress(
                    as_of_sequence=as_of_sequence,
                    part_count=part_count,
                    next_part_index=next_part_index,
                    slot=self._index.open_slot(),
                )
                self._load_slot(node.snapshot.slot, words, held[1])

    def _load_slot(self, slot: int, words: U64, positions: bytes) -> None:
        where = np.frombuffer(positions, dtype=np.uint32)
        self._index.store(words[where], np.full(len(where), slot, dtype=np.uint32))


class _Batch:
    """Removals and stores of many nodes, applied together: numpy is slow on small arrays.

    Each slot is in at most once, removed before stored; different slots do not touch each other.
    """

    def __init__(self, index: BlockIndex) -> None:
        self._index = index
        self._removed: dict[int, bytes] = {}
        self._stored: dict[int, bytes] = {}
        self._key_count = 0

    def add(self, slot: int, *, removed: bytes, stored: bytes) -> None:
        if slot in self._stored or slot in self._removed:
            self._write()
        if removed:
            self._removed[slot] = removed
        if stored:
            self._stored[slot] = stored

    def flush(self) -> int:
        """Apply what is pending; keys since the last call of this."""
        self._write()
        count, self._key_count = self._key_count, 0
        return count

    def _write(self) -> None:
        for pending, write in (
            (self._removed, self._index.remove),
            (self._stored, self._index.store),
        ):
            if pending:
                self._key_count += _write_all(pending, write)
                pending.clear()


def _write_all(pending: dict[int, bytes], write: Callable[[U64, U32], None]) -> int:
    keys = as_words(b"".join(pending.values()))
    counts = [len(part) // 16 for part in pending.values()]
    write(keys, np.repeat(np.fromiter(pending, dtype=np.uint32, count=len(pending)), counts))
    return len(keys)


def _header(progress: SnapshotProgress) -> tuple[int, int, int]:
    return progress.as_of_sequence, progress.part_count, progress.next_part_index


def _result(statuses: list[int], *, fault: str | None) -> bytes:
    packed: bytes = msgpack.packb([statuses, fault])
    return packed


def read_result(result: bytes) -> list[Status]:
    """The statuses in what `DirectoryMachine.apply` answered.

    Raises:
        EntryError: the entry was refused as a whole.
    """
    statuses, fault = msgpack.unpackb(result)
    if fault is not None:
        raise EntryError(fault)
    return [Status(status) for status in statuses]
