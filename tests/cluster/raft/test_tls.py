"""Three replicas that know each other by certificate, and callers who may do less or nothing."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import grpc.aio
import pytest

from pdd.core.errors import ConfigError
from pdd.raft.config import RaftConfig
from pdd.raft.values import NodeId
from pdd.replication.client import GroupClient
from pdd.replication.grpc_options import CHANNEL_OPTIONS
from pdd.replication.hello import make_hello
from pdd.replication.kv_machine import KvMachine, encode_add
from pdd.replication.local_group import free_ports
from pdd.replication.replica import Replica, ReplicaSettings
from pdd.rpc.v1 import raft_pb2 as pb
from pdd.rpc.v1.raft_pb2_grpc import RaftStub, ReplicaStub
from pdd.tls.security import PLAIN, Security
from tests.unit.tls.certificates import Authority

NAMES = [NodeId(f"scheduler-{index}") for index in range(3)]
WAIT_S = 30.0

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]


@dataclass(frozen=True, slots=True)
class Group:
    addresses: dict[NodeId, str]
    authority: Authority
    replicas: dict[NodeId, Replica]


@contextlib.asynccontextmanager
async def running(tmp_path: Path) -> AsyncIterator[Group]:
    authority = Authority(tmp_path / "certs")
    ports = free_ports(len(NAMES))
    addresses = {name: f"127.0.0.1:{port}" for name, port in zip(NAMES, ports, strict=True)}
    replicas = {}
    for name in NAMES:
        machine = KvMachine()
        (tmp_path / name).mkdir()
        settings = ReplicaSettings(
            node=name,
            addresses=addresses,
            cluster_id="one",
            data_dir=tmp_path / name,
            is_new_cluster=True,
            security=authority.security(name),
        )
        replicas[name] = Replica(settings, machine, machine.query)
    tasks = [asyncio.create_task(replica.run()) for replica in replicas.values()]
    try:
        yield Group(addresses, authority, replicas)
    finally:
        for replica in replicas.values():
            replica.stop()
        await asyncio.wait(tasks)
    for task in tasks:
        task.result()


async def test_a_group_commits_over_mutual_tls_and_hears_nobody_else(tmp_path: Path) -> None:
    async with running(tmp_path) as group:
        security = group.authority.security("scheduler-9")
        async with GroupClient(list(group.addresses.values()), security=security) as client:
            session = await client.open_session(timeout_s=WAIT_S)
            await session.execute(encode_add("k", 7), timeout_s=WAIT_S)
        await _check_operator(group, tmp_path)
        await _check_node(group)
        await _check_forged_replica(group)
        await _check_strangers(group, tmp_path)


@contextlib.asynccontextmanager
async def dialling(group: Group, security: Security) -> AsyncIterator[grpc.aio.Channel]:
    address = group.addresses[NAMES[0]]
    async with security.channel(address, options=CHANNEL_OPTIONS) as channel:
        yield channel


async def _refusal(call: grpc.aio.Call) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    return caught.value


async def _check_operator(group: Group, tmp_path: Path) -> None:
    """Looks and steers, and submits nothing."""
    anna = group.authority.security("anna", role="client", hosts=())
    async with dialling(group, anna) as channel:
        status = await ReplicaStub(channel).GetStatus(pb.GetStatusRequest(), timeout=WAIT_S)
        assert status.replica == NAMES[0]
        call = ReplicaStub(channel).Submit(timeout=WAIT_S)
        error = await _refusal(call)
        assert error.code() is grpc.StatusCode.PERMISSION_DENIED
        assert "client/anna" in str(error.details())


async def _check_node(group: Group) -> None:
    async with dialling(group, group.authority.security("decode-0")) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await ReplicaStub(channel).GetStatus(pb.GetStatusRequest(), timeout=WAIT_S)
        assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED


async def _check_forged_replica(group: Group) -> None:
    """A certificate of the cluster, but not that of the replica in the hello."""
    config = RaftConfig(node=NAMES[1], voters=tuple(NAMES), cluster_id="one")
    for name, role in (("scheduler-9", "scheduler"), ("scheduler-1", "decode")):
        security = group.authority.security(name, role=role, force=True)
        async with dialling(group, security) as channel:
            call = RaftStub(channel).Deliver(timeout=WAIT_S)
            await call.write(pb.DeliverRequest(hello=make_hello(config)))
            error = await _refusal(call)
            assert error.code() is grpc.StatusCode.PERMISSION_DENIED
            assert f"{role}/{name}" in str(error.details())
            assert "scheduler/scheduler-1" in str(error.details())


async def _check_strangers(group: Group, tmp_path: Path) -> None:
    foreign = Authority(tmp_path / "two").security("scheduler-1")
    expired = group.authority.expired("scheduler-8")
    for security in (PLAIN, foreign, expired):
        async with dialling(group, security) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await ReplicaStub(channel).GetStatus(pb.GetStatusRequest(), timeout=WAIT_S)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("address", ["10.0.0.1:1", "localhost:1"])
async def test_a_plain_group_stays_on_loopback(tmp_path: Path, address: str) -> None:
    machine = KvMachine()
    settings = ReplicaSettings(
        node=NAMES[0],
        addresses={NAMES[0]: "127.0.0.1:1", NAMES[1]: address},
        cluster_id="one",
        data_dir=tmp_path,
        is_new_cluster=True,
    )
    with pytest.raises(ConfigError, match=f"raft: {address} is not a loopback address"):
        Replica(settings, machine, machine.query)
