"""The sending half of the driver: chunks leave the pool, by messages or through shared memory.

Per peer an outbox keeps records and chunks in the order of the protocol's effects. One chunk per
peer and round is gathered and posted, so that UCX gets its turn in between. Outboxes are bounded by
the protocol's window (chunks) and by one answer and one END per lane (records).
"""

import dataclasses
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pdd.transfer.digest import RunningDigest
from pdd.transfer.pool import BlockPool, ByteArray
from pdd.transfer.protocol_values import ChunkSent, SendChunk, SendRecord
from pdd.transfer.settings import TransferSettings
from pdd.transfer.share import Share
from pdd.transfer.shared import PAGE_BYTES, SharedSlots
from pdd.transfer.staging import Staging
from pdd.transfer.transport import Transport
from pdd.transfer.values import PeerId
from pdd.wire.record import PIECES_PER_CHUNK, Record, RecordKind, pack_record
from pdd.wire.tag import RECORD_PIECE, make_tag


@dataclass(slots=True, kw_only=True, eq=False)
class Sending:
    """A chunk on its way; the token of its messages."""

    peer: PeerId
    nonce: int
    serial: int
    size_bytes: int
    left: int  # messages that are not final
    ok: bool = True
    buffer: ByteArray | None = None  # of staging
    slot: int | None = None  # of shared memory; then the message is the target's answer


@dataclass(slots=True)
class _Outbox:
    waiting: deque[tuple[float, SendRecord | SendChunk]] = field(default_factory=deque)


class Sender:
    """See the module. ``share_of`` tells which part of the pool a peer gets."""

    def __init__(
        self,
        *,
        transport: Transport,
        settings: TransferSettings,
        staging: Staging,
        shared: SharedSlots | None,
        share_of: Callable[[PeerId], Share],
        counters: Counter[str],
        clock: Callable[[], float],
    ) -> None:
        self._transport = transport
        self._settings = settings
        self._staging = staging
        self._shared = shared
        self._share_of = share_of
        self._counters = counters
        self._clock = clock
        self._outboxes: dict[PeerId, _Outbox] = {}
        self._flipped = False
        self.later: deque[ChunkSent] = deque()
        """Events born while effects are obeyed; the driver gives them to the protocol next."""

    def enqueue(self, effect: SendRecord | SendChunk) -> None:
        """Take an effect; records with nothing before them leave at once."""
        outbox = self._outboxes.setdefault(effect.peer, _Outbox())
        not_before_s = self._clock() + self._settings.faults.delay_s
        if isinstance(effect, SendRecord):
            not_before_s = 0.0
            if effect.record.kind is RecordKind.END:
                self._withdraw(outbox, effect.record.nonce)
        outbox.waiting.append((not_before_s, effect))
        if not any(isinstance(waiting, SendChunk) for _, waiting in outbox.waiting):
            self._send_next(effect.peer, outbox)

    def send_due(self, budget_s: float) -> bool:
        """Post what is due, one chunk per peer at most and for about ``budget_s``.

        True when anything was. Peers take turns, so that one that comes after the budget's end is
        the first of the next round.
        """
        sent = False
        end_s = self._clock() + budget_s
        for peer, outbox in list(self._outboxes.items()):
            if self._send_next(peer, outbox):
                sent = True
                if peer in self._outboxes:
                    self._outboxes[peer] = self._outboxes.pop(peer)
            if self._clock() >= end_s:
                break
        return sent

    def next_s(self) -> float | None:
        """When something held back becomes due; what waits for a buffer waits for a final."""
        now_s = self._clock()
        times = [box.waiting[0][0] for box in self._outboxes.values() if box.waiting]
        return min((at_s for at_s in times if at_s > now_s), default=None)

    def final(self, sending: Sending, ok: bool) -> ChunkSent | None:
        """A message of a chunk is final; returns the event when it was the last."""
        sending.ok &= ok
        sending.left -= 1
        if sending.left:
            return None
        if sending.buffer is not None:
            self._staging.give(sending.peer, sending.buffer)
        if sending.slot is not None and self._shared is not None:
            self._shared.give(sending.peer, sending.slot)
        if sending.ok:
            self._counters["sent_bytes"] += sending.size_bytes
            lane = "ucx_bytes" if sending.slot is None else "shared_bytes"
            self._counters[lane] += sending.size_bytes
        return ChunkSent(
            nonce=sending.nonce,
            serial=sending.serial,
            size_bytes=sending.size_bytes,
            ok=sending.ok,
        )

    def forget(self, peer: PeerId) -> None:
        """The peer is lost: nothing that waits will leave."""
        self._outboxes.pop(peer, None)

    # ------------------------------------------------------------------------------ inside

    def _withdraw(self, outbox: _Outbox, nonce: int) -> None:
        """Chunks that have not left when their lane ends never leave."""
        stay: deque[tuple[float, SendRecord | SendChunk]] = deque()
        for not_before_s, effect in outbox.waiting:
            if isinstance(effect, SendChunk) and effect.nonce == nonce:
                unsent = ChunkSent(nonce=nonce, serial=effect.serial, size_bytes=0, ok=False)
                self.later.append(unsent)
            else:
                stay.append((not_before_s, effect))
        outbox.waiting = stay

    def _send_next(self, peer: PeerId, outbox: _Outbox) -> bool:
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
                break  # no buffer; the next final send gives one back
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
        """Announce and post a chunk; False when there is no buffer for it now."""
        if effect.shared and self._shared is not None:
            if self._share_chunk(effect, self._shared):
                return True
            if self._shared.has_lent(effect.peer):
                return False
            # Others hold every slot, and if they stand still, until their leases end: then rather
            # by messages, which a target that has asked for shared memory takes as well.
        share = self._share_of(effect.peer)
        size = len(effect.block_ids) * share.pool.block_bytes
        buffer: ByteArray | None = None
        pieces: list[Any]
        if share.staged:
            buffer = self._staging.take(effect.peer, size)
            if buffer is None:
                return False
            digest = self._gather(share.pool, effect, buffer[:size])
            piece_bytes, pieces = size, [buffer[:size]]
        else:
            piece_bytes = share.piece_bytes(effect.block_ids, effect.target_block_ids)
            cut = share.pool.pieces(effect.block_ids, piece_bytes)
            assert cut is not None, "pieces are planned to be contiguous here"
            pieces = [share.pool.part(*piece) for piece in cut]
            digest = share.pool.digest_of(pieces) if self._settings.digest else 0
        if self._damaged(effect):
            pieces = [piece.copy() for piece in pieces]  # the pool itself is left alone
            pieces[0][len(pieces[0]) // 2] ^= 0xFF
        record = _record(effect, size, piece_bytes=piece_bytes, digest=digest)
        sending = Sending(
            peer=effect.peer,
            nonce=effect.nonce,
            serial=effect.serial,
            size_bytes=size,
            left=len(pieces),
            buffer=buffer,
        )
        self._send_record(effect.peer, record)
        for number, piece in enumerate(pieces, record.first_piece):
            tag = make_tag(nonce=effect.nonce, piece=number)
            self._transport.send(effect.peer, tag, piece, sending)
        self._counters["chunks_sent"] += 1
        return True

    def _share_chunk(self, effect: SendChunk, shared: SharedSlots) -> bool:
        """Through shared memory, if there is a slot; the target's answer frees it."""
        slot = shared.take(effect.peer)
        if slot is None:
            return False
        pool = self._share_of(effect.peer).pool
        size = len(effect.block_ids) * pool.block_bytes
        packed = shared.part(slot, size)
        header = shared.header(slot)
        header.begin()
        digest = self._gather(pool, effect, packed)
        if self._damaged(effect):
            packed[size // 2] ^= 0xFF
        record = dataclasses.replace(
            _record(effect, size, piece_bytes=size, digest=digest),
            shared_generation=header.end(nonce=effect.nonce, serial=effect.serial),
            shared_page=shared.offset(slot) // PAGE_BYTES + 1,
        )
        sending = Sending(
            peer=effect.peer,
            nonce=effect.nonce,
            serial=effect.serial,
            size_bytes=size,
            left=1,
            slot=slot,
        )
        tag = make_tag(nonce=effect.nonce, piece=record.first_piece)
        self._transport.post_receive(effect.peer, tag, np.zeros(1, np.uint8), sending)
        self._send_record(effect.peer, record)
        self._counters["chunks_sent"] += 1
        return True

    def _gather(self, pool: BlockPool, effect: SendChunk, packed: ByteArray) -> int:
        """Copy a chunk out of the pool; returns its digest, 0 when they are off."""
        if not self._settings.digest:
            pool.gather(effect.block_ids, packed)
            return 0
        digest = RunningDigest()
        pool.gather(effect.block_ids, packed, digest.update)
        return digest.value()

    def _damaged(self, effect: SendChunk) -> bool:
        faults = self._settings.faults
        if faults.fail_chunk == effect.number:
            return True
        if faults.flip_byte_in_chunk == effect.number and not self._flipped:
            self._flipped = True
            return True
        return False


def _record(effect: SendChunk, size_bytes: int, *, piece_bytes: int, digest: int) -> Record:
    return Record(
        kind=RecordKind.CHUNK,
        nonce=effect.nonce,
        serial=effect.serial,
        first_index=effect.first_index,
        block_count=len(effect.block_ids),
        # Unique among the chunks under way, and never the number of records.
        first_piece=(effect.serial % (PIECES_PER_CHUNK - 1)) * PIECES_PER_CHUNK,
        size_bytes=size_bytes,
        piece_bytes=piece_bytes,
        digest=digest,
    )
