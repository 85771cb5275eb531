"""What the WAL's records say: msgpack arrays by position.

    SEGMENT_START = [format, cluster_id, node, voters_hash, sequence, previous_chain, size_bytes,
                     [term, vote, commit_index], [snapshot index, snapshot term]]
    BATCH         = [marker | nil, entries, [term, vote, commit_index] | nil]
    marker        = [index, term, MarkerKind]

Formats: 1 (first).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import msgpack

from pdd.raft.codec import DecodeError, unpack_entries, unpack_list
from pdd.raft.values import Entry, HardState, NodeId, SnapshotMeta
from pdd.replication.errors import StorageVersionError

FORMAT = 1


class MarkerKind(IntEnum):
    """Numbers are on disk: never reuse one."""

    LOCAL = 1
    """Taken of the own state: the log continues after it."""
    INSTALLED = 2
    """Received from the leader: it replaces the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    meta: SnapshotMeta
    kind: MarkerKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Written and replayed as one: marker first, then entries, then hard state."""

    marker: Marker | None = None
    entries: Sequence[Entry] = ()
    hard_state: HardState | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageIdentity:
    """Whose disk this is."""

    cluster_id: str
    node: NodeId
    voters_hash: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentStart:
    """Repeats what older segments said, so that they can be dropped."""

    identity: StorageIdentity
    sequence: int
    previous_chain: int
    size_bytes: int
    hard_state: HardState
    snapshot: SnapshotMeta


def encode_start(start: SegmentStart) -> bytes:
    identity = start.identity
    payload: bytes = msgpack.packb(
        [
            FORMAT,
            identity.cluster_id,
            identity.node,
            identity.voters_hash,
            start.sequence,
            start.previous_chain,
            start.size_bytes,
            _pack_hard_state(start.hard_state),
            [start.snapshot.index, start.snapshot.term],
        ]
    )
    return payload


def decode_start(payload: bytes) -> SegmentStart:
    """The checksum has passed, so an odd shape is another release's, not damage.

    Raises: StorageVersionError.
    """
    try:
        values = unpack_list(payload)
        if values[0] != FORMAT:
            raise StorageVersionError(f"WAL format {values[0]}; this release reads {FORMAT}")
        _, cluster_id, node, voters, sequence, chain, size_bytes, hard_state, snapshot = values
        return SegmentStart(
            identity=StorageIdentity(cluster_id=cluster_id, node=node, voters_hash=voters),
            sequence=sequence,
            previous_chain=chain,
            size_bytes=size_bytes,
            hard_state=_unpack_hard_state(hard_state),
            snapshot=SnapshotMeta(index=snapshot[0], term=snapshot[1]),
        )
    except (DecodeError, ValueError, TypeError, IndexError) as error:
        raise StorageVersionError("WAL segment start of an unknown shape") from error


def encode_batch(batch: Batch) -> bytes:
    marker = batch.marker
    payload: bytes = msgpack.packb(
        [
            [marker.meta.index, marker.meta.term, int(marker.kind)] if marker else None,
            batch.entries,
            _pack_hard_state(batch.hard_state) if batch.hard_state else None,
        ]
    )
    return payload


def decode_batch(payload: bytes) -> Batch:
    """Raises: StorageVersionError."""
    try:
        marker, entries, hard_state = unpack_list(payload)
        return Batch(
            marker=_unpack_marker(marker) if marker is not None else None,
            entries=unpack_entries(entries),
            hard_state=_unpack_hard_state(hard_state) if hard_state is not None else None,
        )
    except (DecodeError, ValueError, TypeError) as error:
        raise StorageVersionError("WAL batch of an unknown shape") from error


def _pack_hard_state(hard_state: HardState) -> list[Any]:
    return [hard_state.term, hard_state.vote, hard_state.commit_index]


def _unpack_hard_state(values: Any) -> HardState:
    term, vote, commit_index = values
    return HardState(term=term, vote=vote, commit_index=commit_index)


def _unpack_marker(values: Any) -> Marker:
    index, term, kind = values
    return Marker(meta=SnapshotMeta(index=index, term=term), kind=MarkerKind(kind))
