"""Where every running sequence is: nodes, ticket, blocks per rank, owner, watermark.

    owner   PREFILL ──taken over──> DECODE          path `disaggregated`
            DECODE                                  path `local`: no prefill node
            NONE    the owner's life ended; the scheduler places the request again

A late operation, one whose ticket is not the current one, changes nothing and says so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import msgpack
import xxhash

from pdd.directory.entries import (
    NodeLife,
    RankBlocks,
    SequenceAdvanced,
    SequenceEnded,
    SequenceGrew,
    SequenceOperation,
    SequenceStarted,
    SequenceTakenOver,
)
from pdd.directory.status import Status


class Owner(IntEnum):
    """Who answers for the sequence's KV. Numbers are in snapshots: never reuse one."""

    NONE = 0
    PREFILL = 1
    DECODE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceRecord:
    request_id: str
    ticket: str
    prefill: NodeLife | None
    decode: NodeLife | None
    owner: Owner
    rank_blocks: RankBlocks
    """On the decode node."""
    watermark_tokens: int
    started_at_ms: int
    """Unix time by the leader."""

    @property
    def owner_life(self) -> NodeLife | None:
        if self.owner is Owner.PREFILL:
            return self.prefill
        return self.decode if self.owner is Owner.DECODE else None

    def fields(self) -> list[Any]:
        return [getattr(self, name) for name in self.__slots__]


class SequenceTable:
    """Bounded by ``max_sequence_count``: one more is refused with `Status.FULL`, and runs all the
    same; it only cannot be located, nor recovered from here."""

    def __init__(self, *, max_sequence_count: int) -> None:
        self.max_sequence_count = max_sequence_count
        self._records: dict[str, SequenceRecord] = {}
        self._by_node: dict[str, dict[str, None]] = {}
        self._hash = 0

    def __len__(self) -> int:
        return len(self._records)

    @property
    def hash(self) -> int:
        """Sum over all records, mod 2**64."""
        return self._hash

    def get(self, request_id: str) -> SequenceRecord | None:
        return self._records.get(request_id)

    def on_node(self, node: str) -> list[SequenceRecord]:
        """Every sequence that has this node as prefill or decode node, oldest placement first."""
        return [self._records[request_id] for request_id in self._by_node.get(node, ())]

    def without_owner(self) -> list[SequenceRecord]:
        """Those that the scheduler must place again."""
        return [record for record in self._records.values() if record.owner is Owner.NONE]

    def apply(self, operation: SequenceOperation, *, leader_time_ms: int) -> Status:
        record = self._records.get(operation.request_id)
        if isinstance(operation, SequenceStarted):
            return self._start(operation, record, leader_time_ms)
        if record is None:
            return Status.UNKNOWN
        if isinstance(operation, SequenceEnded):
            self._drop(record)
        elif isinstance(operation, SequenceAdvanced):
            if operation.watermark_tokens <= record.watermark_tokens:
                return Status.DUPLICATE
            self._put(replace(record, watermark_tokens=operation.watermark_tokens))
        elif operation.ticket != record.ticket or record.decode is None:
            return Status.STALE
        elif isinstance(operation, SequenceTakenOver):
            if record.owner is Owner.DECODE:
                return Status.DUPLICATE
            self._put(replace(record, owner=Owner.DECODE))
        else:
            return self._grow(operation, record)
        return Status.APPLIED

    def end_life(self, node: str) -> None:
        """A node's life ended: what it owned has no owner, and its blocks are gone."""
        for record in self.on_node(node):
            was_owner = record.owner_life is not None and record.owner_life[0] == node
            changed = replace(record, owner=Owner.NONE if was_owner else record.owner)
            if record.prefill is not None and record.prefill[0] == node:
                changed = replace(changed, prefill=None)
            if record.decode is not None and record.decode[0] == node:
                changed = replace(changed, decode=None, rank_blocks=())
            self._put(changed)

    def _start(
        self, operation: SequenceStarted, record: SequenceRecord | None, leader_time_ms: int
    ) -> Status:
        if record is None and len(self._records) >= self.max_sequence_count:
            return Status.FULL
        if record is not None and record.ticket == operation.ticket:
            return Status.DUPLICATE
        self._put(
            SequenceRecord(
                request_id=operation.request_id,
                ticket=operation.ticket,
                prefill=operation.prefill,
                decode=operation.decode,
                owner=Owner.DECODE if operation.prefill is None else Owner.PREFILL,
                rank_blocks=operation.rank_blocks,
                watermark_tokens=0 if record is None else record.watermark_tokens,
                started_at_ms=leader_time_ms if record is None else record.started_at_ms,
            )
        )
        return Status.APPLIED

    def _grow(self, operation: SequenceGrew, record: SequenceRecord) -> Status:
        old, new = record.rank_blocks, operation.rank_blocks
        if old and len(old) != len(new):
            return Status.STALE  # another number of ranks than this ticket was given for
        grown = tuple(
            (*before, *more) for before, more in zip(old or ((),) * len(new), new, strict=True)
        )
        self._put(replace(record, rank_blocks=grown))
        return Status.APPLIED

    def _put(self, record: SequenceRecord) -> None:
        old = self._records.get(record.request_id)
        if old is not None:
            self._unlink(old)
        self._records[record.request_id] = record
        for node in _nodes_of(record):
            self._by_node.setdefault(node, {})[record.request_id] = None
        self._hash = (self._hash + _record_hash(record)) % 2**64

    def _drop(self, record: SequenceRecord) -> None:
        self._unlink(record)
        del self._records[record.request_id]

    def _unlink(self, record: SequenceRecord) -> None:
        self._hash = (self._hash - _record_hash(record)) % 2**64
        for node in _nodes_of(record):
            requests = self._by_node[node]
            del requests[record.request_id]
            if not requests:
                del self._by_node[node]

    def export(self) -> list[list[Any]]:
        return [record.fields() for record in self._records.values()]

    def load(self, rows: list[list[Any]]) -> None:
        """Into an empty table, from `export`."""
        for fields in rows:
            values = dict(zip(SequenceRecord.__slots__, fields, strict=True))
            values["owner"] = Owner(values["owner"])
            for side in ("prefill", "decode"):
                values[side] = None if values[side] is None else tuple(values[side])
            values["rank_blocks"] = tuple(tuple(rank) for rank in values["rank_blocks"])
            self._put(SequenceRecord(**values))


def _nodes_of(record: SequenceRecord) -> dict[str, None]:
    return dict.fromkeys(life[0] for life in (record.prefill, record.decode) if life is not None)


def _record_hash(record: SequenceRecord) -> int:
    return xxhash.xxh3_64_intdigest(msgpack.packb(record.fields()))
