"""The watch over a node's blocks: what it says, and how often."""

from dataclasses import replace

from structlog.testing import capture_logs

from pdd.core.blocks import BlockCensus
from pdd.daemon.block_watch import BlockWatch
from tests.unit.daemon.grpc_cluster import grpc_cluster

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
