"""What an operator asks of the replicas of the schedulers' log, through any scheduler."""

import asyncio

import grpc
import grpc.aio

from pdd.control.cluster_ports import GroupRefused, UnknownReplica
from pdd.core.errors import NodeUnavailable
from pdd.daemon.replicated_agreement import ReplicatedAgreement
from pdd.replication.grpc_options import CHANNEL_OPTIONS
from pdd.rpc.v1 import cluster_pb2
from pdd.rpc.v1 import raft_pb2 as pb
from pdd.rpc.v1.raft_pb2_grpc import ReplicaStub

_STATUS_TIMEOUT_S = 2.0
_SNAPSHOT_TIMEOUT_S = 55.0


class ReplicaDesk:
    """Implements ``ReplicaGroup``. A connection per question: they are rare."""

    def __init__(self, agreement: ReplicatedAgreement) -> None:
        self._agreement = agreement

    async def list_replicas(self) -> list[cluster_pb2.ReplicaInfo]:
        """Each as it answers now, by name."""
        addresses = self._agreement.addresses
        async with asyncio.TaskGroup() as tasks:
            asked = [
                tasks.create_task(self._info(name, addresses[name])) for name in sorted(addresses)
            ]
        return [task.result() for task in asked]

    async def transfer(self, target: str) -> str:
        """Begin to hand leadership over; who led until now.

        Raises:
            UnknownReplica: no such voter.
            GroupRefused: it leads already, or is the only one, or the leader says no.
            NodeUnavailable: nobody leads.
        """
        self._address(target)
        infos = await self.list_replicas()
        leaders = [info for info in infos if not info.fault and info.status.role == "leader"]
        if not leaders:
            raise NodeUnavailable("no replica leads now; 'pdd raft status' tells why")
        leader = max(leaders, key=lambda info: info.status.term)
        if leader.name == target:
            raise GroupRefused(f"{target} leads already")
        async with self._channel(leader.address) as channel:
            try:
                await ReplicaStub(channel).TransferLeadership(
                    pb.TransferLeadershipRequest(target=target), timeout=_STATUS_TIMEOUT_S
                )
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
                    raise GroupRefused(f"{leader.name}: {error.details()}") from error
                raise NodeUnavailable(f"{leader.name}: {error.details()}") from error
        return leader.name

    async def take_snapshot(self, replica: str) -> int:
        """The log index that it covers. Raises UnknownReplica, NodeUnavailable."""
        async with self._channel(self._address(replica)) as channel:
            try:
                response = await ReplicaStub(channel).TakeSnapshot(
                    pb.TakeSnapshotRequest(), timeout=_SNAPSHOT_TIMEOUT_S
                )
            except grpc.aio.AioRpcError as error:
                raise NodeUnavailable(f"{replica}: {error.details()}") from error
        return int(response.snapshot_index)

    async def _info(self, name: str, address: str) -> cluster_pb2.ReplicaInfo:
        info = cluster_pb2.ReplicaInfo(name=name, address=address)
        async with self._channel(address) as channel:
            try:
                status = await ReplicaStub(channel).GetStatus(
                    pb.GetStatusRequest(), timeout=_STATUS_TIMEOUT_S
                )
            except grpc.aio.AioRpcError as error:
                info.fault = f"{error.code().name}: {error.details()}"
            else:
                info.status.CopyFrom(status)
        return info

    def _address(self, name: str) -> str:
        addresses = self._agreement.addresses
        if name not in addresses:
            raise UnknownReplica(f"no replica {name!r}; there are {', '.join(sorted(addresses))}")
        return addresses[name]

    def _channel(self, address: str) -> grpc.aio.Channel:
        return self._agreement.security.channel(address, options=CHANNEL_OPTIONS)
