"""Where a request's blocks are: its nodes are asked, and what they say is told."""

import asyncio
from typing import Any

import pytest

from pdd.daemon import block_locator
from pdd.daemon.cluster_admin import NotKnown, cluster_admin
from pdd.directory.entries import BlockDelta
from pdd.rpc.v1 import cluster_pb2
from tests.unit.daemon.fake_engine import out
from tests.unit.daemon.grpc_cluster import Client, GrpcCluster, grpc_cluster
from tests.unit.daemon.test_driver_over_grpc import generate, text_request


async def locate(cluster: GrpcCluster, request_id: str = "r1") -> cluster_pb2.LocateBlocksResponse:
    def call() -> cluster_pb2.LocateBlocksResponse:
        with cluster_admin(cluster.scheduler.address) as admin:
            return admin.locate(request_id)

    return await asyncio.to_thread(call)


def held(told: cluster_pb2.LocateBlocksResponse) -> dict[str, list[list[int]]]:
    return {one.node: [list(rank.block_ids) for rank in one.ranks] for one in told.nodes}


async def test_a_running_request_is_told_with_nodes_ranks_owner_and_watermark() -> None:
    async with grpc_cluster() as cluster:
        prefill, decode = await cluster.join("prefill-0"), await cluster.join("decode-0")
        prefill.engine.tables["r1/0"] = ((5, 6), (5, 6))
        decode.engine.tables["r1/0"] = ((9, 4), (9, 4))
        client: Client = generate(cluster, text_request())
        run = await prefill.engine.job("r1/0")
        await decode.engine.job("r1/0")
        told = await locate(cluster)
        prompt_tokens = told.watermark_tokens
        assert (told.phase, told.path, told.owner) == ("prefilling", "disaggregated", "prefill-0")
        assert held(told) == {"prefill-0": [[5, 6], [5, 6]], "decode-0": [[9, 4], [9, 4]]}
        assert all(one.leased_block_count > 0 for one in told.nodes)
        assert prompt_tokens > 0

        run.feed(out("h"), None)
        await client.seen(2)
        decode.engine.ready("r1/0", transferred_bytes=1, transfer_s=0.1)
        await cluster.scheduler.until(
            lambda: cluster.scheduler.core.requests["r1"].phase.value == "decoding"  # type: ignore[index]
        )
        told = await locate(cluster)
        assert (told.owner, told.output_tokens) == ("decode-0", 1)
        assert told.watermark_tokens == prompt_tokens + 1
        client.task.cancel()


async def test_a_request_that_waits_has_no_nodes() -> None:
    async with grpc_cluster() as cluster:
        await cluster.join("decode-0")
        await cluster.join("prefill-0")
        clients = [
            generate(cluster, text_request(f"r{index}", max_tokens=1000)) for index in range(30)
        ]
        async with asyncio.timeout(10):
            while not (queue := cluster.scheduler.core._state.queue):  # noqa: ASYNC110 - pure
                await asyncio.sleep(0)
        (queued, *_) = queue
        told = await locate(cluster, queued)
        assert (told.phase, told.path, told.owner, list(told.nodes)) == ("queued", "", "", [])
        for client in clients:
            client.task.cancel()


async def test_a_node_that_does_not_answer_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_locator, "_ANSWER_TIMEOUT_S", 0.05)
    async with grpc_cluster() as cluster:
        prefill, decode = await cluster.join("prefill-0"), await cluster.join("decode-0")
        client: Client = generate(cluster, text_request())
        await prefill.engine.job("r1/0")
        await decode.engine.job("r1/0")
        decode.engine.tables["r1/0"] = ((1,),)
        never = asyncio.Event()

        async def hang(key: str) -> Any:
            await never.wait()

        prefill.engine.locate = hang  # type: ignore[method-assign]
        told = await locate(cluster)
        assert {one.node: one.is_answered for one in told.nodes} == {
            "prefill-0": False,
            "decode-0": True,
        }
        assert not cluster.scheduler.driver.blocks._asked, "nothing waits for ever"
        never.set()
        client.task.cancel()


async def test_what_does_not_run_is_not_found_and_says_what_to_do() -> None:
    async with grpc_cluster() as cluster:
        prefill = await cluster.join("prefill-0")
        await cluster.join("decode-0")
        with pytest.raises(NotKnown, match=r"no request 'r9': .* or it never was"):
            await locate(cluster, "r9")
        client: Client = generate(cluster, text_request())
        await prefill.engine.job("r1/0")
        await client.leave()
        with pytest.raises(NotKnown, match="'r1' has ended: no block is held for it any more"):
            await locate(cluster)


async def test_a_block_is_found_by_its_key_on_the_nodes_that_told_of_it() -> None:
    async with grpc_cluster() as cluster:
        for name in ("decode-0", "decode-1", "prefill-0"):
            await cluster.join(name)
        key = bytes(range(16))
        for name in ("decode-1", "prefill-0"):
            machine = cluster.scheduler.machine
            epoch = machine.boot_epoch(name)
            assert epoch is not None
            number = machine.next_sequence(name)
            stored = BlockDelta(
                node=name,
                boot_epoch=epoch,
                first_sequence=number,
                last_sequence=number,
                stored=key,
            )
            cluster.scheduler.directory._add(stored)
            cluster.scheduler.directory._apply()
        told = await locate(cluster, key.hex())
        assert (told.key, list(told.holders)) == (key, ["decode-1", "prefill-0"])
        with pytest.raises(NotKnown, match="no node is known to hold block ffff"):
            await locate(cluster, "ff" * 16)


async def test_questions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_locator, "_ASKED_COUNT_MAX", 1)
    async with grpc_cluster() as cluster:
        prefill = await cluster.join("prefill-0")
        await cluster.join("decode-0")
        client: Client = generate(cluster, text_request())
        await prefill.engine.job("r1/0")
        with pytest.raises(Exception, match="try again"):
            await locate(cluster)
        client.task.cancel()
