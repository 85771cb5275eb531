"""What peers send to this replica: the server side of `Raft`.

The stream's hello fixes the sender, and over TLS that must be the scheduler whom the certificate
names. A message that names another source is dropped, and its stream ends. What cannot be decoded
is dropped and counted: a newer peer may say things this one does not know yet.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

import grpc.aio
import structlog

from pdd.raft.codec import DecodeError, Identity, decode_message
from pdd.raft.config import RaftConfig
from pdd.raft.messages import InstallSnapshot, Message
from pdd.raft.values import NodeId
from pdd.replication.hello import HelloRefusedError, check_hello, make_hello
from pdd.replication.snapshot_stream import Assembly, SnapshotBrokenError, SnapshotTooLongError
from pdd.rpc.v1.raft_pb2 import (
    DeliverRequest,
    DeliverResponse,
    InstallSnapshotRequest,
    InstallSnapshotResponse,
    ReplicaHello,
)
from pdd.rpc.v1.raft_pb2_grpc import RaftServicer
from pdd.tls.claims import PeerRefused, check_claim
from pdd.tls.identity import CertificateRole
from pdd.tls.security import PLAIN, Security

log = structlog.get_logger(__name__)


class Inbound(Protocol):
    def receive(self, message: Message, *, size_bytes: int) -> None:
        """Take one message, or drop it at the bound. Never blocks, never raises."""


class ForgedSourceError(PeerRefused):
    """A peer sent a message in another replica's name."""


class PeerService(RaftServicer):
    def __init__(self, config: RaftConfig, inbound: Inbound, *, security: Security = PLAIN) -> None:
        self._config = config
        self._identity = Identity.of(config)
        self._inbound = inbound
        self._security = security
        self._is_receiving_snapshot = False
        self.undecodable_count = 0

    async def Deliver(
        self,
        request_iterator: AsyncIterator[DeliverRequest],
        context: grpc.aio.ServicerContext,
    ) -> AsyncIterator[DeliverResponse]:
        first = await anext(request_iterator, None)
        if first is None or not first.HasField("hello"):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the first request has no hello")
            raise AssertionError("abort() returned")
        sender = await self._admit(first.hello, context)
        yield DeliverResponse(hello=make_hello(self._config))
        async for request in request_iterator:
            for data in request.messages:
                try:
                    self._take(sender, data)
                except ForgedSourceError as error:
                    log.warning("raft_message_forged", peer=sender, reason=str(error))
                    await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))

    async def InstallSnapshot(
        self,
        request_iterator: AsyncIterator[InstallSnapshotRequest],
        context: grpc.aio.ServicerContext,
    ) -> InstallSnapshotResponse:
        first = await anext(request_iterator, None)
        if first is None or not first.HasField("header"):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the first request has no header")
            raise AssertionError("abort() returned")
        header = first.header
        sender = await self._admit(header.hello, context)
        if self._is_receiving_snapshot:
            # One in memory at a time; the leader tries again.
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "a snapshot is coming in")
        self._is_receiving_snapshot = True
        try:
            assembly = Assembly(header)
            async for request in request_iterator:
                assembly.add(request.chunk)
            self._take(sender, header.message, snapshot=assembly.finish())
        except SnapshotTooLongError as error:
            log.warning("raft_snapshot_refused", peer=sender, reason=str(error))
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        except SnapshotBrokenError as error:
            await context.abort(grpc.StatusCode.DATA_LOSS, str(error))
        except ForgedSourceError as error:
            log.warning("raft_message_forged", peer=sender, reason=str(error))
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))
        finally:
            self._is_receiving_snapshot = False
        return InstallSnapshotResponse()

    async def _admit(self, hello: ReplicaHello, context: grpc.aio.ServicerContext) -> NodeId:
        try:
            check_hello(hello, self._config)
            caller = self._security.caller(context)
            check_claim(caller, name=hello.replica, roles=(CertificateRole.SCHEDULER,))
            return NodeId(hello.replica)
        except HelloRefusedError as error:
            log.warning("raft_peer_refused", peer=hello.replica, reason=str(error))
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        except PeerRefused as error:
            log.warning("raft_peer_refused", peer=hello.replica, reason=str(error))
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))
        raise AssertionError("abort() returned")

    def _take(self, sender: NodeId, data: bytes, *, snapshot: bytes | None = None) -> None:
        """Raises: ForgedSourceError."""
        try:
            message = decode_message(data, self._identity)
        except DecodeError as error:
            self.undecodable_count += 1
            if self.undecodable_count == 1:
                log.warning("raft_message_undecodable", peer=sender, reason=str(error))
            return
        if message.source != sender:
            raise ForgedSourceError(f"{sender!r} sent a message in the name of {message.source!r}")
        if isinstance(message, InstallSnapshot):
            if snapshot is None:
                return  # without its data it would install nothing
            message = InstallSnapshot(
                source=message.source,
                target=message.target,
                term=message.term,
                meta=message.meta,
                data=snapshot,
            )
        self._inbound.receive(message, size_bytes=len(data) + len(snapshot or b""))
