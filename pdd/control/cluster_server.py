"""The scheduler's end of the nodes' streams: the Cluster service.

Over TLS a node is believed to be whom its certificate names, and only if it says the same. It
attaches and no more: what is asked by hand, the reads too, is for an operator's certificate (role
client) and for schedulers', as with a replica (``replication.client_service``). Nothing that a node
does needs it, and one stolen node key must not drain the others.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any, cast

import grpc
import structlog

from pdd.control.both_ways import first_end
from pdd.control.cluster_ports import (
    MAY_BE_OLD,
    ClusterHandler,
    GroupRefused,
    JoinRefused,
    ReplicaGroup,
    TooManyAsk,
    UnknownNode,
    UnknownReplica,
    UnknownRequest,
)
from pdd.control.convert import identity_from_proto
from pdd.control.leader_cluster import LeaderCluster
from pdd.control.node_session import NodeSession
from pdd.control.outbox import OutboxOverflow, coalesce
from pdd.control.role_operator import RoleRefused, RoleUnknown
from pdd.control.versions import ACCEPTED_PROTOCOL_VERSIONS, PROTOCOL_VERSION
from pdd.core.errors import RemoteError
from pdd.rpc.v1 import cluster_pb2, cluster_pb2_grpc
from pdd.tls.claims import NODE_ROLES, PeerRefused, check_claim, check_role
from pdd.tls.identity import CertificateIdentity, CertificateRole
from pdd.tls.security import PLAIN, Security

log = structlog.get_logger(__name__)

_HELLO_TIMEOUT_S = 10.0
_OPERATORS = (CertificateRole.CLIENT, CertificateRole.SCHEDULER)
_STATUSES: dict[type[Exception], grpc.StatusCode] = {
    UnknownNode: grpc.StatusCode.NOT_FOUND,
    UnknownRequest: grpc.StatusCode.NOT_FOUND,
    UnknownReplica: grpc.StatusCode.NOT_FOUND,
    RoleUnknown: grpc.StatusCode.INVALID_ARGUMENT,
    RoleRefused: grpc.StatusCode.FAILED_PRECONDITION,
    GroupRefused: grpc.StatusCode.FAILED_PRECONDITION,
    JoinRefused: grpc.StatusCode.FAILED_PRECONDITION,
    TooManyAsk: grpc.StatusCode.RESOURCE_EXHAUSTED,
    RemoteError: grpc.StatusCode.UNAVAILABLE,
}
"""Refusals of the daemon behind this service, as callers see them. Anything else is a bug."""


class ClusterServicer(cluster_pb2_grpc.ClusterServicer):
    """grpc.aio servicer; see cluster.proto.

    All but ``Attach`` is refused with PERMISSION_DENIED to a node's certificate. Without TLS every
    process of this machine may call all of it.
    """

    def __init__(
        self,
        handler: ClusterHandler,
        *,
        security: Security = PLAIN,
        group: ReplicaGroup | None = None,
        leader: LeaderCluster | None = None,
    ) -> None:
        """``leader``: knows what all schedulers' requests hold and how they were placed; None:
        there is one scheduler."""
        self._leader = leader
        self._handler = handler
        self._security = security
        self._group = group
        self.refused_caller_count = 0
        """Calls whose certificate did not allow what they claimed. Strangers without a certificate
        of the cluster get no further than the handshake, and are not counted here."""

    async def Attach(self, request_iterator: Any, context: Any) -> None:
        """One node's stream, from hello to end."""
        caller = await self._caller(context)
        session = await self._join(context, caller)
        reason = "its stream broke"
        try:
            await context.write(
                cluster_pb2.SchedulerMessage(
                    welcome=cluster_pb2.Welcome(
                        protocol_version=PROTOCOL_VERSION, life=self._handler.life
                    )
                )
            )
            reason = await self._talk(session, context)
        except asyncio.CancelledError:
            reason = "connection lost"
            raise
        finally:
            self._handler.node_detached(session, reason)
        if session.closed.is_set():
            await context.abort(grpc.StatusCode.ABORTED, reason)

    async def _talk(self, session: NodeSession, context: Any) -> str:
        """Both directions until either ends; why it ended."""
        fault = await first_end(
            session.closed.wait(),
            self._read(session, context),
            self._write(session, context),
            session.outbox.wait_overflow(),
            faults=(grpc.RpcError, grpc.aio.UsageError, OutboxOverflow),
        )
        if fault is not None:
            return f"stream broke: {fault}"
        return session.close_reason or "the node closed its stream"

    async def ListNodes(
        self, request: cluster_pb2.ListNodesRequest, context: Any
    ) -> cluster_pb2.ListNodesResponse:
        """All nodes by name; an operator's read."""
        await self._admit_operator(context)
        return cluster_pb2.ListNodesResponse(
            nodes=self._handler.list_nodes(), stale_reason=self._handler.stale_reason
        )

    async def CordonNode(
        self, request: cluster_pb2.CordonNodeRequest, context: Any
    ) -> cluster_pb2.CordonNodeResponse:
        """See cluster.proto; for operators."""
        await self._admit_operator(context)
        if (answer := await self._of_leader("CordonNode", request, context)) is not None:
            return cast("cluster_pb2.CordonNodeResponse", answer)
        async with _refusals(context, stale=self._in_place_of_leader):
            is_changed = await self._handler.operator.cordon(
                request.node, message=request.message, is_drain=request.is_drain
            )
            state = self._handler.operator.drain_state(request.node)
        return cluster_pb2.CordonNodeResponse(is_changed=is_changed, state=state)

    async def UncordonNode(
        self, request: cluster_pb2.UncordonNodeRequest, context: Any
    ) -> cluster_pb2.UncordonNodeResponse:
        """See cluster.proto; for operators."""
        await self._admit_operator(context)
        if (answer := await self._of_leader("UncordonNode", request, context)) is not None:
            return cast("cluster_pb2.UncordonNodeResponse", answer)
        async with _refusals(context, stale=self._in_place_of_leader):
            is_changed = await self._handler.operator.uncordon(request.node)
        return cluster_pb2.UncordonNodeResponse(is_changed=is_changed)

    async def GetDrainState(
        self, request: cluster_pb2.GetDrainStateRequest, context: Any
    ) -> cluster_pb2.GetDrainStateResponse:
        """See cluster.proto; an operator's read."""
        await self._admit_operator(context)
        if (answer := await self._of_leader("GetDrainState", request, context)) is not None:
            return cast("cluster_pb2.GetDrainStateResponse", answer)
        async with _refusals(context, stale=self._in_place_of_leader):
            state = self._handler.operator.drain_state(request.node)
        return cluster_pb2.GetDrainStateResponse(state=state, stale_reason=self._in_place_of_leader)

    async def SetNodeRole(
        self, request: cluster_pb2.SetNodeRoleRequest, context: Any
    ) -> cluster_pb2.SetNodeRoleResponse:
        """See cluster.proto; for operators."""
        await self._admit_operator(context)
        if (answer := await self._of_leader("SetNodeRole", request, context)) is not None:
            return cast("cluster_pb2.SetNodeRoleResponse", answer)
        operator = self._handler.role_operator
        async with _refusals(context, stale=self._in_place_of_leader):
            is_changed = await operator.set_role(
                request.node, request.role, message=request.message
            )
            role = operator.role_of(request.node)
        return cluster_pb2.SetNodeRoleResponse(is_changed=is_changed, role=role)

    async def GetRoles(
        self, request: cluster_pb2.GetRolesRequest, context: Any
    ) -> cluster_pb2.GetRolesResponse:
        """See cluster.proto; an operator's read."""
        await self._admit_operator(context)
        if (answer := await self._of_leader("GetRoles", request, context)) is not None:
            return cast("cluster_pb2.GetRolesResponse", answer)
        roles = self._handler.role_operator.roles()
        roles.stale_reason = self._in_place_of_leader
        return roles

    async def ListDecisions(
        self, request: cluster_pb2.ListDecisionsRequest, context: Any
    ) -> cluster_pb2.ListDecisionsResponse:
        """See cluster.proto; an operator's read."""
        await self._admit_operator(context)
        own = self._handler.operator.decisions(request.request_id)
        name = "" if self._leader is None else self._leader.name
        answers: dict[str, Any] = {name: cluster_pb2.ListDecisionsResponse(decisions=own)}
        silent: list[str] = []
        if self._leader is not None:
            # Whoever led at the time has placed it: its attempts may be at several.
            others, silent = await self._leader.ask_others("ListDecisions", request, context)
            answers |= others
        decisions = merged_decisions(answers)
        if not decisions:
            others_silent = f" ({', '.join(silent)} did not answer)" if silent else ""
            await context.abort(
                grpc.StatusCode.NOT_FOUND,
                f"nothing is remembered of request {request.request_id!r}{others_silent}: it is "
                "too long ago, or the scheduler that placed it was started again since",
            )
        missing = f"what {', '.join(silent)} decided is not shown: no answer" if silent else ""
        return cluster_pb2.ListDecisionsResponse(decisions=decisions, stale_reason=missing)

    async def ListReplicas(
        self, request: cluster_pb2.ListReplicasRequest, context: Any
    ) -> cluster_pb2.ListReplicasResponse:
        """See cluster.proto; an operator's read."""
        group = await self._replica_group(context)
        return cluster_pb2.ListReplicasResponse(replicas=await group.list_replicas())

    async def TransferGroup(
        self, request: cluster_pb2.TransferGroupRequest, context: Any
    ) -> cluster_pb2.TransferGroupResponse:
        """See cluster.proto; for operators."""
        group = await self._replica_group(context)
        async with _refusals(context):
            former = await group.transfer(request.target)
        return cluster_pb2.TransferGroupResponse(former=former)

    async def SnapshotReplica(
        self, request: cluster_pb2.SnapshotReplicaRequest, context: Any
    ) -> cluster_pb2.SnapshotReplicaResponse:
        """See cluster.proto; for operators."""
        group = await self._replica_group(context)
        async with _refusals(context):
            index = await group.take_snapshot(request.replica)
        return cluster_pb2.SnapshotReplicaResponse(snapshot_index=index)

    async def _replica_group(self, context: Any) -> ReplicaGroup:
        await self._admit_operator(context)
        if self._group is None:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "this scheduler keeps no log")
        assert self._group is not None  # abort raised
        return self._group

    async def LocateBlocks(
        self, request: cluster_pb2.LocateBlocksRequest, context: Any
    ) -> cluster_pb2.LocateBlocksResponse:
        """See cluster.proto; an operator's read."""
        await self._admit_operator(context)
        holder = self._handler.blocks.holder_of(request.what)
        if holder is not None and self._leader is not None:
            answer = await self._leader.ask("LocateBlocks", request, context, scheduler=holder)
            if answer is not None:
                passed_on: cluster_pb2.LocateBlocksResponse = answer
                return passed_on
        async with _refusals(context, stale=self._handler.stale_reason):
            told = await self._handler.blocks.locate(request.what)
        told.stale_reason = self._handler.stale_reason
        if holder is not None and not told.stale_reason:
            told.stale_reason = f"scheduler {holder}, which has it, does not answer: {MAY_BE_OLD}"
        return told

    @property
    def _in_place_of_leader(self) -> str:
        """Why what is answered here, and the leader would know better, may be old."""
        if (reason := self._handler.stale_reason) or self._leader is None:
            return reason
        silent = self._leader.leads_elsewhere
        return f"the scheduler that leads does not answer: {MAY_BE_OLD}" if silent else ""

    async def _of_leader(self, method: str, request: Any, context: Any) -> Any | None:
        return None if self._leader is None else await self._leader.ask(method, request, context)

    async def _caller(self, context: Any) -> CertificateIdentity | None:
        try:
            return self._security.caller(context)
        except PeerRefused as error:
            await self._refuse(context, error, claimed="")
            raise  # not reached: abort raised

    async def _admit_operator(self, context: Any) -> None:
        try:
            check_role(self._security.caller(context), _OPERATORS)
        except PeerRefused as error:
            await self._refuse(context, error, claimed="")
            raise  # not reached: abort raised

    async def _refuse(self, context: Any, error: PeerRefused, *, claimed: str) -> None:
        self.refused_caller_count += 1
        log.warning("caller_refused", peer=context.peer(), claimed=claimed, reason=str(error))
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))

    async def _join(self, context: Any, caller: CertificateIdentity | None) -> NodeSession:
        first = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_HELLO_TIMEOUT_S):
                first = await context.read()
        if first is None or first is grpc.aio.EOF or first.WhichOneof("message") != "hello":
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION, "the first message of a stream must be hello"
            )
        assert first is not None  # abort raised
        hello = first.hello
        if hello.protocol_version not in ACCEPTED_PROTOCOL_VERSIONS:
            accepted = " and ".join(map(str, ACCEPTED_PROTOCOL_VERSIONS))
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"node {hello.identity.name} speaks protocol version {hello.protocol_version}, "
                f"this scheduler takes {accepted}: upgrade the older one",
            )
        try:
            _check_hello(caller, hello)
        except PeerRefused as error:
            await self._refuse(context, error, claimed=f"{hello.role}/{hello.identity.name}")
        session = NodeSession(identity_from_proto(hello.identity), hello)
        async with _refusals(context):
            await self._handler.node_joining(hello)
            self._handler.node_attached(session)
        return session

    async def _read(self, session: NodeSession, context: Any) -> None:
        while (message := await context.read()) is not grpc.aio.EOF:
            self._handler.node_said(session, message)

    async def _write(self, session: NodeSession, context: Any) -> None:
        while True:
            for message in coalesce(
                await session.outbox.take(), kinds=("submits", "cancels", "claims")
            ):
                await context.write(message)


def merged_decisions(
    answers: Mapping[str, cluster_pb2.ListDecisionsResponse],
) -> list[cluster_pb2.Decision]:
    """Of several schedulers by name, oldest first. Each says who decided it."""
    decisions: list[cluster_pb2.Decision] = []
    for name, answer in answers.items():
        for decision in answer.decisions:
            decision.scheduler = name
            decisions.append(decision)
    return sorted(decisions, key=lambda one: -one.age_s)


@contextlib.asynccontextmanager
async def _refusals(context: Any, *, stale: str = "") -> AsyncIterator[None]:
    """End the call with a status where what is done inside is refused; see ``_STATUSES``.

    ``stale``: why what is not known here may be known to others.
    """
    try:
        yield
    except tuple(_STATUSES) as error:
        status = next(status for kind, status in _STATUSES.items() if isinstance(error, kind))
        not_found = stale and status is grpc.StatusCode.NOT_FOUND
        await context.abort(status, f"{error} ({stale})" if not_found else str(error))
        raise  # not reached: abort raised


def _check_hello(caller: CertificateIdentity | None, hello: cluster_pb2.Hello) -> None:
    """Raises PeerRefused. What is no role at all is left to the handler, which names those."""
    claimed = [role for role in NODE_ROLES if role.value == hello.role]
    check_claim(caller, name=hello.identity.name, roles=claimed or NODE_ROLES)
