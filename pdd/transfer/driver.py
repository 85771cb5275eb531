"""Obeys the two protocols: gathers, digests, sends, receives, scatters. One thread runs it.

::

    commands (deque) --> events --> protocol_source / protocol_target --> effects --> transport
                                          ^                                              |
                                          +--------------- finals, lost peers -----------+

Everything here happens in the transfer thread, so that a cancel cannot come between the check of
a chunk and its copy into the pool.
"""

import secrets
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, assert_never

import numpy as np
import xxhash

from pdd.core.identity import NodeIdentity
from pdd.transfer.pool import BlockPool, ByteArray
from pdd.transfer.protocol_source import SourceProtocol
from pdd.transfer.protocol_target import TargetProtocol
from pdd.transfer.protocol_values import (
    FOR_SOURCE,
    ChunkReceived,
    ChunkSent,
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
from pdd.transfer.settings import TransferSettings
from pdd.transfer.share import Share
from pdd.transfer.shared import SharedSlots, attach, host_id
from pdd.transfer.staging import Staging
from pdd.transfer.transport import Transport
from pdd.transfer.values import Connection, Peer, PeerId, Reason, TransferEvent
from pdd.wire.address import RankAddress, unpack_address
from pdd.wire.control import Grant, pack_control, unpack_control
from pdd.wire.record import RECORD_BYTES, Record, RecordKind, pack_record
from pdd.wire.tag import NONCE_BITS, RECORD_PIECE, make_tag

ACTIVE_POLL_S = 0.1
"""Longest sleep while messages are in flight: UCX looks for dead peers only when it progresses."""
PIECES_PER_CHUNK = 4096
PAGE_BYTES = 4096
STAGING_LIMIT_BYTES = 256 << 20


@dataclass(slots=True, kw_only=True)
class _Sending:
    nonce: int
    serial: int
    peer: PeerId
    size_bytes: int
    left: int
    ok: bool = True
    buffer: ByteArray | None = None
    slot: int | None = None


@dataclass(slots=True, kw_only=True)
class _Receiving:
    peer: PeerId
    record: Record
    block_ids: tuple[int, ...]
    direct: bool
    discard: bool
    left: int = 0
    ok: bool = True
    buffer: ByteArray | None = None


@dataclass(slots=True, kw_only=True)
class _RecordBuffer:
    nonce: int
    data: ByteArray


@dataclass(slots=True, kw_only=True)
class _Outbox:
    """What is yet to be posted to one peer, in order, each not before its time."""

    waiting: deque[tuple[float, SendRecord | SendChunk]] = field(default_factory=deque)


@dataclass(slots=True)
class _Flow:
    """How fast chunks come in from one peer, counted only while some are on their way."""

    received_bytes: int = 0
    busy_s: float = 0.0
    _outstanding: int = 0
    _since_s: float = 0.0

    def begin(self, now_s: float) -> None:
        if self._outstanding == 0:
            self._since_s = now_s
        self._outstanding += 1

    def end(self, now_s: float, received_bytes: int) -> None:
        self._outstanding -= 1
        self.received_bytes += received_bytes
        if self._outstanding == 0:
            self.busy_s += now_s - self._since_s


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
        self._host = host_id() if shared is not None else ""
        self._mapped: dict[PeerId, ByteArray | None] = {}
        self._whole = Share(pool, settings)
        self._out_shares: dict[PeerId, Share] = {}
        self._in_shares: dict[PeerId, Share] = {}
        buffer_bytes = max(1, settings.chunk_bytes // pool.block_bytes) * pool.block_bytes
        self._out_staging = Staging(
            buffer_bytes=buffer_bytes,
            per_peer=settings.window_chunks,
            limit_bytes=STAGING_LIMIT_BYTES,
        )
        self._in_staging = Staging(
            buffer_bytes=buffer_bytes,
            per_peer=settings.window_chunks,
            limit_bytes=STAGING_LIMIT_BYTES,
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
            lands_direct=self._lands_direct,
            new_nonce=lambda: secrets.randbelow((1 << NONCE_BITS) - 1) + 1,
        )
        self._peers: dict[PeerId, Peer] = {}
        self._outboxes: dict[PeerId, _Outbox] = {}
        self._flows: dict[PeerId, _Flow] = {}
        self._sending: dict[tuple[int, int], _Sending] = {}
        self._receiving: dict[tuple[int, int], _Receiving] = {}
        self._waiting_in: deque[_Receiving] = deque()
        self._discard_buffer = np.zeros(8, np.uint8)
        # Events born while effects are obeyed; a protocol is never entered twice at once.
        self._later_source: deque[SourceEvent] = deque()
        self._later_target: deque[TargetEvent] = deque()
        self._flipped = False

    # ------------------------------------------------------------------------------ inputs

    def learn_peer(self, peer: Peer) -> None:
        """Remember how to reach a peer. Its former lives are dropped."""
        peer_id = peer.peer_id
        if self._peers.get(peer_id) == peer:
            return
        for known in list(self._peers):
            same_rank = (known.uuid, known.rank) == (peer_id.uuid, peer_id.rank)
            if same_rank and known.boot_epoch < peer_id.boot_epoch:
                self._transport.abort(known)
                self._mapped.pop(known, None)
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
        if isinstance(message, FOR_SOURCE):
            self.source(event)
        else:
            self.target(event)

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
        if self._host and peer not in self._mapped:
            try:
                address = unpack_address(self._peers[peer].ucx_address)
            except ValueError:
                return False  # told when it is connected to
            self._mapped[peer] = attach(address, host=self._host)
        return self._mapped.get(peer) is not None

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
        """Close the endpoint to a peer, if there is one."""
        self._transport.abort(peer)

    # ------------------------------------------------------------------------------ the loop

    def step(self) -> bool:
        """Progress, finals, lost peers, timers, one chunk per peer. True when anything was done."""
        busy = self._transport.progress(self._settings.progress_budget_s)
        for token, ok in self._transport.take_finals():
            busy = True
            self._on_final(token, ok)
        for peer in self._transport.take_lost():
            busy = True
            self._on_lost(peer)
        busy |= self._give_later()
        now_s = self._clock()
        for protocol, give in ((self._source, self.source), (self._target, self.target)):
            wakeup_s = protocol.next_wakeup_s()
            if wakeup_s is not None and wakeup_s <= now_s:
                give(Ticked())
        for peer, outbox in list(self._outboxes.items()):
            busy |= self._send_next(peer, outbox)
        return busy

    def _give_later(self) -> bool:
        given = False
        while self._later_source:
            self.source(self._later_source.popleft())
            given = True
        while self._later_target:
            self.target(self._later_target.popleft())
            given = True
        return given

    def sleep_s(self) -> float | None:
        """How long the loop may sleep when ``step`` did nothing; None is until woken."""
        times = [
            at_s
            for at_s in (self._source.next_wakeup_s(), self._target.next_wakeup_s())
            if at_s is not None
        ]
        times.extend(o.waiting[0][0] for o in self._outboxes.values() if o.waiting)
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
            flow = self._flows.get(peer, _Flow())
            if self._mapped.get(peer) is not None:
                lanes = (*lanes, "shared_memory")
            found.append(
                Connection(
                    peer=peer,
                    lanes=lanes,
                    received_bytes=flow.received_bytes,
                    bytes_per_s=flow.received_bytes / flow.busy_s if flow.busy_s else 0.0,
                )
            )
        return tuple(found)

    def gauges(self) -> dict[str, int]:
        """Sizes of what is held now."""
        return {
            **self._source.counts(),
            **self._target.counts(),
            "messages_in_flight": self._transport.in_flight(),
            "staging_buffers_lent": self._out_staging.lent_count + self._in_staging.lent_count,
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
                    self._enqueue(effect)
                case PostRecord():
                    self._post_record(effect)
                case ReceiveChunk():
                    self._receive(effect)
                case DiscardChunk():
                    self._discard(effect)
                case Land():
                    self._settle(effect.nonce, effect.serial, land=True)
                case Drop():
                    self._settle(effect.nonce, effect.serial, land=False)
                case Emit():
                    self._emit(effect.event)
                case Count():
                    self._counters[effect.name] += 1
                case _:
                    assert_never(effect)

    def _control_out(self, effect: SendControl) -> None:
        try:
            self._send_control(self._peers[effect.peer], pack_control(effect.message))
        except OSError:
            # As if lost on the way: whatever matters is repeated, and all ends by its deadline.
            self._counters["control_send_failures"] += 1

    # ------------------------------------------------------------------------------ sending

    def _enqueue(self, effect: SendRecord | SendChunk) -> None:
        outbox = self._outboxes.setdefault(effect.peer, _Outbox())
        not_before_s = self._clock() + self._settings.faults.delay_s
        if isinstance(effect, SendRecord):
            not_before_s = 0.0
            if effect.record.kind is RecordKind.END:
                self._withdraw(outbox, effect.record.nonce)
        outbox.waiting.append((not_before_s, effect))
        if not any(isinstance(e, SendChunk) for _, e in outbox.waiting):
            self._send_next(effect.peer, outbox)

    def _withdraw(self, outbox: _Outbox, nonce: int) -> None:
        """Chunks that have not left when their lane ends never leave."""
        stay: deque[tuple[float, SendRecord | SendChunk]] = deque()
        for not_before_s, effect in outbox.waiting:
            if isinstance(effect, SendChunk) and effect.nonce == nonce:
                unsent = ChunkSent(nonce=nonce, serial=effect.serial, size_bytes=0, ok=False)
                self._later_source.append(unsent)
            else:
                stay.append((not_before_s, effect))
        outbox.waiting = stay

    def _send_next(self, peer: PeerId, outbox: _Outbox) -> bool:
        """Post what is due, up to and including one chunk, so that UCX is not kept waiting."""
        sent = False
        while outbox.waiting:
            not_before_s, effect = outbox.waiting[0]
            if not_before_s > self._clock():
                break
            if isinstance(effect, SendRecord):
                outbox.waiting.popleft()
                self._send_record(peer, effect.record)
                sent = True
                continue
            if not self._send_chunk(effect):
                break  # no staging buffer; the next final send gives one back
            outbox.waiting.popleft()
            return True
        if not outbox.waiting:
            self._outboxes.pop(peer, None)
        return sent

    def _send_record(self, peer: PeerId, record: Record) -> None:
        data = np.frombuffer(bytearray(pack_record(record)), np.uint8)
        tag = make_tag(nonce=record.nonce, piece=RECORD_PIECE)
        self._transport.send(peer, tag, data, None)

    def _send_chunk(self, effect: SendChunk) -> bool:
        if effect.shared and self._shared is not None:
            return self._share_chunk(effect, self._shared)
        share = self._out_share(effect.peer)
        size = len(effect.block_ids) * share.pool.block_bytes
        buffer: ByteArray | None = None
        if share.staged:
            buffer = self._out_staging.take(effect.peer, size)
            if buffer is None:
                return False
            share.pool.gather(effect.block_ids, buffer[:size])
            piece_bytes = size
            pieces: list[Any] = [buffer[:size]]
        else:
            piece_bytes = share.piece_bytes(effect.block_ids, effect.target_block_ids)
            cut = share.pool.pieces(effect.block_ids, piece_bytes)
            assert cut is not None, "pieces are planned to be contiguous here"
            pieces = [share.pool.part(*piece) for piece in cut]
        digest = self._digest(pieces) if self._settings.digest else 0
        if self._damaged(effect):
            pieces = self._damage(pieces)
        record = Record(
            kind=RecordKind.CHUNK,
            nonce=effect.nonce,
            serial=effect.serial,
            first_index=effect.first_index,
            block_count=len(effect.block_ids),
            first_piece=(effect.serial % (PIECES_PER_CHUNK - 1)) * PIECES_PER_CHUNK,
            size_bytes=size,
            piece_bytes=piece_bytes,
            digest=digest,
        )
        sending = _Sending(
            nonce=effect.nonce,
            serial=effect.serial,
            peer=effect.peer,
            size_bytes=size,
            left=len(pieces),
            buffer=buffer,
        )
        self._sending[effect.nonce, effect.serial] = sending
        self._send_record(effect.peer, record)
        for number, piece in enumerate(pieces, record.first_piece):
            tag = make_tag(nonce=effect.nonce, piece=number)
            self._transport.send(effect.peer, tag, piece, sending)
        self._counters["chunks_sent"] += 1
        return True

    def _share_chunk(self, effect: SendChunk, shared: SharedSlots) -> bool:
        """As ``_send_chunk``, through shared memory; the target's answer frees the slot."""
        slot = shared.take(effect.peer)
        if slot is None:
            return False
        pool = self._out_share(effect.peer).pool
        size = len(effect.block_ids) * pool.block_bytes
        packed = shared.part(slot, size)
        pool.gather(effect.block_ids, packed)
        digest = self._digest([packed])
        if self._damaged(effect):
            packed[size // 2] ^= 0xFF
        record = Record(
            kind=RecordKind.CHUNK,
            nonce=effect.nonce,
            serial=effect.serial,
            first_index=effect.first_index,
            block_count=len(effect.block_ids),
            first_piece=(effect.serial % (PIECES_PER_CHUNK - 1)) * PIECES_PER_CHUNK,
            size_bytes=size,
            piece_bytes=size,
            digest=digest,
            shared_page=shared.offset(slot) // PAGE_BYTES + 1,
        )
        sending = _Sending(
            nonce=effect.nonce,
            serial=effect.serial,
            peer=effect.peer,
            size_bytes=size,
            left=1,
            slot=slot,
        )
        self._sending[effect.nonce, effect.serial] = sending
        tag = make_tag(nonce=effect.nonce, piece=record.first_piece)
        self._transport.post_receive(effect.peer, tag, np.zeros(1, np.uint8), sending)
        self._send_record(effect.peer, record)
        self._counters["chunks_sent"] += 1
        return True

    # ------------------------------------------------------------------------------ receiving

    def _post_record(self, effect: PostRecord) -> None:
        record = _RecordBuffer(nonce=effect.nonce, data=np.zeros(RECORD_BYTES, np.uint8))
        tag = make_tag(nonce=effect.nonce, piece=RECORD_PIECE)
        self._transport.post_receive(effect.peer, tag, record.data, record)

    def _lands_direct(self, peer: PeerId, record: Record, block_ids: Sequence[int]) -> bool:
        if record.shared_page:
            return False
        return self._in_share(peer).lands_in_place(block_ids, record.piece_bytes)

    def _receive(self, effect: ReceiveChunk) -> None:
        receiving = _Receiving(
            peer=effect.peer,
            record=effect.record,
            block_ids=effect.block_ids,
            direct=effect.direct,
            discard=False,
        )
        self._receiving[effect.record.nonce, effect.record.serial] = receiving
        self._flows.setdefault(effect.peer, _Flow()).begin(self._clock())
        if effect.record.shared_page:
            self._receive_shared(receiving)
        elif not self._post_pieces(receiving):
            self._waiting_in.append(receiving)

    def _receive_shared(self, receiving: _Receiving) -> None:
        """Copy a chunk out of the source's shared memory, now, while the blocks are ours.

        The digest is taken of the copy, so it does not matter what the source does to its memory
        meanwhile.
        """
        record = receiving.record
        mapped = self._mapped[receiving.peer]
        start = (record.shared_page - 1) * PAGE_BYTES
        ok = mapped is not None and start + record.size_bytes <= mapped.nbytes
        digest = 0
        if ok:
            assert mapped is not None
            pool = self._in_share(receiving.peer).pool
            pool.scatter(receiving.block_ids, mapped[start : start + record.size_bytes])
            digest = self._digest(
                [
                    pool.part(*segment)
                    for block_id in receiving.block_ids
                    for segment in pool.segments(block_id)
                ]
            )
        else:
            self._transport.abort(receiving.peer)
        received = ChunkReceived(nonce=record.nonce, serial=record.serial, ok=ok, digest=digest)
        self._later_target.append(received)

    def _free_slot(self, peer: PeerId, record: Record) -> None:
        """Tell the source that its shared memory has been read."""
        tag = make_tag(nonce=record.nonce, piece=record.first_piece)
        self._transport.send(peer, tag, np.zeros(1, np.uint8), None)

    def _post_pieces(self, receiving: _Receiving) -> bool:
        record = receiving.record
        parts: list[Any]
        if receiving.direct:
            pool = self._in_share(receiving.peer).pool
            cut = pool.pieces(receiving.block_ids, record.piece_bytes)
            if cut is None:  # device memory cut otherwise than the source's: never by our peers
                self._transport.abort(receiving.peer)
                failed = ChunkReceived(nonce=record.nonce, serial=record.serial, ok=False, digest=0)
                self._later_target.append(failed)
                return True
            parts = [pool.part(*piece) for piece in cut]
        else:
            buffer = self._in_staging.take(receiving.peer, record.size_bytes)
            if buffer is None:
                return False
            receiving.buffer = buffer
            step = record.piece_bytes
            parts = [
                buffer[at : min(at + step, record.size_bytes)]
                for at in range(0, record.size_bytes, step)
            ]
        receiving.left = len(parts)
        for number, part in enumerate(parts, record.first_piece):
            tag = make_tag(nonce=record.nonce, piece=number)
            self._transport.post_receive(receiving.peer, tag, part, receiving)
        return True

    def _discard(self, effect: DiscardChunk) -> None:
        record = effect.record
        receiving = _Receiving(
            peer=effect.peer,
            record=record,
            block_ids=(),
            direct=False,
            discard=True,
            left=record.piece_count,
        )
        self._receiving[record.nonce, record.serial] = receiving
        self._counters["chunks_discarded"] += 1
        if record.shared_page:
            done = ChunkReceived(nonce=record.nonce, serial=record.serial, ok=True, digest=0)
            self._later_target.append(done)
            return
        for number in range(record.first_piece, record.first_piece + record.piece_count):
            tag = make_tag(nonce=record.nonce, piece=number)
            self._transport.post_receive(
                effect.peer, tag, self._discard_buffer, receiving, discard=True
            )

    def _settle(self, nonce: int, serial: int, *, land: bool) -> None:
        receiving = self._receiving.pop((nonce, serial), None)
        if receiving is None:
            return
        if not receiving.discard:
            size = receiving.record.size_bytes if land else 0
            self._flows[receiving.peer].end(self._clock(), size)
        if receiving in self._waiting_in:
            self._waiting_in.remove(receiving)
        if receiving.record.shared_page:
            self._free_slot(receiving.peer, receiving.record)
        if land:
            self._counters["received_bytes"] += receiving.record.size_bytes
            self._counters["chunks_received"] += 1
            if receiving.buffer is not None:
                packed = receiving.buffer[: receiving.record.size_bytes]
                self._in_share(receiving.peer).pool.scatter(receiving.block_ids, packed)
        if receiving.buffer is not None:
            self._in_staging.give(receiving.peer, receiving.buffer)
            receiving.buffer = None
            self._post_waiting()

    def _post_waiting(self) -> None:
        """Give freed staging buffers to the chunks that wait for them."""
        for _ in range(len(self._waiting_in)):
            receiving = self._waiting_in.popleft()
            if not self._post_pieces(receiving):
                self._waiting_in.append(receiving)

    # ------------------------------------------------------------------------------ finals

    def _on_final(self, token: object, ok: bool) -> None:
        if isinstance(token, _RecordBuffer):
            data = token.data.tobytes() if ok else None
            self.target(RecordReceived(nonce=token.nonce, data=data))
        elif isinstance(token, _Receiving):
            token.ok &= ok
            token.left -= 1
            if token.left == 0:
                self._on_received(token)
        elif isinstance(token, _Sending):
            token.ok &= ok
            token.left -= 1
            if token.left == 0:
                self._on_sent(token)

    def _on_received(self, receiving: _Receiving) -> None:
        record = receiving.record
        digest = 0
        if receiving.ok and self._settings.digest and not receiving.discard:
            if receiving.buffer is not None:
                digest = self._digest([receiving.buffer[: record.size_bytes]])
            else:
                pool = self._in_share(receiving.peer).pool
                cut = pool.pieces(receiving.block_ids, record.piece_bytes)
                assert cut is not None
                digest = self._digest([pool.part(*piece) for piece in cut])
        self.target(
            ChunkReceived(nonce=record.nonce, serial=record.serial, ok=receiving.ok, digest=digest)
        )

    def _on_sent(self, sending: _Sending) -> None:
        del self._sending[sending.nonce, sending.serial]
        if sending.buffer is not None:
            self._out_staging.give(sending.peer, sending.buffer)
        if sending.slot is not None and self._shared is not None:
            self._shared.give(sending.peer, sending.slot)
        if sending.ok:
            self._counters["sent_bytes"] += sending.size_bytes
            lane = "ucx_bytes" if sending.slot is None else "shared_bytes"
            self._counters[lane] += sending.size_bytes
        self.source(
            ChunkSent(
                nonce=sending.nonce,
                serial=sending.serial,
                size_bytes=sending.size_bytes,
                ok=sending.ok,
            )
        )

    def _on_lost(self, peer: PeerId) -> None:
        self._counters["peers_lost"] += 1
        self._outboxes.pop(peer, None)
        event = PeerLost(peer=peer)
        self.source(event)
        self.target(event)

    # ------------------------------------------------------------------------------ bytes

    @staticmethod
    def _digest(pieces: Sequence[Any]) -> int:
        """xxh3-64 over the pieces in order; never 0, which means "not taken"."""
        if len(pieces) == 1:
            return xxhash.xxh3_64_intdigest(pieces[0]) or 1
        state = xxhash.xxh3_64()
        for piece in pieces:
            state.update(piece)
        return state.intdigest() or 1

    def _damaged(self, effect: SendChunk) -> bool:
        faults = self._settings.faults
        if faults.fail_chunk == effect.number:
            return True
        if faults.flip_byte_in_chunk == effect.number and not self._flipped:
            self._flipped = True
            return True
        return False

    @staticmethod
    def _damage(pieces: list[Any]) -> list[Any]:
        """A copy of the pieces with one byte flipped; the pool itself is left alone."""
        copies = [piece.copy() for piece in pieces]
        copies[0][len(copies[0]) // 2] ^= 0xFF
        return copies
