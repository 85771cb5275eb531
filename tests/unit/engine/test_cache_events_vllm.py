"""vLLM's own events, as it publishes them, read without a gap."""

import asyncio
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pdd.engine.cache_events import (
    CacheCleared,
    CacheEvent,
    CacheRemoved,
    CacheStored,
    CacheUnknown,
)
from pdd.engine.vllm_cache_events import CacheEventsError, VllmCacheEvents, read_batch

with warnings.catch_warnings():
    # vLLM's own imports warn; here warnings are errors.
    warnings.simplefilter("ignore")
    from vllm.distributed.kv_events import (
        AllBlocksCleared,
        BlockRemoved,
        BlockStored,
        KVEventBatch,
        ZmqEventPublisher,
    )

WAIT_S = 20.0


def block_stored(*hashes: bytes, parent: bytes | None = None, **fields: Any) -> BlockStored:
    defaults: dict[str, Any] = {
        "block_hashes": list(hashes),
        "parent_block_hash": parent,
        "token_ids": list(range(4 * len(hashes))),
        "block_size": 4,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "group_idx": 0,
    }
    return BlockStored(**(defaults | fields))


def read(*events: Any) -> list[CacheEvent]:
    return read_batch(msgspec.msgpack.encode(KVEventBatch(ts=1.0, events=list(events))))


def test_each_kind_of_event_is_read() -> None:
    assert read(
        block_stored(b"a", b"b"),
        BlockRemoved(block_hashes=[b"b"], medium="GPU", group_idx=0),
        AllBlocksCleared(),
    ) == [
        CacheStored(hashes=(b"a", b"b"), parent=None, token_ids=list(range(8))),
        CacheRemoved(hashes=(b"b",)),
        CacheCleared(),
    ]


@pytest.mark.parametrize(
    ("extra_keys", "lora_name", "salt"),
    [
        (None, None, ""),
        ([None, None], None, ""),
        ([("3:abc:",), None], None, "3:abc:"),
        ([("adapter", "3:abc:"), ("adapter",)], "adapter", "3:abc:"),
        ([("adapter",), ("adapter",)], "adapter", ""),
    ],
)
def test_salt_and_adapter_are_those_of_the_first_block(
    extra_keys: Any, lora_name: str | None, salt: str
) -> None:
    (event,) = read(block_stored(b"a", b"b", extra_keys=extra_keys, lora_name=lora_name))
    assert isinstance(event, CacheStored)
    assert (event.cache_salt, event.adapter) == (salt, lora_name or "")


def test_what_another_tier_holds_is_not_in_the_pool() -> None:
    assert read(block_stored(b"a", medium="CPU"), block_stored(b"b", group_idx=1)) == []


@pytest.mark.parametrize(
    "payload", [b"", b"\x93", msgspec.msgpack.encode([1.0, [{"type": "New"}]])]
)
def test_what_cannot_be_read_is_said_to_be_so(payload: bytes) -> None:
    with pytest.raises(CacheEventsError, match="install the vLLM that it was made for"):
        read_batch(payload)


def test_hashes_of_64_bits_are_refused() -> None:
    with pytest.raises(CacheEventsError, match="a block hash is bytes"):
        read(block_stored(7))  # type: ignore[arg-type]


class Follower:
    """A publisher as in vLLM's engine core, and who follows it."""

    def __init__(self, folder: Path, **config: Any) -> None:
        self.events = VllmCacheEvents(folder)
        self.config = {
            key: value
            for key, value in (self.events.config() | config).items()
            if key not in ("enable_kv_cache_events", "publisher")
        }
        self.seen: list[CacheEvent] = []
        self._came = asyncio.Event()

    def notify(self, events: Sequence[CacheEvent]) -> None:
        self.seen.extend(events)
        self._came.set()

    async def until_last(self, event: CacheEvent) -> None:
        async with asyncio.timeout(WAIT_S):
            while not self.seen or self.seen[-1] != event:
                self._came.clear()
                await self._came.wait()


def publish(publisher: ZmqEventPublisher, *numbers: int) -> None:
    for number in numbers:
        removed = BlockRemoved(block_hashes=[number.to_bytes(4, "big")], medium="GPU")
        publisher.publish(KVEventBatch(ts=1.0, events=[removed]))


def removed(number: int) -> CacheRemoved:
    return CacheRemoved(hashes=(number.to_bytes(4, "big"),))


async def published(publisher: ZmqEventPublisher) -> None:
    """Everything given to it has left its queue."""
    while publisher._event_queue.unfinished_tasks:  # noqa: ASYNC110 - vLLM's thread has no event
        await asyncio.sleep(0.01)


async def test_who_subscribes_late_gets_what_it_missed_in_order(tmp_path: Path) -> None:
    follower = Follower(tmp_path)
    publisher = ZmqEventPublisher(0, **follower.config)
    try:
        publish(publisher, *range(5))
        await published(publisher)
        task = asyncio.create_task(follower.events.follow(follower.notify))
        number = 5
        while not follower.seen:  # the first ones may go before the subscription arrives
            publish(publisher, number)
            number += 1
            await asyncio.sleep(0.05)
        await follower.until_last(removed(number - 1))
        assert follower.seen == [removed(index) for index in range(number)]
        task.cancel()
        await asyncio.wait([task])
    finally:
        publisher.shutdown()


async def test_what_vllm_has_forgotten_is_said_to_be_lost(tmp_path: Path) -> None:
    follower = Follower(tmp_path, buffer_steps=3)
    publisher = ZmqEventPublisher(0, **follower.config)
    try:
        publish(publisher, *range(10))
        await published(publisher)
        task = asyncio.create_task(follower.events.follow(follower.notify))
        number, began_s = 10, time.monotonic()
        while not follower.seen:
            assert time.monotonic() - began_s < WAIT_S
            publish(publisher, number)
            number += 1
            await asyncio.sleep(0.05)
        await follower.until_last(removed(number - 1))
        lost, *told = follower.seen
        assert isinstance(lost, CacheUnknown)
        assert "batches 0 to" in lost.reason
        assert told == [removed(index) for index in range(number - len(told), number)]
        task.cancel()
        await asyncio.wait([task])
    finally:
        publisher.shutdown()
