"""Between nodes: the relay of transfer control messages, both directions.

The transfer protocol expects messages to be lost or late and has deadlines of its own, so a
relay that fails is never retried here. It is logged once for each life of a peer, until a message
arrives there again: a node that is gone would else be told of with every repeated message.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import grpc
import structlog

from pdd.control.convert import identity_from_proto, identity_to_proto
from pdd.control.retiring_channels import RetiringChannels
from pdd.control.versions import CHANNEL_OPTIONS
from pdd.core.identity import NodeIdentity
from pdd.engine.port import PeerControl
from pdd.rpc.v1 import node_pb2, node_pb2_grpc
from pdd.tls.claims import PeerRefused, check_claim
from pdd.tls.security import PLAIN, Security

log = structlog.get_logger(__name__)

_RELAY_TIMEOUT_S = 5.0
_RELAYS_IN_FLIGHT_MAX = 4096
"""At the bound a message is dropped and logged; its transfer runs into its deadline."""
_PEERS_MAX = 512
"""Open channels, and peers that are known to be failing. At the bound the one that was unused
longest is closed, and the one that began to fail first is forgotten (then logged anew)."""


class PeerServicer(node_pb2_grpc.NodeServicer):
    """grpc.aio servicer; see node.proto."""

    def __init__(
        self,
        *,
        identity: NodeIdentity,
        rank_count: int,
        deliver: Callable[[PeerControl], None],
        security: Security = PLAIN,
    ) -> None:
        self._identity = identity
        self._rank_count = rank_count
        self._deliver = deliver
        self._security = security
        self.refused_caller_count = 0
        """Messages in the name of a node other than the one whose certificate came with them."""

    async def Relay(self, request: node_pb2.RelayRequest, context: Any) -> node_pb2.RelayResponse:
        """Hand a message to one rank."""
        await self._check_source(request.source.name, context)
        target = identity_from_proto(request.target)
        if target != self._identity:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"message is for {target}, this is {self._identity}",
            )
        if not 0 <= request.target_rank < self._rank_count:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"target_rank is {request.target_rank}, this node has {self._rank_count} ranks",
            )
        self._deliver(
            PeerControl(
                own_rank=request.target_rank,
                peer=identity_from_proto(request.source),
                peer_rank=request.source_rank,
                peer_address=request.source_address,
                peer_ucx_address=b"",
                payload=request.payload,
            )
        )
        return node_pb2.RelayResponse()

    async def _check_source(self, name: str, context: Any) -> None:
        """A grant moves blocks to whoever it names, so nobody may speak in another's name."""
        try:
            check_claim(self._security.caller(context), name=name)
        except PeerRefused as error:
            self.refused_caller_count += 1
            log.warning("caller_refused", peer=context.peer(), claimed=name, reason=str(error))
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))


class PeerClient:
    """Sends to any node. One channel per address, opened on first use and kept.

    A channel whose certificate has been renewed is replaced at its next use.
    """

    def __init__(
        self, *, identity: NodeIdentity, own_address: str, security: Security = PLAIN
    ) -> None:
        self._identity = identity
        self._own_address = own_address
        self._security = security
        self._version = security.version()
        self._channels: OrderedDict[str, grpc.aio.Channel] = OrderedDict()
        self._in_flight: set[asyncio.Task[None]] = set()
        self._retiring = RetiringChannels(grace_s=_RELAY_TIMEOUT_S)
        self._failed: OrderedDict[tuple[str, int], int] = OrderedDict()  # by uuid and life
        self._closing = False

    def send(self, message: PeerControl) -> None:
        """Fire and forget."""
        if len(self._in_flight) >= _RELAYS_IN_FLIGHT_MAX:
            self._note_failure(message, f"{_RELAYS_IN_FLIGHT_MAX} relays are in flight")
            return
        task = asyncio.create_task(self._relay(message))
        self._in_flight.add(task)
        task.add_done_callback(self._in_flight.discard)

    async def close(self) -> None:
        """Cancel what is in flight, wait for it, close every channel."""
        self._closing = True
        in_flight = list(self._in_flight)
        for task in in_flight:
            task.cancel()
        if in_flight:
            await asyncio.wait(in_flight)
        for channel in self._channels.values():
            await channel.close()
        self._channels.clear()
        await self._retiring.wait_closed()

    async def _relay(self, message: PeerControl) -> None:
        request = node_pb2.RelayRequest(
            source=identity_to_proto(self._identity),
            source_rank=message.own_rank,
            source_address=self._own_address,
            target=identity_to_proto(message.peer),
            target_rank=message.peer_rank,
            payload=message.payload,
        )
        try:
            stub = node_pb2_grpc.NodeStub(await self._channel(message.peer_address))
            await stub.Relay(request, timeout=_RELAY_TIMEOUT_S)
            self._note_success(message)
        except grpc.aio.AioRpcError as error:
            self._note_failure(message, f"{error.code().name}: {error.details()}")
        except asyncio.CancelledError:
            if not self._closing:  # then it is gRPC's, whose channel was closed at the bound
                self._note_failure(
                    message, f"its channel was closed: {_PEERS_MAX} others are in use"
                )
            raise
        except Exception as error:
            # gRPC's own (a channel closed before the call) or a bug. Nobody waits for this task,
            # and a message that is lost is what the transfer protocol expects.
            log.exception("peer_relay_crashed", peer=message.peer.name, error=type(error).__name__)

    def _note_failure(self, message: PeerControl, reason: str) -> None:
        peer = (message.peer.uuid, message.peer.boot_epoch)
        if peer not in self._failed:
            log.warning("peer_relay_failed", peer=message.peer.name, reason=reason)
        self._failed[peer] = self._failed.get(peer, 0) + 1
        while len(self._failed) > _PEERS_MAX:
            self._failed.popitem(last=False)

    def _note_success(self, message: PeerControl) -> None:
        failed_count = self._failed.pop((message.peer.uuid, message.peer.boot_epoch), 0)
        if failed_count:
            log.info("peer_relay_works_again", peer=message.peer.name, failed_count=failed_count)

    async def _channel(self, address: str) -> grpc.aio.Channel:
        version = self._security.version()
        if version is not self._version:
            self._version = version
            former = list(self._channels.values())
            self._channels.clear()
            for channel in former:
                self._retiring.add(channel)
        channel = self._channels.get(address)
        if channel is None:
            channel = self._security.channel(address, options=CHANNEL_OPTIONS)
            self._channels[address] = channel
            if len(self._channels) > _PEERS_MAX:
                _, oldest = self._channels.popitem(last=False)
                await oldest.close()
        self._channels.move_to_end(address)
        return channel
