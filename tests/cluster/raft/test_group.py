"""Three replica processes on loopback, and what clients and strangers get from them."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import grpc.aio
import pytest
import pytest_asyncio

from pdd.core.errors import NodeUnavailable
from pdd.raft.codec import Identity, encode_message
from pdd.raft.config import RaftConfig
from pdd.raft.messages import HeartbeatRequest
from pdd.raft.values import NodeId
from pdd.replication.client import CommandRefusedError, GroupClient, OutcomeUnknownError
from pdd.replication.hello import make_hello
from pdd.replication.kv_machine import decode_value, encode_add, encode_get
from pdd.replication.local_group import LocalGroup
from pdd.replication.offline import replace_replica
from pdd.rpc.v1 import raft_pb2 as pb
from pdd.rpc.v1.raft_pb2_grpc import RaftStub
from tests.waiting import until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]
WAIT_S = 30.0


@pytest_asyncio.fixture
async def group(tmp_path: Path) -> AsyncIterator[LocalGroup]:
    async with LocalGroup(tmp_path, driver={"keep_entries": 1}) as group:
        await group.leader(timeout_s=WAIT_S)
        yield group


def client_of(group: LocalGroup) -> GroupClient:
    return GroupClient(list(group.addresses.values()))


async def test_writes_are_read_back_through_any_client(group: LocalGroup) -> None:
    async with client_of(group) as one, client_of(group) as other:
        session = await one.open_session(timeout_s=WAIT_S)
        for number in range(20):
            await session.execute(encode_add("k", number), timeout_s=WAIT_S)
        value = decode_value(await other.read(encode_get("k"), timeout_s=WAIT_S))
        assert value == tuple(range(20))


async def test_a_command_sent_twice_takes_effect_once(group: LocalGroup) -> None:
    async with client_of(group) as client:
        session = await client.open_session(timeout_s=WAIT_S)
        await session.execute(encode_add("k", 1), timeout_s=WAIT_S)
        command = pb.Command(session_id=session.session_id, sequence=1, body=encode_add("k", 1))
        await client.ask(pb.Submission(command=command), timeout_s=WAIT_S)
        value = decode_value(await client.read(encode_get("k"), timeout_s=WAIT_S))
        assert value == (1,)


@pytest.mark.fault
async def test_without_a_majority_nothing_is_acknowledged_and_nothing_is_called_failed(
    group: LocalGroup,
) -> None:
    leader = await group.leader(timeout_s=WAIT_S)
    followers = [name for name in group.names if name != leader]
    async with client_of(group) as client:
        session = await client.open_session(timeout_s=WAIT_S)
        for name in followers:
            group.freeze(name)
        with pytest.raises(OutcomeUnknownError):
            await session.execute(encode_add("k", 1), timeout_s=1.0)
        with pytest.raises(NodeUnavailable):
            await client.read(encode_get("k"), timeout_s=1.0)
        for name in followers:
            group.thaw(name)
        value = decode_value(await client.read(encode_get("k"), timeout_s=WAIT_S))
        assert value in ((), (1,))


@pytest.mark.fault
async def test_a_replica_that_was_away_gets_a_snapshot_and_holds_the_same_state(
    group: LocalGroup,
) -> None:
    leader = await group.leader(timeout_s=WAIT_S)
    away = next(name for name in group.names if name != leader)
    await group.kill(away)
    async with client_of(group) as client:
        session = await client.open_session(timeout_s=WAIT_S)
        for number in range(50):
            await session.execute(encode_add(f"k{number % 5}", number), timeout_s=WAIT_S)
    taken = await group.stub(leader).TakeSnapshot(pb.TakeSnapshotRequest(), timeout=WAIT_S)
    assert taken.snapshot_index >= 50
    group.start(away)

    async def caught_up() -> pb.GetStatusResponse | None:
        status = await group.status(away)
        return status if status and status.applied_index >= taken.snapshot_index else None

    status = await until(caught_up, f"{away} to have entry {taken.snapshot_index}")
    assert status.snapshot_index >= taken.snapshot_index
    present = await group.status(leader)
    assert present is not None
    assert present.applied_index == status.applied_index
    assert present.state_hash == status.state_hash


async def test_leadership_moves_where_it_is_sent(group: LocalGroup) -> None:
    leader = await group.leader(timeout_s=WAIT_S)
    target = next(name for name in group.names if name != leader)
    request = pb.TransferLeadershipRequest(target=target)
    await group.stub(leader).TransferLeadership(request, timeout=WAIT_S)

    async def leads() -> bool:
        return await group.leader(timeout_s=WAIT_S) == target

    await until(leads, f"{target} to lead")
    for stranger in ("nobody", target):
        request = pb.TransferLeadershipRequest(target=stranger)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await group.stub(target).TransferLeadership(request, timeout=WAIT_S)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_strangers_are_refused_with_the_reason(group: LocalGroup) -> None:
    stranger = pb.ReplicaHello(replica="replica-9", cluster_id="another")
    async with grpc.aio.insecure_channel(group.addresses["replica-0"]) as channel:
        for first, code in (
            (pb.DeliverRequest(), grpc.StatusCode.INVALID_ARGUMENT),
            (pb.DeliverRequest(hello=stranger), grpc.StatusCode.FAILED_PRECONDITION),
        ):
            call = RaftStub(channel).Deliver()
            await call.write(first)
            with pytest.raises(grpc.aio.AioRpcError):
                await call.read()
            assert await call.code() is code


async def test_a_message_in_another_replicas_name_ends_the_stream(group: LocalGroup) -> None:
    voters = tuple(NodeId(name) for name in group.names)
    config = RaftConfig(node=voters[1], voters=voters, cluster_id=group.cluster_id)
    forged = HeartbeatRequest(source=voters[2], target=voters[0], term=99, commit_index=0)
    async with grpc.aio.insecure_channel(group.addresses["replica-0"]) as channel:
        call = RaftStub(channel).Deliver()
        await call.write(pb.DeliverRequest(hello=make_hello(config)))
        assert (await call.read()).hello.replica == "replica-0"
        data = encode_message(forged, Identity.of(config))
        await call.write(pb.DeliverRequest(messages=[data]))
        with pytest.raises(grpc.aio.AioRpcError):
            await call.read()
        assert await call.code() is grpc.StatusCode.PERMISSION_DENIED
    status = await group.status("replica-0")
    assert status is not None
    assert status.term < 99


@pytest.mark.fault
async def test_a_dead_replica_is_replaced_offline_and_nothing_acknowledged_is_lost(
    group: LocalGroup,
) -> None:
    dead, *others = group.names
    async with client_of(group) as client:
        session = await client.open_session(timeout_s=WAIT_S)
        for number in range(30):
            await session.execute(encode_add("k", number), timeout_s=WAIT_S)
    for name in group.names:
        await group.kill(name)
    shutil.rmtree(group.data_dir(dead))
    done = await asyncio.to_thread(
        replace_replica,
        NodeId(dead),
        directory=group.data_dir(dead),
        survivors={NodeId(name): group.data_dir(name) for name in others},
        cluster_id=group.cluster_id,
    )
    assert done.last_index >= 30
    # The replaced one and one survivor are a majority: it must hold everything itself.
    for name in (dead, others[0]):
        group.start(name)
    async with client_of(group) as client:
        value = decode_value(await client.read(encode_get("k"), timeout_s=WAIT_S))
        assert value == tuple(range(30))
        group.start(others[1])
        session = await client.open_session(timeout_s=WAIT_S)
        await session.execute(encode_add("k", 30), timeout_s=WAIT_S)


async def test_a_command_larger_than_an_entry_is_refused_once_and_its_session_goes_on(
    group: LocalGroup,
) -> None:
    await group.leader(timeout_s=WAIT_S)
    async with client_of(group) as client:
        session = await client.open_session(timeout_s=WAIT_S)
        with pytest.raises(CommandRefusedError, match="in parts"):
            await session.execute(bytes(1024 * 1024), timeout_s=WAIT_S)
        await session.execute(encode_add("k", 1), timeout_s=WAIT_S)
        assert decode_value(await client.read(encode_get("k"), timeout_s=WAIT_S)) == (1,)
