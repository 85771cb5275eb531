"""To all peers: one message stream each, and one snapshot at a time each.

    driver --send----------> PeerQueue --> PeerSender --> stream   (bounded; drops, counted)
    driver --send_snapshot-> task -------> InstallSnapshot stream  (one per peer; others refused)
                               '--> report_snapshot(peer, delivered=...)

Nothing here blocks the driver or raises into it: to the consensus core a peer that is down, slow or
refused is a network that loses messages.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import replace

import grpc.aio
import structlog

from pdd.raft.codec import Identity, encode_message
from pdd.raft.config import RaftConfig
from pdd.raft.messages import AppendRequest, InstallSnapshot, Message
from pdd.raft.values import NodeId
from pdd.replication.grpc_options import CHANNEL_OPTIONS
from pdd.replication.hello import make_hello
from pdd.replication.peer_sender import PeerSender
from pdd.replication.snapshot_stream import cut, deadline_s
from pdd.rpc.v1.raft_pb2_grpc import RaftStub
from pdd.tls.security import PLAIN, Security

log = structlog.get_logger(__name__)

ReportSnapshot = Callable[[NodeId, bool], None]
"""``(peer, delivered)``, called in the loop."""


class Transport:
    def __init__(
        self,
        config: RaftConfig,
        addresses: Mapping[NodeId, str],
        *,
        rng: random.Random,
        security: Security = PLAIN,
    ) -> None:
        """``addresses``: ``host:port`` of every voter, this one included."""
        self._config = config
        self._security = security
        self._identity = Identity.of(config)
        self._hello = make_hello(config)
        self._senders = {
            peer: PeerSender(config, peer, addresses[peer], rng=rng, security=security)
            for peer in config.peers
        }
        self._snapshots: dict[NodeId, asyncio.Task[None]] = {}
        self.report_snapshot: ReportSnapshot = lambda peer, delivered: None

    @property
    def dropped_count(self) -> int:
        return sum(sender.queue.dropped_count for sender in self._senders.values())

    def connected(self) -> list[NodeId]:
        return [peer for peer, sender in self._senders.items() if sender.is_connected]

    async def run(self) -> None:
        """Until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for sender in self._senders.values():
                    tasks.create_task(sender.run())
                if not self._senders:
                    await asyncio.Event().wait()  # alone: nothing to send, and no reason to end
        finally:
            for task in list(self._snapshots.values()):
                task.cancel()

    def send(self, message: Message) -> None:
        # An append without entries passes on a commit index: nobody waits for it.
        can_wait = isinstance(message, AppendRequest) and not message.entries
        data = encode_message(message, self._identity)
        self._senders[message.target].send(data, can_wait=can_wait)

    def send_snapshot(self, message: InstallSnapshot) -> None:
        """Reports through `report_snapshot` how it ended, as far as this side knows."""
        peer = message.target
        if peer in self._snapshots:
            return  # the one under way reports; the core asks again if it was not enough
        self._snapshots[peer] = asyncio.get_running_loop().create_task(self._transfer(message))

    async def _transfer(self, message: InstallSnapshot) -> None:
        peer, size_bytes = message.target, len(message.data)
        header = encode_message(replace(message, data=b""), self._identity)
        requests = cut(message.data, hello=self._hello, message=header)
        delivered, fault = False, ""
        try:
            # A channel of its own: its bytes fill no window that heartbeats need.
            address = self._senders[peer].address
            async with self._security.channel(address, options=CHANNEL_OPTIONS) as channel:
                await RaftStub(channel).InstallSnapshot(requests, timeout=deadline_s(size_bytes))
            delivered = True
        except grpc.aio.AioRpcError as error:
            fault = f"{error.code().name}: {error.details()}"
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise  # `run` ends
            fault = "gRPC cancelled the call"  # what it does when a write of ours goes wrong
        finally:
            # However it ended, and before the report, which may ask for the next one at once.
            self._snapshots.pop(peer, None)
        index = message.meta.index
        if delivered:
            log.info("raft_snapshot_sent", peer=peer, index=index, size_bytes=size_bytes)
        else:
            log.warning("raft_snapshot_not_sent", peer=peer, index=index, reason=fault)
        self.report_snapshot(peer, delivered)
