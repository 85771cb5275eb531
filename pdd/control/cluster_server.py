"""The scheduler's end of the nodes' streams: the Cluster service.

Over TLS a node is believed to be whom its certificate names, and only if it says the same. It
attaches and no more: what is asked by hand, the reads too, is for an operator's certificate (role
client) and for schedulers', as with a replica (``replication.client_service``). Nothing that a node
does needs it, and one stolen node key must not drain the others.
"""

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any, Protocol, cast

import grpc
import structlog

from pdd.control.convert import identity_from_proto, identity_to_proto
from pdd.control.leader_cluster import LeaderCluster
from pdd.control.outbox import Outbox, OutboxOverflow, coalesce
from pdd.control.role_operator import RoleOperator, RoleRefused, RoleUnknown
from pdd.control.versions import ACCEPTED_PROTOCOL_VERSIONS, PROTOCOL_VERSION
from pdd.core.errors import RemoteError
from pdd.core.identity import NodeIdentity
from pdd.rpc.v1 import cluster_pb2, cluster_pb2_grpc
from pdd.tls.claims import NODE_ROLES, PeerRefused, check_claim, check_role
from pdd.tls.identity import CertificateIdentity, CertificateRole
from pdd.tls.security import PLAIN, Security

log = structlog.get_logger(__name__)

_HELLO_TIMEOUT_S = 10.0
_OPERATORS = (CertificateRole.CLIENT, CertificateRole.SCHEDULER)


class JoinRefused(Exception):
    """A node does not fit the cluster. The message names what differs, with both values."""


class NodeSession:
    """One attached node. ``send`` may be called from the event loop at any time."""

    def __init__(self, identity: NodeIdentity, hello: cluster_pb2.Hello) -> None:
        self.identity = identity
        self.hello = hello
        self.outbox: Outbox[cluster_pb2.SchedulerMessage] = Outbox()
        self.closed = asyncio.Event()
        self.close_reason = ""

    def submit(self, submit: cluster_pb2.Submit) -> None:
        """Queue new work."""
        self.outbox.put(
            cluster_pb2.SchedulerMessage(submits=cluster_pb2.SubmitBatch(submits=[submit]))
        )

    def cancel(self, request_id: str) -> None:
        """Queue a cancellation."""
        self.outbox.put(
            cluster_pb2.SchedulerMessage(cancels=cluster_pb2.CancelBatch(request_ids=[request_id]))
        )

    def first_token(
        self,
        request_id: str,
        generation: int,
        token_ids: Mapping[int, int],
        *,
        has_choices: bool = False,
        frame: cluster_pb2.TokenFrame | None = None,
    ) -> None:
        """Queue output token 0 of a decode job's choices, and the frame that an only one came in.

        ``has_choices``: the request has several, though perhaps all but one have ended.
        """
        message = cluster_pb2.FirstToken(request_id=request_id, generation=generation, frame=frame)
        if has_choices:
            message.choices.extend(
                cluster_pb2.ChoiceToken(index=index, token_id=token_id)
                for index, token_id in token_ids.items()
            )
        else:
            (message.token_id,) = token_ids.values()
        self.outbox.put(cluster_pb2.SchedulerMessage(first_token=message))

    def claim(self, request_id: str, generation: int) -> None:
        """Ask for all of a request that the node holds."""
        claim = cluster_pb2.Claim(request_id=request_id, generation=generation)
        claims = cluster_pb2.ClaimBatch(claims=[claim])
        self.outbox.put(cluster_pb2.SchedulerMessage(claims=claims))

    def seek(self, request_id: str, resume_key: bytes) -> None:
        """Ask whether the node holds a request, by its id or else by its key."""
        seek = cluster_pb2.Seek(request_id=request_id, resume_key=resume_key)
        self.outbox.put(cluster_pb2.SchedulerMessage(seek=seek))

    def introduce(self, peers: list[cluster_pb2.PeerNode], *, complete: bool) -> None:
        """Queue news of peers."""
        joined = cluster_pb2.PeersJoined(peers=peers, complete=complete)
        self.outbox.put(cluster_pb2.SchedulerMessage(peers_joined=joined))

    def dismiss(self, identity: NodeIdentity) -> None:
        """Queue the news that a peer has left."""
        left = cluster_pb2.PeerLeft(identity=identity_to_proto(identity))
        self.outbox.put(cluster_pb2.SchedulerMessage(peer_left=left))

    def ask_cache_snapshot(self) -> None:
        """Queue the question what its prefix cache holds."""
        ask = cluster_pb2.AskCacheSnapshot()
        self.outbox.put(cluster_pb2.SchedulerMessage(ask_cache_snapshot=ask))

    def ask_blocks(self, request_id: str, generation: int) -> None:
        """Queue a question for a request's blocks."""
        ask = cluster_pb2.AskBlocks(request_id=request_id, generation=generation)
        self.outbox.put(cluster_pb2.SchedulerMessage(ask_blocks=ask))

    def close(self, reason: str) -> None:
        """End the stream from this side. Idempotent."""
        self.close_reason = self.close_reason or reason
        self.closed.set()


class UnknownNode(Exception):
    """There is no node of that name. The message names those that there are."""


class UnknownRequest(Exception):
    """The request does not run here, or nobody holds the block. The message says what is known."""


class TooManyAsk(Exception):
    """So many questions wait for answers that one more is refused."""


class ClusterOperator(Protocol):
    """What an operator may ask by hand."""

    async def cordon(self, name: str, *, message: str, is_drain: bool) -> bool:
        """Take a node out; whether that changed anything. Raises UnknownNode; RemoteError: the
        schedulers could not agree on it in time."""
        ...

    async def uncordon(self, name: str) -> bool:
        """Give a node back; whether that changed anything. Raises likewise."""
        ...

    def drain_state(self, name: str) -> cluster_pb2.DrainState:
        """How far a node is from holding nothing. Raises UnknownNode."""
        ...

    def decisions(self, request_id: str) -> list[cluster_pb2.Decision]:
        """How a request was placed, oldest first; empty if nothing is remembered of it."""
        ...


class ReplicaGroup(Protocol):
    """The replicas of the schedulers' log, as an operator sees them."""

    async def list_replicas(self) -> list[cluster_pb2.ReplicaInfo]:
        """Each as it answers now, by name; also those that do not."""
        ...

    async def transfer(self, target: str) -> str:
        """Begin to hand leadership to ``target``; who led until now. Raises UnknownReplica,
        GroupRefused, RemoteError."""
        ...

    async def take_snapshot(self, replica: str) -> int:
        """The log index that it covers. Raises UnknownReplica, RemoteError."""
        ...


class UnknownReplica(Exception):
    """There is no replica of that name. The message names those that there are."""


class GroupRefused(Exception):
    """The leader will not. The message says why."""


class BlockFinder(Protocol):
    """Where blocks are."""

    async def locate(self, what: str) -> cluster_pb2.LocateBlocksResponse:
        """Where a running request is, or a block by its key. Raises UnknownRequest, TooManyAsk."""
        ...


class ClusterHandler(Protocol):
    """Who is told what nodes say. All calls come on the event loop, in stream order per node."""

    async def node_joining(self, hello: cluster_pb2.Hello) -> None:
        """Agree with the other schedulers on this life of the node, before it is attached. Raises
        JoinRefused; RemoteError: they could not agree in time."""
        ...

    def node_attached(self, session: NodeSession) -> None:
        """Raises JoinRefused."""
        ...

    def node_said(self, session: NodeSession, message: cluster_pb2.NodeMessage) -> None:
        """Any message after the hello."""
        ...

    def node_detached(self, session: NodeSession, reason: str) -> None:
        """The stream is over."""
        ...

    def list_nodes(self) -> list[cluster_pb2.NodeInfo]:
        """For ``ListNodes``."""
        ...

    @property
    def life(self) -> str:
        """Names this process among all schedulers that there ever were."""
        ...

    @property
    def operator(self) -> ClusterOperator:
        """For what is asked by hand."""
        ...

    @property
    def role_operator(self) -> RoleOperator:
        """For what is asked about roles."""
        ...

    @property
    def blocks(self) -> BlockFinder:
        """For ``LocateBlocks``."""
        ...


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
        closed = asyncio.create_task(session.closed.wait())
        talk = {
            asyncio.create_task(self._read(session, context)),
            asyncio.create_task(self._write(session, context)),
            asyncio.create_task(session.outbox.wait_overflow()),
        }
        try:
            done, _ = await asyncio.wait({*talk, closed}, return_when=asyncio.FIRST_COMPLETED)
            reason = session.close_reason or "the node closed its stream"
            for task in done - {closed}:
                if (error := task.exception()) is not None:
                    if not isinstance(error, (grpc.RpcError, grpc.aio.UsageError, OutboxOverflow)):
                        raise error
                    reason = f"stream broke: {error}"
            return reason
        finally:
            for task in (*talk, closed):
                task.cancel()

    async def ListNodes(
        self, request: cluster_pb2.ListNodesRequest, context: Any
    ) -> cluster_pb2.ListNodesResponse:
        """All nodes by name; an operator's read."""
        await self._admit_operator(context)
        return cluster_pb2.ListNodesResponse(nodes=self._handler.list_nodes())

    async def CordonNode(
        self, request: cluster_pb2.CordonNodeRequest, context: Any
    ) -> cluster_pb2.CordonNodeResponse:
        """See cluster.proto; for operators."""
        await self._admit_operator(context)
        if (answer := await self._of_leader("CordonNode", request, context)) is not None:
            return cast("cluster_pb2.CordonNodeResponse", answer)
        try:
            is_changed = await self._handler.operator.cordon(
                request.node, message=request.message, is_drain=request.is_drain
            )
            state = self._handler.operator.drain_state(request.node)
        except RemoteError as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
            raise  # not reached: abort raised
        except UnknownNode as error:
            await context.abort(grpc.StatusCode.NOT_FOUND, str(error))
            raise  # not reached: abort raised
        return cluster_pb2.CordonNodeResponse(is_changed=is_changed, state=state)

    async def UncordonNode(
        self, request: cluster_pb2.UncordonNodeRequest, context: Any
    ) -> cluster_pb2.UncordonNodeResponse:
        """See cluster.proto; for operators."""
        await self._admit_operator(context)
        if (answer := await self._of_leader("UncordonNode", request, context)) is not None:
            return cast("cluster_pb2.UncordonNodeResponse", answer)
        try:
            is_changed = await self._handler.operator.uncordon(request.node)
        except RemoteError as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
            raise  # not reached: abort raised
        except UnknownNode as error:
            await context.abort(grpc.StatusCode.NOT_FOUND, str(error))
            raise  # not reached: abort raised
        return cluster_pb2.UncordonNodeResponse(is_changed=is_changed)

    async def GetDrainState(
        self, request: cluster_pb2.GetDrainStateRequest, context: Any
    ) -> cluster_pb2.GetDrainStateResponse:
        """See cluster.proto; an operator's read."""
        await self._admit_operator(context)
        if (answer := await self._of_leader("GetDrainState", request, context)) is not None:
            return cast("cluster_pb2.GetDrainStateResponse", answer)
        try:
            state = self._handler.operator.drain_state(request.node)
        except UnknownNode as error:
            await context.abort(grpc.StatusCode.NOT_FOUND, str(error))
            raise  # not reached: abort raised
        return cluster_pb2.GetDrainStateResponse(state=state)

    async def SetNodeRole(
        self, request: cluster_pb2.SetNodeRoleRequest, context: Any
    ) -> cluster_pb2.SetNodeRoleResponse:
        """See cluster.proto; for operators."""
        await self._admit_operator(context)
        if (answer := await self._of_leader("SetNodeRole", request, context)) is not None:
            return cast("cluster_pb2.SetNodeRoleResponse", answer)
        operator = self._handler.role_operator
        try:
            is_changed = await operator.set_role(
                request.node, request.role, message=request.message
            )
            role = operator.role_of(request.node)
        except RemoteError as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
            raise  # not reached: abort raised
        except UnknownNode as error:
            await context.abort(grpc.StatusCode.NOT_FOUND, str(error))
            raise  # not reached: abort raised
        except RoleUnknown as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            raise  # not reached: abort raised
        except RoleRefused as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
            raise  # not reached: abort raised
        return cluster_pb2.SetNodeRoleResponse(is_changed=is_changed, role=role)

    async def GetRoles(
        self, request: cluster_pb2.GetRolesRequest, context: Any
    ) -> cluster_pb2.GetRolesResponse:
        """See cluster.proto; an operator's read."""
        await self._admit_operator(context)
        if (answer := await self._of_leader("GetRoles", request, context)) is not None:
            return cast("cluster_pb2.GetRolesResponse", answer)
        return self._handler.role_operator.roles()

    async def ListDecisions(
        self, request: cluster_pb2.ListDecisionsRequest, context: Any
    ) -> cluster_pb2.ListDecisionsResponse:
        """See cluster.proto; an operator's read."""
        await self._admit_operator(context)
        if (answer := await self._of_leader("ListDecisions", request, context)) is not None:
            return cast("cluster_pb2.ListDecisionsResponse", answer)
        decisions = self._handler.operator.decisions(request.request_id)
        if not decisions:
            await context.abort(
                grpc.StatusCode.NOT_FOUND,
                f"nothing is remembered of request {request.request_id!r}: it is too long ago, or "
                "another scheduler had it",
            )
        return cluster_pb2.ListDecisionsResponse(decisions=decisions)

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
        try:
            former = await group.transfer(request.target)
        except (UnknownReplica, GroupRefused, RemoteError) as error:
            await context.abort(_group_status(error), str(error))
            raise  # not reached: abort raised
        return cluster_pb2.TransferGroupResponse(former=former)

    async def SnapshotReplica(
        self, request: cluster_pb2.SnapshotReplicaRequest, context: Any
    ) -> cluster_pb2.SnapshotReplicaResponse:
        """See cluster.proto; for operators."""
        group = await self._replica_group(context)
        try:
            index = await group.take_snapshot(request.replica)
        except (UnknownReplica, RemoteError) as error:
            await context.abort(_group_status(error), str(error))
            raise  # not reached: abort raised
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
        try:
            return await self._handler.blocks.locate(request.what)
        except UnknownRequest as error:
            await context.abort(grpc.StatusCode.NOT_FOUND, str(error))
            raise  # not reached: abort raised
        except TooManyAsk as error:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
            raise  # not reached: abort raised

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
        try:
            await self._handler.node_joining(hello)
            self._handler.node_attached(session)
        except RemoteError as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        except JoinRefused as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
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


def _group_status(error: Exception) -> grpc.StatusCode:
    if isinstance(error, UnknownReplica):
        return grpc.StatusCode.NOT_FOUND
    if isinstance(error, GroupRefused):
        return grpc.StatusCode.FAILED_PRECONDITION
    return grpc.StatusCode.UNAVAILABLE


def _check_hello(caller: CertificateIdentity | None, hello: cluster_pb2.Hello) -> None:
    """Raises PeerRefused. What is no role at all is left to the handler, which names those."""
    claimed = [role for role in NODE_ROLES if role.value == hello.role]
    check_claim(caller, name=hello.identity.name, roles=claimed or NODE_ROLES)
