"""The watch over a node's blocks: what it says, and how often."""

import asyncio
from dataclasses import replace

from structlog.testing import capture_logs

from pdd.core.blocks import BlockCensus
from pdd.daemon.block_watch import BlockWatch
from pdd.scheduler.events import Tick
from tests.unit.daemon.grpc_cluster import WAIT_S, grpc_cluster

SOUND = BlockCensus(free=8, cached=1, active=1, leased=0, quarantined=0, total=10)
LEAKING = replace(SOUND, free=7, lost_count=1, lost_ids=[4])


def test_a_leak_is_said_once_and_so_is_its_end() -> None:
    censuses = [None, SOUND, LEAKING, replace(LEAKING), replace(SOUND)]
    latest: list[BlockCensus | None] = []
    watch = BlockWatch(lambda: latest[-1])
    reasons = []
    with capture_logs() as logs:
        for census in censuses:
            latest.append(census)
            watch.look()
            watch.look()
            reasons.append(watch.degraded_reason)
    assert [line["event"] for line in logs] == ["kv_blocks_unaccounted", "kv_blocks_accounted"]
    assert (logs[0]["lost_count"], logs[0]["log_level"]) == (1, "error")
    assert [bool(reason) for reason in reasons] == [False, False, True, True, False]
    assert watch.check_count == 4, "the same count twice is one"


async def test_the_scheduler_hears_of_a_node_s_states_with_its_next_status() -> None:
    async with grpc_cluster() as cluster:
        node = await cluster.join("decode-0")
        (before,) = cluster.scheduler.driver.list_nodes()
        assert not before.HasField("blocks")
        node.engine.blocks = LEAKING
        node.service.send_status_if_changed(node.link)
        await cluster.scheduler.until(
            lambda: cluster.scheduler.driver.list_nodes()[0].HasField("blocks")
        )
        (after,) = cluster.scheduler.driver.list_nodes()
        assert (after.blocks.free_count, after.blocks.lost_count) == (7, 1)
        assert after.blocks.check_count == 1


async def test_what_a_lost_node_said_of_blocks_and_links_is_void() -> None:
    async with grpc_cluster() as cluster:
        prefill, decode = await cluster.join("prefill-0"), await cluster.join("decode-0")
        driver = cluster.scheduler.driver

        def told() -> dict[str, tuple[bool, int]]:
            return {
                info.identity.name: (info.HasField("blocks"), len(info.links))
                for info in driver.list_nodes()
            }

        decode.engine.blocks = SOUND
        async with asyncio.timeout(WAIT_S):
            while told()["decode-0"] != (True, 1):
                decode.peers.look()
                decode.service.send_status_if_changed(decode.link)
                decode.service.send_status(decode.link)
                cluster.scheduler.driver.news.clear()
                await cluster.scheduler.driver.news.wait()
        # By silence: the scheduler cuts the stream itself.
        cluster.scheduler.now_s += 60.0
        prefill.service.send_status(prefill.link)
        await cluster.scheduler.until(lambda: True)
        driver._step(Tick())
        assert cluster.scheduler.states()["decode-0"] == "lost"
        assert told()["decode-0"] == (False, 0)
