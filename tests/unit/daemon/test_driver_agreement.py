"""What a scheduler agrees on before it says "done", and what it does when it cannot."""

import asyncio

import grpc
import pytest

from pdd.cell.operations import Cordoned, MemberJoined, Operation, Status
from pdd.cell.state import CellState
from pdd.control.versions import CHANNEL_OPTIONS
from pdd.core.errors import NodeUnavailable
from pdd.daemon.agreement import AgreementOfOne, AgreementUnavailable, Follower
from pdd.daemon.cluster_admin import cluster_admin
from pdd.rpc.v1 import cluster_pb2, cluster_pb2_grpc
from pdd.scheduler.group_events import LeadershipChanged
from pdd.tls.security import PLAIN
from tests.unit.daemon.fake_engine import out
from tests.unit.daemon.grpc_cluster import WAIT_S, GrpcCluster, grpc_cluster
from tests.unit.daemon.test_driver_over_grpc import generate, text_of, text_request


class NoMajority:
    """Holds what was agreed on before, and agrees on nothing more."""

    def __init__(self, before: AgreementOfOne) -> None:
        self._before = before
        self.fault = "the replica ended"

    @property
    def state(self) -> CellState:
        return self._before.state

    async def say(self, operation: Operation) -> Status:
        raise AgreementUnavailable("no majority")

    def follow(self, follower: Follower) -> None:
        self._before.follow(follower)


def member(boot_epoch: int, uuid: str = "uuid-decode-0") -> MemberJoined:
    return MemberJoined(
        node="decode-0",
        uuid=uuid,
        boot_epoch=boot_epoch,
        role="decode",
        address="decode-0:1",
        block_count=100,
    )


async def first_answer(cluster: GrpcCluster, *, boot_epoch: int) -> grpc.aio.AioRpcError | None:
    """None: welcome."""
    hello = cluster.add("decode-0", boot_epoch=boot_epoch).service.hello()
    address = cluster.scheduler.address
    async with grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
        call = cluster_pb2_grpc.ClusterStub(channel).Attach()
        await call.write(cluster_pb2.NodeMessage(hello=hello))
        try:
            await asyncio.wait_for(call.read(), timeout=WAIT_S)
        except grpc.aio.AioRpcError as error:
            return error
        finally:
            call.cancel()
        return None


async def test_a_node_is_a_member_when_it_is_welcome() -> None:
    agreement = AgreementOfOne()
    async with grpc_cluster(agreement=agreement) as cluster:
        await cluster.join("decode-0", boot_epoch=3)
    assert agreement.state.members["decode-0"].boot_epoch == 3


async def test_a_former_life_is_refused_by_a_scheduler_that_has_just_started() -> None:
    agreement = AgreementOfOne()
    await agreement.say(member(5))
    async with grpc_cluster(agreement=agreement) as cluster:
        refused = await first_answer(cluster, boot_epoch=4)
        assert refused is not None
        assert refused.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert "boot 5 of it has joined before" in str(refused.details())
        assert await first_answer(cluster, boot_epoch=6) is None
    assert agreement.state.members["decode-0"].boot_epoch == 6


async def test_without_a_majority_known_nodes_come_back_and_new_lives_are_asked_to_wait() -> None:
    before = AgreementOfOne()
    await before.say(member(1))
    async with grpc_cluster(agreement=NoMajority(before)) as cluster:
        refused = await first_answer(cluster, boot_epoch=2)
        assert refused is not None
        assert refused.code() is grpc.StatusCode.UNAVAILABLE
        node = await cluster.join("decode-0")
        client = generate(cluster, text_request())
        (await node.engine.job("r1/0")).feed(out("a", eos=True))
        assert text_of(await client.all()) == "a", "requests wait for no agreement"


async def test_without_a_majority_a_cordon_is_not_called_done() -> None:
    before = AgreementOfOne()
    await before.say(member(1))
    async with grpc_cluster(agreement=NoMajority(before)) as cluster:
        await cluster.join("decode-0")

        def cordon() -> None:
            with cluster_admin(cluster.scheduler.address) as admin:
                admin.cordon("decode-0", message="", is_drain=False)

        with pytest.raises(NodeUnavailable, match="no majority"):
            await asyncio.to_thread(cordon)
        assert cluster.scheduler.states() == {"decode-0": "ready"}


async def test_what_was_cordoned_before_this_scheduler_started_is_cordoned_at_join() -> None:
    agreement = AgreementOfOne()
    await agreement.say(Cordoned(node="decode-0", message="why", is_drain=False, at_ms=1))
    async with grpc_cluster(agreement=agreement) as cluster:
        (info,) = cluster.scheduler.driver.list_nodes()
        assert (info.identity.name, info.state) == ("decode-0", "lost"), "it can be uncordoned"
        cluster.add("decode-0").start()
        await cluster.scheduler.until(lambda: cluster.scheduler.states() != {})
        (info,) = cluster.scheduler.driver.list_nodes()
        assert (info.state, info.state_reason) == ("cordoned", "cordoned: why")


async def test_what_is_read_may_be_old_while_nobody_leads_or_the_own_replica_does_not_run() -> None:
    agreement = NoMajority(AgreementOfOne())
    async with grpc_cluster(agreement=agreement) as cluster:
        driver = cluster.scheduler.driver
        assert driver.stale_reason == "", "a single scheduler's copy is all there is"
        group = driver.join_group(
            name="scheduler-0",
            addresses={"scheduler-0": "127.0.0.1:1"},
            security=PLAIN,
            say=lambda _: None,
        )
        assert driver.stale_reason.startswith("no scheduler leads: ")
        group.leader_is("scheduler-0")
        driver._step(LeadershipChanged(leads=True))
        assert "replica of this scheduler does not run (the replica ended)" in driver.stale_reason
        agreement.fault = ""
        assert driver.stale_reason == ""
        await group.close()
