"""Whose cache is known, and up to which of its deltas."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class SnapshotProgress:
    """Parts of a node's snapshot collect under a slot of their own until the last one is here."""

    as_of_sequence: int
    part_count: int
    next_part_index: int
    slot: int


@dataclass(slots=True, kw_only=True)
class NodeRecord:
    """One node's life in the directory."""

    name: str
    uuid: str
    boot_epoch: int
    block_count: int
    slot: int
    next_sequence: int = 1
    has_gap: bool = False
    """A delta was missed. What is known is still used, and later deltas still count; a snapshot
    heals it."""
    is_soft_state_lost: bool = False
    """This replica was restored without block entries. Not part of the replicated state."""
    snapshot: SnapshotProgress | None = field(default=None)
