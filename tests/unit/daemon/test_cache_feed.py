"""From an engine's cache events to the scheduler's decisions, over real streams."""

import asyncio
from collections.abc import Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from pdd.control.scheduler_client import SchedulerLink
from pdd.core.identity import NodeName
from pdd.core.requests import DEFAULT_TENANT
from pdd.daemon.prompt_keys import PromptKeys
from pdd.directory.entries import MESSAGE_KEY_COUNT_MAX
from pdd.engine.cache_events import (
    CacheCleared,
    CacheRemoved,
    CacheStored,
    CacheUnknown,
)
from pdd.rpc.v1 import cluster_pb2
from pdd.scheduler.prefixes import Chain
from tests.builders import make_request
from tests.unit.daemon.fake_engine import INFO
from tests.unit.daemon.grpc_cluster import (
    MODEL,
    GrpcCluster,
    Node,
    Scheduler,
    grpc_cluster,
)
from tests.waiting import until

BLOCK = INFO.block_size


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with capture_logs():
        yield


def keys_of(block_count: int, *, first: int = 0, salt: str = DEFAULT_TENANT) -> bytes:
    """The keys that the scheduler computes for a prompt of ascending tokens."""
    prompt_keys = PromptKeys(model=MODEL)
    prompt_keys.fit(block_size_tokens=BLOCK, fingerprint=INFO.fingerprint)
    tokens = tuple(range(first, first + block_count * BLOCK))
    request = make_request(prompt_token_ids=tokens, tenant=salt)
    return prompt_keys.of(request)


def hashes(block_count: int, *, first: int = 0) -> tuple[bytes, ...]:
    return tuple(b"h%d/%d" % (first, index) for index in range(block_count))


def stored(block_count: int, *, first: int = 0, begin: int = 0, salt: str = "") -> CacheStored:
    """Blocks ``begin``.. of the prompt of ``keys_of``."""
    names = hashes(block_count, first=first)
    start = first + begin * BLOCK
    return CacheStored(
        hashes=names[begin:],
        parent=names[begin - 1] if begin else None,
        token_ids=range(start, first + block_count * BLOCK),
        cache_salt=salt,
    )


def held(scheduler: Scheduler, node: str, keys: bytes) -> int | None:
    """Leading blocks; None if what the node holds is not known."""
    directory, name = scheduler.directory, NodeName(node)
    return directory.matches(keys).get(name, 0) if directory.is_known(name) else None


async def joined(cluster: GrpcCluster, name: str) -> Node:
    """It is a member, and both ends know."""
    node = await cluster.join(name)
    await until(lambda: bool(node.cache._links))
    return node


async def left(cluster: GrpcCluster, node: Node) -> None:
    """Its stream is over, and both ends know."""
    await node.kill()
    await cluster.scheduler.until(lambda: bool(cluster.scheduler.driver.detached))


async def known(cluster: GrpcCluster, node: str, block_count: int | None, **which: Any) -> None:
    keys = keys_of(8, **which)
    await until(lambda: held(cluster.scheduler, node, keys) == block_count)


async def test_what_a_node_stored_is_found_by_the_keys_of_the_prompt() -> None:
    async with grpc_cluster() as cluster:
        node = await joined(cluster, "decode-0")
        await cluster.join("decode-1")
        node.engine.notify_cache([stored(4), stored(6, begin=4)])
        await known(cluster, "decode-0", 6)
        assert held(cluster.scheduler, "decode-1", keys_of(8)) == 0
        assert held(cluster.scheduler, "decode-0", keys_of(3)) == 3


async def test_tenants_do_not_meet_in_the_index() -> None:
    async with grpc_cluster() as cluster:
        node = await joined(cluster, "decode-0")
        node.engine.notify_cache([stored(6, salt="4:mine:")])
        await known(cluster, "decode-0", 6, salt="mine")
        assert held(cluster.scheduler, "decode-0", keys_of(8)) == 0
        assert held(cluster.scheduler, "decode-0", keys_of(8, salt="else")) == 0


async def test_what_is_evicted_is_gone_and_the_preference_with_it() -> None:
    async with grpc_cluster() as cluster:
        node = await joined(cluster, "decode-0")
        node.engine.notify_cache([stored(6)])
        await known(cluster, "decode-0", 6)
        homes = cluster.scheduler.core._state.policy.homes
        member = cluster.scheduler.core.nodes[NodeName("decode-0")]
        homes.remember(Chain(keys_of(6)), caller=b"", prefill=None, decode=member, now_s=500.0)
        assert len(homes) == 1
        node.engine.notify_cache([CacheRemoved(hashes=hashes(6)[2:])])
        await known(cluster, "decode-0", 2)
        assert len(homes) == 0


async def test_an_emptied_cache_is_empty_for_the_scheduler_too() -> None:
    async with grpc_cluster() as cluster:
        node = await joined(cluster, "decode-0")
        node.engine.notify_cache([stored(6)])
        await known(cluster, "decode-0", 6)
        node.engine.notify_cache([CacheCleared(), stored(1)])
        await known(cluster, "decode-0", 1)
        assert cluster.scheduler.core.nodes[NodeName("decode-0")].cache_generation == 1


async def test_a_new_life_holds_nothing_from_its_first_moment() -> None:
    async with grpc_cluster() as cluster:
        node = await joined(cluster, "decode-0")
        node.engine.notify_cache([stored(6)])
        await known(cluster, "decode-0", 6)
        await node.kill()
        assert held(cluster.scheduler, "decode-0", keys_of(8)) == 6, "it may come back with it"
        seen: list[int | None] = []
        attached = cluster.scheduler.driver.node_attached

        def watch(session: Any) -> None:
            attached(session)
            seen.append(held(cluster.scheduler, "decode-0", keys_of(8)))

        cluster.scheduler.driver.node_attached = watch  # type: ignore[method-assign]
        await cluster.join("decode-0", boot_epoch=2)
        assert seen == [0]


async def test_a_node_that_comes_back_with_all_it_had_is_asked_for_nothing() -> None:
    async with grpc_cluster() as cluster:
        node = await joined(cluster, "decode-0")
        node.engine.notify_cache([stored(6)])
        await known(cluster, "decode-0", 6)
        await left(cluster, node)
        node.start()
        await until(lambda: bool(node.cache._links))
        node.engine.notify_cache([stored(7, begin=6)])
        await known(cluster, "decode-0", 7)
        assert cluster.scheduler.directory.asked_snapshot_count == 0


async def test_what_happened_while_nobody_listened_comes_with_a_snapshot() -> None:
    async with grpc_cluster() as cluster:
        node = await joined(cluster, "decode-0")
        node.engine.notify_cache([stored(6)])
        await known(cluster, "decode-0", 6)
        await left(cluster, node)
        node.engine.notify_cache([CacheRemoved(hashes=hashes(6)[4:]), stored(3, first=9000)])
        node.cache._flush()  # told to nobody
        node.start()
        await known(cluster, "decode-0", 3, first=9000)
        await known(cluster, "decode-0", 4)
        assert cluster.scheduler.directory.asked_snapshot_count == 1


async def test_a_second_scheduler_that_comes_later_knows_the_same() -> None:
    async with grpc_cluster() as cluster:
        node = await joined(cluster, "decode-0")
        node.engine.notify_cache([stored(6)])
        await known(cluster, "decode-0", 6)
        async with another_scheduler(node) as second:
            await until(lambda: held(second, "decode-0", keys_of(8)) == 6)
            node.engine.notify_cache([stored(7, begin=6)])
            await until(lambda: held(second, "decode-0", keys_of(8)) == 7)
            await known(cluster, "decode-0", 7)


@asynccontextmanager
async def another_scheduler(node: Node) -> Any:
    scheduler = Scheduler()
    await scheduler.start()
    link = SchedulerLink(address=scheduler.address, handler=node.service)
    task = asyncio.create_task(link.run())
    try:
        yield scheduler
    finally:
        task.cancel()
        await asyncio.wait([task])
        await scheduler.stop()


async def test_events_that_are_lost_for_good_empty_index_and_cache() -> None:
    async with grpc_cluster() as cluster:
        node = await joined(cluster, "decode-0")
        node.engine.notify_cache([stored(6)])
        await known(cluster, "decode-0", 6)
        node.engine.resets = False  # something uses the cache
        node.engine.notify_cache([CacheUnknown(reason="a test")])
        await known(cluster, "decode-0", 0)
        node.engine.notify_cache([stored(5)])
        await until(lambda: node.engine.reset_count > 0)
        assert held(cluster.scheduler, "decode-0", keys_of(8)) == 0, "it means nothing yet"
        node.engine.resets = True
        await until(lambda: not node.cache._unknown_reason)
        node.engine.notify_cache([CacheCleared(), stored(2)])
        await known(cluster, "decode-0", 2)


async def test_more_blocks_than_the_pool_has_are_no_truth() -> None:
    async with grpc_cluster() as cluster:
        node = await joined(cluster, "decode-0")
        node.engine.notify_cache([stored(INFO.block_count + 1)])
        await until(lambda: node.engine.reset_count == 1)
        assert len(node.cache) == 0
        assert held(cluster.scheduler, "decode-0", keys_of(8)) == 0


async def test_a_node_of_the_version_before_is_guessed() -> None:
    async with grpc_cluster() as cluster:
        old = cluster.add("decode-0")
        hello = old.service.hello()
        hello.protocol_version = 2
        old.service.hello = lambda: hello  # type: ignore[method-assign]
        old.start()
        await cluster.scheduler.until(lambda: "decode-0" in cluster.scheduler.states())
        assert held(cluster.scheduler, "decode-0", keys_of(8)) is None


Delta = cluster_pb2.CacheDelta
Part = cluster_pb2.CacheSnapshotPart
TOO_MANY = bytes(16 * (MESSAGE_KEY_COUNT_MAX + 1))


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (Delta(first_sequence=0, last_sequence=1), "first_sequence is 0"),
        (Delta(first_sequence=2, last_sequence=1), "last_sequence is 1"),
        (Delta(first_sequence=2, last_sequence=2, stored=b"short"), "stored has 5 bytes"),
        (Delta(first_sequence=2, last_sequence=2, removed=bytes(17)), "removed has 17 bytes"),
        (Delta(first_sequence=2, last_sequence=2, removed=TOO_MANY), "it names 4097 keys"),
        (Delta(first_sequence=2, last_sequence=2, stored=bytes(16 * 198)), "its pool has 101"),
        (Part(part_count=0), "part_count is 0"),
        (Part(part_count=2), "part_count is 2, must be in 1..1"),
        (Part(part_index=1, part_count=1), "part_index is 1"),
        (Part(part_index=-1, part_count=1), "part_index is -1"),
        (Part(part_count=1, keys=TOO_MANY), "it names 4097 keys"),
        (Part(part_count=1, as_of_sequence=-1), "as_of_sequence is -1"),
        (cluster_pb2.CachePosition(sequence=-1), "sequence is -1"),
    ],
)
async def test_words_that_cannot_be_true_are_refused_and_healed(message: Any, why: str) -> None:
    with capture_logs() as logs:
        async with grpc_cluster() as cluster:
            node = await joined(cluster, "decode-0")
            node.engine.notify_cache([stored(6)])
            await known(cluster, "decode-0", 6)
            name = {"CacheDelta": "cache_delta", "CachePosition": "cache_position"}.get(
                type(message).__name__, "cache_snapshot"
            )
            node.link.send(cluster_pb2.NodeMessage(**{name: message}))
            await until(lambda: cluster.scheduler.directory.asked_snapshot_count == 1)
            await known(cluster, "decode-0", 6)
            assert cluster.scheduler.directory.refused_message_count == 1
    (refused,) = [entry for entry in logs if entry["event"] == "cache_message_refused"]
    assert why in refused["reason"]


async def test_a_node_that_errs_all_the_time_is_asked_less_and_less() -> None:
    async with grpc_cluster() as cluster:
        node = await joined(cluster, "decode-0")
        directory = cluster.scheduler.directory
        bad = cluster_pb2.NodeMessage(cache_delta=Delta())
        for count in (1, 2, 3):
            node.link.send(bad)
            await until(lambda: directory.refused_message_count == count)  # noqa: B023
        await until(lambda: directory.asked_snapshot_count == 1)
        await known(cluster, "decode-0", 0)
        node.link.send(bad)
        await known(cluster, "decode-0", None)
        assert directory.asked_snapshot_count == 1, "not again so soon"
        cluster.scheduler.now_s += 1.0
        await until(lambda: directory.asked_snapshot_count == 2)


async def test_a_long_snapshot_comes_in_parts_and_counts_whole() -> None:
    async with grpc_cluster() as cluster:
        node = cluster.add("decode-0")
        count = MESSAGE_KEY_COUNT_MAX + 10
        node.cache._mirror._block_count = 2 * count
        hello = node.service.hello()
        hello.block_count = 2 * count
        node.service.hello = lambda: hello  # type: ignore[method-assign]
        node.engine.notify_cache([stored(count)])
        node.cache._flush()  # before anybody is there
        node.start()
        await until(lambda: held(cluster.scheduler, "decode-0", keys_of(count)) == count)
        assert cluster.scheduler.directory.asked_snapshot_count == 1
