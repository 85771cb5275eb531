"""What an operator asks by hand, over real gRPC: cordons, drains and the reasons of decisions."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

import pytest

from pdd.daemon.cluster_admin import ClusterAdmin, NotKnown, cluster_admin
from tests.unit.daemon.fake_engine import out
from tests.unit.daemon.grpc_cluster import Client, GrpcCluster, grpc_cluster
from tests.unit.daemon.test_driver_over_grpc import generate, text_of, text_request

T = TypeVar("T")


async def ask(cluster: GrpcCluster, what: Callable[[ClusterAdmin], T]) -> T:
    def call() -> T:
        with cluster_admin(cluster.scheduler.address) as admin:
            return what(admin)

    return await asyncio.to_thread(call)


async def test_a_drained_node_finishes_what_it_has_and_gets_nothing_new() -> None:
    async with grpc_cluster() as cluster:
        node = await cluster.join("decode-0")
        client = generate(cluster, text_request())
        run = await node.engine.job("r1/0")
        begun = await ask(
            cluster, lambda admin: admin.cordon("decode-0", message="swap NIC", is_drain=True)
        )
        assert begun.is_changed
        assert (begun.state.held_request_count, begun.state.is_drained) == (1, False)
        (info,) = cluster.scheduler.driver.list_nodes()
        assert (info.state, info.state_reason) == ("cordoned", "draining: swap NIC")

        run.feed(out("a", eos=True))
        assert text_of(await client.all()) == "a"
        state = await ask(cluster, lambda admin: admin.drain_state("decode-0"))
        assert (state.is_drained, state.held_request_count, state.began_request_count) == (
            True,
            0,
            1,
        )
        again = await ask(
            cluster, lambda admin: admin.cordon("decode-0", message="", is_drain=True)
        )
        assert not again.is_changed
        assert await ask(cluster, lambda admin: admin.uncordon("decode-0"))
        assert not await ask(cluster, lambda admin: admin.uncordon("decode-0"))
        assert cluster.scheduler.states() == {"decode-0": "ready"}


async def test_a_cordon_s_message_can_be_changed_and_an_empty_one_leaves_it() -> None:
    async with grpc_cluster() as cluster:
        await cluster.join("decode-0")
        for message, shown in (
            ("swap NIC", "swap NIC"),
            ("", "swap NIC"),
            ("new disk", "new disk"),
        ):
            await ask(
                cluster,
                lambda admin, message=message: admin.cordon(  # type: ignore[misc]
                    "decode-0", message=message, is_drain=False
                ),
            )
            (info,) = cluster.scheduler.driver.list_nodes()
            assert info.state_reason == f"cordoned: {shown}"


async def test_an_unknown_node_is_told_with_those_that_there_are() -> None:
    async with grpc_cluster() as cluster:
        await cluster.join("decode-0")
        for what in (
            lambda admin: admin.cordon("decode-7", message="", is_drain=False),
            lambda admin: admin.uncordon("decode-7"),
            lambda admin: admin.drain_state("decode-7"),
        ):
            with pytest.raises(NotKnown, match="no node 'decode-7'; there are decode-0"):
                await ask(cluster, what)


async def test_every_decision_can_be_read_with_candidates_and_reasons() -> None:
    async with grpc_cluster() as cluster:
        prefill, decode = await cluster.join("prefill-0"), await cluster.join("decode-0")
        client: Client = generate(cluster, text_request())
        await prefill.engine.job("r1/0")
        await decode.engine.job("r1/0")
        (decision,) = await ask(cluster, lambda admin: admin.decisions("r1"))
        assert (decision.outcome, decision.path) == ("placed", "disaggregated")
        assert decision.reason == "scheduler.path.mode is disaggregated"
        assert {choice.role: choice.candidates[0].node for choice in decision.choices} == {
            "prefill": "prefill-0",
            "decode": "decode-0",
        }
        (candidate,) = decision.choices[1].candidates
        assert candidate.is_chosen
        assert candidate.scores["free_kv"] > 0
        assert candidate.inputs["blocks"] > 0
        assert decision.path_inputs["prompt_tokens"] > 0
        client.task.cancel()
        with pytest.raises(NotKnown, match="nothing is remembered of request 'r2'"):
            await ask(cluster, lambda admin: admin.decisions("r2"))
