"""What vLLM tells about its prefix cache, followed from its start without a gap.

vLLM's engine core, a process of its own, publishes over ZeroMQ: a PUB socket with numbered batches,
and a ROUTER that repeats the latest ``_REPLAY_BATCH_COUNT`` of them from a number on. Both are
sockets in a folder that only this user can enter.

    batch = msgpack [time, [event, ...], rank]      event = {"type": ..., field: value, ...}

Source: vllm/distributed/kv_events.py and v1/core/block_pool.py, vLLM 0.32.
"""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgpack
import structlog

from pdd.engine.cache_events import (
    CacheCleared,
    CacheEvent,
    CacheListener,
    CacheRemoved,
    CacheStored,
    CacheUnknown,
)

log = structlog.get_logger(__name__)

ENVIRONMENT = {"VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES": "0"}
"""Whole hashes: the 64 bits that are published otherwise could meet in a large pool."""
_REPLAY_BATCH_COUNT = 10_000
"""A batch is an engine step: minutes. Who is further behind has lost events for good."""
_QUEUE_BATCH_COUNT_MAX = 100_000
"""Batches that wait for this process to read; further ones are dropped, and asked for again."""
_REPLAY_TIMEOUT_S = 10.0
_END = (2**64 - 1).to_bytes(8, "big")


class CacheEventsError(Exception):
    """Events of a form that this pdd does not know: vLLM is not of the version it was made for."""


class VllmCacheEvents:
    """One engine's events. ``follow`` may begin before the engine starts."""

    def __init__(self, folder: Path) -> None:
        self._endpoint = f"ipc://{folder}/cache-events"
        self._replay_endpoint = f"ipc://{folder}/cache-replay"
        self._expected = 0

    def config(self) -> dict[str, Any]:
        """For vLLM's ``KVEventsConfig``."""
        return {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": self._endpoint,
            "replay_endpoint": self._replay_endpoint,
            "buffer_steps": _REPLAY_BATCH_COUNT,
            "hwm": _QUEUE_BATCH_COUNT_MAX,
            "max_queue_size": _QUEUE_BATCH_COUNT_MAX,
        }

    async def follow(self, notify: CacheListener) -> None:
        """Tell every event, in order, for ever.

        Raises:
            CacheEventsError: see there.
        """
        import zmq.asyncio

        context = zmq.asyncio.Context()
        events = context.socket(zmq.SUB)
        events.set_hwm(_QUEUE_BATCH_COUNT_MAX)
        events.subscribe(b"")
        events.connect(self._endpoint)
        try:
            while True:
                _topic, number, payload = await events.recv_multipart()
                sequence = int.from_bytes(number, "big")
                if sequence > self._expected:
                    await self._catch_up(context, sequence, notify)
                if sequence == self._expected:
                    self._take(sequence, payload, notify)
        finally:
            context.destroy(linger=0)

    async def _catch_up(self, context: Any, sequence: int, notify: CacheListener) -> None:
        """Have everything before ``sequence`` told again, as far as vLLM remembers it."""
        import zmq

        log.info("cache_events_missed", first=self._expected, count=sequence - self._expected)
        socket = context.socket(zmq.DEALER)
        socket.connect(self._replay_endpoint)
        try:
            async with asyncio.timeout(_REPLAY_TIMEOUT_S):
                await socket.send_multipart([b"", self._expected.to_bytes(8, "big")])
                while True:
                    _, _topic, number, payload = await socket.recv_multipart()
                    told = int.from_bytes(number, "big")
                    if number == _END or told >= sequence:
                        break
                    if told > self._expected:
                        self._give_up(told, notify)
                    self._take(told, payload, notify)
        except TimeoutError:
            log.warning("cache_events_not_repeated", timeout_s=_REPLAY_TIMEOUT_S)
        finally:
            socket.close(linger=0)
        if self._expected < sequence:
            self._give_up(sequence, notify)

    def _give_up(self, sequence: int, notify: CacheListener) -> None:
        """What is missing before ``sequence`` cannot be had."""
        missing = f"batches {self._expected} to {sequence - 1} of the engine's events are lost"
        self._expected = sequence
        notify([CacheUnknown(reason=missing)])

    def _take(self, sequence: int, payload: bytes, notify: CacheListener) -> None:
        self._expected = sequence + 1
        notify(read_batch(payload))


def read_batch(payload: bytes) -> list[CacheEvent]:
    """The events in one batch.

    Raises:
        CacheEventsError: see there.
    """
    try:
        _time, events, *_rank = msgpack.unpackb(payload)
        read = [_READERS[event["type"]](event) for event in events if _is_of_the_pool(event)]
    except (ValueError, KeyError, TypeError, msgpack.UnpackException) as error:
        raise CacheEventsError(
            f"vLLM published a KV event that this pdd cannot read ({type(error).__name__}: "
            f"{error}): install the vLLM that it was made for"
        ) from error
    return [event for event in read if event is not None]


def _is_of_the_pool(event: dict[str, Any]) -> bool:
    """The only KV cache group (the connector refuses others), and not what an offloader holds."""
    return event.get("group_idx") in (None, 0) and event.get("medium") in (None, "GPU")


def _stored(event: dict[str, Any]) -> CacheEvent | None:
    hashes = _hashes(event)
    if not hashes:
        return None
    adapter = event["lora_name"] or ""
    return CacheStored(
        hashes=hashes,
        parent=event["parent_block_hash"],
        token_ids=event["token_ids"],
        cache_salt=_salt(event, adapter),
        adapter=adapter,
    )


def _salt(event: dict[str, Any], adapter: str) -> str:
    """Of a prompt's first block: its keys are adapter and salt, each where there is one. Text
    prompts have no others."""
    keys: Sequence[Any] = (event.get("extra_keys") or [None])[0] or ()
    rest = list(keys)
    if adapter and rest and rest[0] == adapter:
        del rest[0]
    if not rest or event["parent_block_hash"] is not None:
        return ""
    salt = rest[0]
    if not isinstance(salt, str):
        raise TypeError(f"a cache salt is text, not {salt!r}")
    return salt


def _removed(event: dict[str, Any]) -> CacheEvent | None:
    return CacheRemoved(hashes=_hashes(event))


def _hashes(event: dict[str, Any]) -> tuple[bytes, ...]:
    hashes = tuple(event["block_hashes"])
    for one in hashes:
        if not isinstance(one, bytes):
            raise TypeError(f"a block hash is bytes, not {one!r}")
    return hashes


_READERS: dict[str, Callable[[dict[str, Any]], CacheEvent | None]] = {
    "BlockStored": _stored,
    "BlockRemoved": _removed,
    "AllBlocksCleared": lambda event: CacheCleared(),
}
