"""Obeys ``transfer.peer_book``: a node's connections to its peers, and what it says of them."""

from collections.abc import Mapping

import structlog

from pdd.config.sections import Config
from pdd.control.convert import identity_from_proto
from pdd.core.ports import Clock
from pdd.engine.port import Engine, EngineInfo
from pdd.rpc.v1 import cluster_pb2
from pdd.transfer.environment import ucx_environment
from pdd.transfer.pairing import PeerNode
from pdd.transfer.peer_book import (
    Action,
    ConnectRanks,
    DisconnectRanks,
    JoinSettings,
    PeerBook,
    RefusePeer,
)
from pdd.transfer.rdma import rdma_fault

log = structlog.get_logger(__name__)


def join_settings(config: Config, environment: Mapping[str, str]) -> JoinSettings:
    """What this node's connections are measured by. Looks for RDMA where it is expected, which may
    take a second.

    ``environment``: of the process that will load UCX, but for what the transport adds to it.
    """
    transfer = config.transfer
    transport = transfer.transport.value
    added = ucx_environment(transport=transport, devices=",".join(transfer.devices) or None)
    reason = ""
    if transfer.expect_rdma and (fault := rdma_fault({**environment, **added})):
        reason = f"RDMA is expected (transfer.expect_rdma) and cannot be had: {fault}"
    return JoinSettings(
        rdma_expected=transfer.expect_rdma,
        floor_bytes_per_s=transfer.floor_gb_per_s * 1e9,
        standing_reason=reason,
    )


class NodePeers:
    """All calls on the event loop; ``look`` once per heartbeat."""

    def __init__(
        self, *, engine: Engine, info: EngineInfo, settings: JoinSettings, clock: Clock
    ) -> None:
        self._engine = engine
        self._clock = clock
        self._book = PeerBook(
            fingerprint=info.fingerprint, rank_count=len(info.ucx_addresses), settings=settings
        )

    @property
    def degraded_reason(self) -> str:
        """Why its connections are slower than they should be; empty when they are not."""
        return self._book.degraded_reason

    def refusal(self, uuid: str) -> str:
        """Why this node takes no blocks from another; empty when it does."""
        return self._book.refusal(uuid)

    def joined(self, scheduler: str, message: cluster_pb2.PeersJoined) -> None:
        """That scheduler names peers."""
        peers = [_peer_from_proto(peer) for peer in message.peers]
        self._obey(
            self._book.joined(scheduler, peers, complete=message.complete, now_s=self._clock())
        )

    def left(self, scheduler: str, message: cluster_pb2.PeerLeft) -> None:
        """That scheduler has lost a peer."""
        self._obey(self._book.left(scheduler, identity_from_proto(message.identity)))

    def scheduler_lost(self, scheduler: str) -> None:
        """Its stream has ended."""
        self._book.teller_lost(scheduler)

    def ask(self) -> None:
        """Have the connections looked at, for the next ``look``: so it tells what is, not what was
        a heartbeat ago."""
        self._engine.connections()

    def look(self) -> None:
        """Take the connections as they were when last asked for."""
        self._obey(self._book.looked(self._engine.connections(), now_s=self._clock()))

    def links(self) -> list[cluster_pb2.PeerLink]:
        """For ``NodeStatus``."""
        return [
            cluster_pb2.PeerLink(
                peer=report.peer,
                transport=report.transport,
                lanes=report.lanes,
                received_bytes=report.received_bytes,
                bytes_per_s=report.bytes_per_s,
                refused_reason=report.refused_reason,
            )
            for report in self._book.reports()
        ]

    def _obey(self, actions: list[Action]) -> None:
        for action in actions:
            name = action.peer.name
            match action:
                case ConnectRanks():
                    if action.again:
                        log.warning("peer_connected_again", peer=name, ranks=len(action.links))
                    else:
                        log.info("peer_joined", peer=name, boot_epoch=action.peer.boot_epoch)
                    self._engine.connect(action.links)
                case DisconnectRanks():
                    log.info("peer_left", peer=name, boot_epoch=action.peer.boot_epoch)
                    self._engine.disconnect(action.links)
                case RefusePeer():
                    log.error("peer_refused", peer=name, reason=action.reason)


def _peer_from_proto(message: cluster_pb2.PeerNode) -> PeerNode:
    return PeerNode(
        identity=identity_from_proto(message.identity),
        control_address=message.address,
        ucx_addresses=tuple(message.ucx_worker_addresses),
        fingerprint=dict(message.fingerprint),
    )
