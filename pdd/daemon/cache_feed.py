"""Tells schedulers what this node's prefix cache holds.

    engine ──events──> NodeMirror ──deltas, every _INTERVAL_S──> every attached scheduler
                                  ──snapshot, when one asks───> that scheduler

One mirror and one numbering for all schedulers: whoever misses a delta, or comes later, sees it at
the next number and asks for a snapshot. When the engine's events are lost for good, or contradict
the pool's size, nothing is known any more: the mirror is emptied at once and the engine's cache as
soon as no sequence uses it.
"""

import asyncio
from collections.abc import Sequence

import structlog

from pdd.control.scheduler_client import SchedulerLink
from pdd.core.identity import NodeIdentity
from pdd.daemon.prompt_keys import kv_layout
from pdd.directory.entries import MESSAGE_KEY_COUNT_MAX, BlockDelta, SnapshotPart
from pdd.directory.keys import ChainScope
from pdd.directory.mirror import NodeMirror
from pdd.engine.cache_events import (
    CacheCleared,
    CacheEvent,
    CacheRemoved,
    CacheStored,
    CacheUnknown,
)
from pdd.engine.port import Engine, EngineInfo
from pdd.rpc.v1 import cluster_pb2

log = structlog.get_logger(__name__)

_INTERVAL_S = 0.05
"""Changes of so long travel together. With as much at the scheduler an index is at most some
tenths of a second behind its nodes."""
_RESET_PAUSE_S = 0.5


class CacheFeed:
    """Construct it once the engine has started and before its first job; ``run`` it."""

    def __init__(
        self, *, engine: Engine, info: EngineInfo, identity: NodeIdentity, model: str
    ) -> None:
        self._engine = engine
        self._info = info
        self._model = model
        self._layout = kv_layout(info.fingerprint)
        self._mirror = NodeMirror(
            node=identity.name, boot_epoch=identity.boot_epoch, block_count=info.block_count
        )
        self._links: dict[SchedulerLink, None] = {}
        self._changed = asyncio.Event()
        self._unknown_reason = ""
        """Why the engine has to empty its cache; until then its events mean nothing."""
        engine.on_cache_events(self._on_events)

    def __len__(self) -> int:
        """Distinct blocks that the cache is known to hold."""
        return len(self._mirror)

    def attached(self, link: SchedulerLink) -> None:
        """A scheduler's stream begins: with this it sees whether it knows everything."""
        self._flush()  # to the others: all are told the same deltas
        self._links[link] = None
        position = cluster_pb2.CachePosition(sequence=self._mirror.last_sequence)
        link.send(cluster_pb2.NodeMessage(cache_position=position))

    def lost(self, link: SchedulerLink) -> None:
        """Its stream is over. Idempotent."""
        self._links.pop(link, None)

    def send_snapshot(self, link: SchedulerLink) -> None:
        """A scheduler asks for everything."""
        self._flush()
        for part in self._mirror.snapshot_parts():
            link.send(cluster_pb2.NodeMessage(cache_snapshot=_part_to_proto(part)))

    async def run(self) -> None:
        """Send what changes, for ever."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            if self._unknown_reason:
                await self._reset()
            self._flush()
            await asyncio.sleep(_INTERVAL_S)

    def _on_events(self, events: Sequence[CacheEvent]) -> None:
        for event in events:
            self._take(event)
        if self._mirror.is_beyond_repair and not self._unknown_reason:
            self._forget(
                f"{len(self._mirror)} blocks and their copies in a pool of {self._info.block_count}"
            )
        self._changed.set()
        if self._mirror.pending_count >= MESSAGE_KEY_COUNT_MAX:
            self._flush()

    def _take(self, event: CacheEvent) -> None:
        match event:
            case CacheUnknown():
                self._forget(event.reason)
            case _ if self._unknown_reason:
                pass  # told of a cache that is to be emptied
            case CacheStored():
                scope = ChainScope(
                    block_size_tokens=self._info.block_size,
                    model=self._model,
                    kv_layout=self._layout,
                    tenant_salt=event.cache_salt.encode(),
                    adapter=event.adapter,
                )
                self._mirror.stored(
                    event.hashes, parent=event.parent, token_ids=event.token_ids, scope=scope
                )
            case CacheRemoved():
                self._mirror.removed(event.hashes)
            case CacheCleared():
                self._mirror.cleared()

    def _forget(self, reason: str) -> None:
        log.warning(
            "cache_events_lost",
            reason=reason,
            action="the engine's prefix cache is emptied as soon as nothing uses it",
        )
        self._unknown_reason = reason
        self._mirror.cleared()

    async def _reset(self) -> None:
        """Until the cache is empty the node counts as one that holds nothing."""
        self._flush()
        while not await self._engine.reset_cache():  # noqa: ASYNC110 - no engine tells when
            await asyncio.sleep(_RESET_PAUSE_S)
        # Events of before may still be on their way; what they store is known or behind something
        # unknown, and what they remove was never told.
        self._unknown_reason = ""
        log.info("cache_reset")

    def _flush(self) -> None:
        while (delta := self._mirror.take_delta()) is not None:
            message = cluster_pb2.NodeMessage(cache_delta=_delta_to_proto(delta))
            for link in self._links:
                link.send(message)


def _delta_to_proto(delta: BlockDelta) -> cluster_pb2.CacheDelta:
    return cluster_pb2.CacheDelta(
        first_sequence=delta.first_sequence,
        last_sequence=delta.last_sequence,
        cleared=delta.is_cleared,
        removed=delta.removed,
        stored=delta.stored,
    )


def _part_to_proto(part: SnapshotPart) -> cluster_pb2.CacheSnapshotPart:
    return cluster_pb2.CacheSnapshotPart(
        as_of_sequence=part.as_of_sequence,
        part_index=part.part_index,
        part_count=part.part_count,
        keys=part.keys,
    )
