"""Obeys the two protocols, in the one thread that owns the transport.

::

    commands (deque) --> events --> protocol_source / protocol_target --> effects --> transport
                                          ^                                              |
                                          +------- finals, lost peers -- sender, receiver

Everything here happens in the transfer thread, so that a cancel cannot come between the check of
a chunk and its copy into the pool.
"""

import secrets
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import assert_never

from pdd.core.identity import NodeIdentity
from pdd.transfer.connection_numbers import ConnectionNumbers
from pdd.transfer.pool import BlockPool
from pdd.transfer.protocol_source import SourceProtocol
from pdd.transfer.protocol_target import TargetProtocol
from pdd.transfer.protocol_values import (
    FOR_SOURCE,
    ClosePeer,
    Connect,
    ControlReceived,
    Count,
    DiscardChunk,
    Drop,
    Effect,
    Emit,
    Land,
    PeerLost,
    PostRecord,
    ReceiveChunk,
    RecordReceived,
    SendChunk,
    SendControl,
    SendRecord,
    SourceEvent,
    TargetEvent,
    Ticked,
)
from pdd.transfer.receiver import Flow, Receiver, Receiving, RecordBuffer
from pdd.transfer.sender import Sender, Sending
from pdd.transfer.settings import TransferSettings
from pdd.transfer.share import Share
from pdd.transfer.shared import PeerMemories, SharedSlots
from pdd.transfer.staging import Staging
from pdd.transfer.transport import Transport
from pdd.transfer.values import (
    Connection,
    Peer,
    PeerId,
    Reason,
    TargetCompleted,
    TransferEvent,
)
from pdd.wire.address import RankAddress, unpack_address
from pdd.wire.control import Grant, pack_control, unpack_control
from pdd.wire.tag import NONCE_BITS

ACTIVE_POLL_S = 0.1
"""Longest sleep while messages are in flight: UCX looks for dead peers only when it progresses."""
STAGING_LIMIT_BYTES = 256 << 20
HELD_GRANTS = 1024
"""Grants of one peer that wait until a stale endpoint to it is closed; those beyond are dropped,
and said again by the target, as one that was lost on the way."""


class TransferDriver:
    """See the module. ``step`` runs one round; the caller loops and sleeps in between."""

    def __init__(
        self,
        *,
        pool: BlockPool,
        identity: NodeIdentity,
        settings: TransferSettings,
        transport: Transport,
        address: bytes,
        shared: SharedSlots | None = None,
        send_control: Callable[[Peer, bytes], None],
        emit: Callable[[TransferEvent], None],
        counters: Counter[str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pool = pool
        self._identity = identity
        self._settings = settings
        self._transport = transport
        self._send_control = send_control
        self._emit = emit
        self._counters = counters
        counters.update({"ucx_bytes": 0, "shared_bytes": 0})
        self._clock = clock
        self._shared = shared
        self._peers: dict[PeerId, Peer] = {}
        self._numbers = ConnectionNumbers()
        self._held_grants: dict[PeerId, list[tuple[ControlReceived, int]]] = {}
        self._leaving: set[PeerId] = set()  # to be forgotten when nothing needs them any more
        self._memories = PeerMemories(
            host=shared.host if shared is not None else "",
            address_of=lambda peer: self._peers[peer].ucx_address,
        )
        self._stagings: list[Staging] = []
        self._whole = Share(pool, settings)
        self._out_shares: dict[PeerId, Share] = {}
        self._in_shares: dict[PeerId, Share] = {}
        self._sender = Sender(
            transport=transport,
            settings=settings,
            staging=self._make_staging(),
            shared=shared,
            share_of=self._out_share,
            counters=counters,
            clock=clock,
        )
        self._receiver = Receiver(
            transport=transport,
            settings=settings,
            staging=self._make_staging(),
            memories=self._memories,
            share_of=self._in_share,
            counters=counters,
            clock=clock,
        )
        self._source = SourceProtocol(
            identity=identity,
            block_bytes=lambda peer: self._out_share(peer).pool.block_bytes,
            settings=settings,
        )
        self._target = TargetProtocol(
            identity=identity,
            address=address,
            block_bytes=lambda peer: self._in_share(peer).pool.block_bytes,
            settings=settings,
            connection_of=self._numbers.of,
            lands_direct=self._receiver.lands_direct,
            new_nonce=lambda: secrets.randbelow((1 << NONCE_BITS) - 1) + 1,
        )
        self._seconds = {"transfer_s": 0.0, "moving_s": 0.0}
        self._finals: deque[tuple[object, bool]] = deque()

    def _make_staging(self) -> Staging:
        staging = Staging(
            buffer_bytes=max(self._settings.chunk_bytes, self._pool.block_bytes),
            per_peer=self._settings.window_chunks,
            limit_bytes=STAGING_LIMIT_BYTES,
        )
        self._stagings.append(staging)
        return staging

    # ------------------------------------------------------------------------------ inputs

    def learn_peer(self, peer: Peer) -> None:
        """Remember how to reach a peer. Its former lives are dropped, and in time forgotten."""
        peer_id = peer.peer_id
        if self._peers.get(peer_id) == peer:
            return
        for known in list(self._peers):
            same_rank = (known.uuid, known.rank) == (peer_id.uuid, peer_id.rank)
            if same_rank and known.boot_epoch < peer_id.boot_epoch:
                self.disconnect(known)
        if peer.ucx_address or peer_id not in self._peers:
            self._peers[peer_id] = peer

    def source(self, event: SourceEvent) -> None:
        """Give one event to the source protocol and obey it."""
        self._obey(self._source.step(event, now_s=self._clock()))

    def target(self, event: TargetEvent) -> None:
        """Give one event to the target protocol and obey it."""
        self._obey(self._target.step(event, now_s=self._clock()))

    def control(self, peer: Peer, payload: bytes) -> None:
        """A control message has come in from an authenticated peer."""
        try:
            message = unpack_control(payload)
        except ValueError:
            self._counters[f"refused_{Reason.MALFORMED.value}"] += 1
            return
        if isinstance(message, Grant) and not peer.ucx_address:
            peer = Peer(
                identity=peer.identity,
                rank=peer.rank,
                control_address=peer.control_address,
                ucx_address=message.address,
            )
        self.learn_peer(peer)
        event = ControlReceived(peer=peer.peer_id, message=message)
        if isinstance(message, Grant):
            self._grant(event, message.connection)
        elif isinstance(message, FOR_SOURCE):
            self.source(event)
        else:
            self.target(event)

    def _grant(self, event: ControlReceived, connection: int) -> None:
        """Let the source serve a grant; not before our endpoint, if it is stale, is closed."""
        peer, transport = event.peer, self._transport
        held = self._held_grants.get(peer)
        if held is not None:
            if len(held) < HELD_GRANTS:
                held.append((event, connection))
            return
        has_endpoint = transport.has(peer) or transport.is_leaving(peer)
        if self._numbers.heard(peer, connection, has_endpoint=has_endpoint):
            self._counters["stale_endpoints_closed"] += 1
            self._held_grants[peer] = [(event, connection)]
            transport.abort(peer)
        else:
            self.source(event)

    def join(self, peer: Peer) -> None:
        """A peer to stay: connected now, so that no transfer pays for it."""
        self.learn_peer(peer)
        self._leaving.discard(peer.peer_id)
        self.connect(peer.peer_id)
        self.shares_memory_with(peer.peer_id)  # mapped now, and told as a lane

    def connect(self, peer: PeerId) -> None:
        """Have an endpoint to a learned peer."""
        if not self._transport.has(peer):
            self._counters["connects"] += 1
        try:
            address = unpack_address(self._peers[peer].ucx_address)
        except ValueError:
            self._counters[f"refused_{Reason.MALFORMED.value}"] += 1
            address = RankAddress(ucx_address=b"")  # connecting to it fails: the peer is lost
        self._transport.connect(peer, address.ucx_address)

    def shares_memory_with(self, peer: PeerId) -> bool:
        """Whether this rank can read that peer's shared memory; mapped when first asked."""
        return self._memories.of(peer) is not None

    def set_shares(
        self,
        peer: PeerId,
        *,
        send: Sequence[tuple[int, int]] | None,
        receive: Sequence[tuple[int, int]] | None,
    ) -> None:
        """Exchange with this peer only these ranges of every packed block."""
        for shares, ranges in ((self._out_shares, send), (self._in_shares, receive)):
            shares.pop(peer, None)
            if ranges is not None:
                shares[peer] = Share(self._pool.select(ranges), self._settings)

    def _out_share(self, peer: PeerId) -> Share:
        return self._out_shares.get(peer, self._whole)

    def _in_share(self, peer: PeerId) -> Share:
        return self._in_shares.get(peer, self._whole)

    def disconnect(self, peer: PeerId) -> None:
        """Close the endpoint to a peer, if there is one, and forget it when nothing needs it."""
        self._transport.abort(peer)
        self._memories.forget(peer)  # mapped again if something it has said yet needs it
        self._leaving.add(peer)

    def tidy(self) -> None:
        """Forget peers that have left: a node that is restarted for ever leaves nothing here.

        One that has transfers yet, or a new connection, stays until they have ended.
        """
        for peer in list(self._leaving):
            if self._transport.has(peer) or self._source.uses(peer) or self._target.uses(peer):
                continue
            self._leaving.discard(peer)
            self._peers.pop(peer, None)
            self._out_shares.pop(peer, None)
            self._in_shares.pop(peer, None)
            self._receiver.flows.pop(peer, None)
            self._memories.forget(peer)

    # ------------------------------------------------------------------------------ the loop

    def step(self) -> bool:
        """Progress, finals, lost peers, timers, one chunk per peer. True when anything was done.

        Progress, finals and chunks may each take the budget and what they have begun, so that a
        command (a cancel) waits for three budgets at most, however many peers are busy.
        """
        busy = self._transport.progress(self._settings.round_budget_s)
        if not self._finals:
            # Not before all of the last ones are handled: so the queue is empty again and again,
            # and lost peers are heard of, however much keeps coming in from the others.
            self._finals.extend(self._transport.take_finals())
        busy |= self._handle_finals()
        if not self._finals:  # a peer is lost only after what its messages came to is known
            for peer in self._transport.take_lost():
                busy = True
                self._on_lost(peer)
        busy |= self._give_later()
        now_s = self._clock()
        for protocol, give in ((self._source, self.source), (self._target, self.target)):
            wakeup_s = protocol.next_wakeup_s()
            if wakeup_s is not None and wakeup_s <= now_s:
                give(Ticked())
        busy |= self._give_later()  # of lanes whose time was over
        return self._sender.send_due(self._settings.round_budget_s) or busy

    def _handle_finals(self) -> bool:
        """The copies of received chunks are made here; what does not fit waits for a round."""
        if not self._finals:
            return False
        end_s = self._clock() + self._settings.round_budget_s
        while self._finals and self._clock() < end_s:
            self._on_final(*self._finals.popleft())
        return True

    def _give_later(self) -> bool:
        """Events born while effects were obeyed; a protocol is never entered twice at once."""
        given = False
        while self._sender.later:
            self.source(self._sender.later.popleft())
            given = True
        while self._receiver.later:
            self.target(self._receiver.later.popleft())
            given = True
        return given

    def sleep_s(self) -> float | None:
        """How long the loop may sleep when ``step`` did nothing; None is until woken."""
        times = [
            at_s
            for at_s in (
                self._source.next_wakeup_s(),
                self._target.next_wakeup_s(),
                self._sender.next_s(),
            )
            if at_s is not None
        ]
        if self._finals:
            return 0.0
        sleep_s = max(0.0, min(times) - self._clock()) if times else None
        if self._transport.in_flight():
            return ACTIVE_POLL_S if sleep_s is None else min(sleep_s, ACTIVE_POLL_S)
        return sleep_s

    def connections(self) -> tuple[Connection, ...]:
        """Every connected peer, how it is reached, and how fast it has been."""
        found = []
        for peer in self._peers:
            lanes = self._transport.lanes(peer)
            if not lanes:
                continue
            flow = self._receiver.flows.get(peer, Flow())
            if self._memories.is_mapped(peer):
                lanes = (*lanes, "shared_memory")
            found.append(
                Connection(
                    peer=peer,
                    lanes=lanes,
                    received_bytes=flow.received_bytes,
                    bytes_per_s=flow.bytes_per_s,
                )
            )
        return tuple(found)

    def gauges(self) -> dict[str, int | float]:
        """Sizes of what is held now, and seconds that completed transfers into here took."""
        return {
            **self._seconds,
            **self._source.counts(),
            **self._target.counts(),
            "peers_known": len(self._peers),
            "messages_in_flight": self._transport.in_flight(),
            "staging_buffers_lent": sum(s.lent_count for s in self._stagings),
            "shared_slots": self._shared.slot_count if self._shared is not None else 0,
            "shared_slots_lent": self._shared.lent_count if self._shared is not None else 0,
        }

    # ------------------------------------------------------------------------------ effects

    def _obey(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Connect():
                    self.connect(effect.peer)
                case ClosePeer():
                    self._counters["endpoints_closed"] += 1
                    self._transport.abort(effect.peer)
                case SendControl():
                    self._control_out(effect)
                case SendRecord() | SendChunk():
                    self._sender.enqueue(effect)
                case PostRecord():
                    self._receiver.post_record(effect)
                case ReceiveChunk():
                    self._receiver.receive(effect)
                case DiscardChunk():
                    self._receiver.discard(effect)
                case Land():
                    self._receiver.settle(effect.nonce, effect.serial, land=True)
                case Drop():
                    self._receiver.settle(effect.nonce, effect.serial, land=False)
                case Emit():
                    self._count_completed(effect.event)
                    self._emit(effect.event)
                case Count():
                    self._counters[effect.name] += 1
                case _:
                    assert_never(effect)

    def _count_completed(self, event: TransferEvent) -> None:
        if isinstance(event, TargetCompleted) and event.transferred_bytes:
            self._counters["transfers_completed"] += 1
            self._seconds["transfer_s"] += event.duration_s
            self._seconds["moving_s"] += event.moving_s

    def _control_out(self, effect: SendControl) -> None:
        try:
            self._send_control(self._peers[effect.peer], pack_control(effect.message))
        except OSError:
            # As if lost on the way: whatever matters is repeated, and all ends by its deadline.
            self._counters["control_send_failures"] += 1

    # ------------------------------------------------------------------------------ finals

    def _on_final(self, token: object, ok: bool) -> None:
        match token:
            case RecordBuffer():
                data = token.data.tobytes() if ok else None
                self.target(RecordReceived(nonce=token.nonce, data=data))
            case Receiving():
                received = self._receiver.final(token, ok)
                if received is not None:
                    self.target(received)
            case Sending():
                sent = self._sender.final(token, ok)
                if sent is not None:
                    self.source(sent)

    def _on_lost(self, peer: PeerId) -> None:
        self._counters["peers_lost"] += 1
        self._sender.forget(peer)
        self._memories.forget(peer)  # before the target asks for more: then it is mapped anew
        self._numbers.lost(peer)  # before the target asks for more: its grants say it
        event = PeerLost(peer=peer)
        self.source(event)
        self.target(event)
        for grant, connection in self._held_grants.pop(peer, ()):
            self._grant(grant, connection)
