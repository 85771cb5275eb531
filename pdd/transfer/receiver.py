"""The receiving half of the driver: chunks land in staging, in shared memory, or in their blocks.

::

    staged:   messages -> staging buffer --digest right--> copied into the blocks
    direct:   messages -> the blocks themselves; the digest is taken there
    shared:   the source's memory -> copied into the blocks at once; the digest is taken there

Staged chunks touch blocks only after the protocol has said ``Land``; shared ones only while the
effect that announces them is obeyed. Both can therefore never write late. Direct ones can, and the
protocol keeps their blocks until every receive is final.
"""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pdd.transfer.digest import RunningDigest, digest_of
from pdd.transfer.pool import ByteArray
from pdd.transfer.protocol_values import ChunkReceived, DiscardChunk, PostRecord, ReceiveChunk
from pdd.transfer.settings import TransferSettings
from pdd.transfer.share import Share
from pdd.transfer.shared import PeerMemories, SlotReader
from pdd.transfer.staging import Staging
from pdd.transfer.transport import Transport
from pdd.transfer.values import PeerId
from pdd.wire.record import RECORD_BYTES, Record
from pdd.wire.tag import RECORD_PIECE, make_tag


@dataclass(slots=True, kw_only=True, eq=False)
class Receiving:
    """An announced chunk; the token of its messages."""

    peer: PeerId
    record: Record
    block_ids: tuple[int, ...]
    direct: bool = False
    discard: bool = False
    left: int = 0  # messages that are not final
    ok: bool = True
    buffer: ByteArray | None = None  # of staging


@dataclass(slots=True, kw_only=True, eq=False)
class RecordBuffer:
    """A posted receive for a record; its own token."""

    nonce: int
    data: ByteArray


@dataclass(slots=True)
class Flow:
    """How fast chunks come in from one peer, counted only while some are on their way."""

    received_bytes: int = 0
    busy_s: float = 0.0
    _outstanding: int = 0
    _since_s: float = 0.0

    @property
    def bytes_per_s(self) -> float:
        """0 before the first chunk."""
        return self.received_bytes / self.busy_s if self.busy_s else 0.0

    def begin(self, now_s: float) -> None:
        """A chunk has been announced."""
        if self._outstanding == 0:
            self._since_s = now_s
        self._outstanding += 1

    def end(self, now_s: float, received_bytes: int) -> None:
        """A chunk is over; ``received_bytes`` 0 if it was not right."""
        self._outstanding -= 1
        self.received_bytes += received_bytes
        if self._outstanding == 0:
            self.busy_s += now_s - self._since_s


class Receiver:
    """See the module. ``share_of`` tells which part of the pool a peer fills."""

    def __init__(
        self,
        *,
        transport: Transport,
        settings: TransferSettings,
        staging: Staging,
        memories: PeerMemories,
        share_of: Callable[[PeerId], Share],
        counters: Counter[str],
        clock: Callable[[], float],
    ) -> None:
        self._transport = transport
        self._settings = settings
        self._staging = staging
        self._memories = memories
        self._slots = SlotReader()
        self._share_of = share_of
        self._counters = counters
        self._clock = clock
        self._receiving: dict[tuple[int, int], Receiving] = {}  # by nonce and serial
        self._waiting: deque[Receiving] = deque()  # for a staging buffer; bounded as lanes are
        self._discard_buffer = np.zeros(8, np.uint8)
        self.flows: dict[PeerId, Flow] = {}
        self.later: deque[ChunkReceived] = deque()
        """Events born while effects are obeyed; the driver gives them to the protocol next."""

    def post_record(self, effect: PostRecord) -> None:
        """Post a receive for the next record of a lane."""
        record = RecordBuffer(nonce=effect.nonce, data=np.zeros(RECORD_BYTES, np.uint8))
        tag = make_tag(nonce=effect.nonce, piece=RECORD_PIECE)
        self._transport.post_receive(effect.peer, tag, record.data, record)

    def lands_direct(self, peer: PeerId, record: Record, block_ids: Sequence[int]) -> bool:
        """Whether messages of this chunk will be written into the blocks by UCX."""
        if record.shared_page:
            return False
        return self._share_of(peer).lands_in_place(block_ids, record.piece_bytes)

    def receive(self, effect: ReceiveChunk) -> None:
        """Take an announced chunk."""
        record = effect.record
        receiving = Receiving(
            peer=effect.peer, record=record, block_ids=effect.block_ids, direct=effect.direct
        )
        self._receiving[record.nonce, record.serial] = receiving
        self.flows.setdefault(effect.peer, Flow()).begin(self._clock())
        if record.shared_page:
            self._receive_shared(receiving)
        elif not self._post_pieces(receiving):
            self._waiting.append(receiving)

    def discard(self, effect: DiscardChunk) -> None:
        """Take an announced chunk off the wire, with no block in reach."""
        record = effect.record
        receiving = Receiving(
            peer=effect.peer,
            record=record,
            block_ids=(),
            discard=True,
            left=record.piece_count,
        )
        self._receiving[record.nonce, record.serial] = receiving
        self._counters["chunks_discarded"] += 1
        if record.shared_page:
            self._over(record, ok=True)
            return
        for number in range(record.first_piece, record.first_piece + record.piece_count):
            tag = make_tag(nonce=record.nonce, piece=number)
            self._transport.post_receive(
                effect.peer, tag, self._discard_buffer, receiving, discard=True
            )

    def final(self, receiving: Receiving, ok: bool) -> ChunkReceived | None:
        """A message of a chunk is final; returns the event when it was the last."""
        receiving.ok &= ok
        receiving.left -= 1
        if receiving.left:
            return None
        record = receiving.record
        digest = 0
        if receiving.ok and self._settings.digest and not receiving.discard:
            if receiving.buffer is not None:
                digest = digest_of([receiving.buffer[: record.size_bytes]])
            else:
                digest = self._digest_of_blocks(receiving)
        return ChunkReceived(
            nonce=record.nonce, serial=record.serial, ok=receiving.ok, digest=digest
        )

    def settle(self, nonce: int, serial: int, *, land: bool) -> None:
        """The protocol is done with a chunk: copy it into its blocks (``land``) or forget it."""
        receiving = self._receiving.pop((nonce, serial), None)
        if receiving is None:
            return
        record = receiving.record
        if not receiving.discard:
            size = record.size_bytes if land else 0
            self.flows[receiving.peer].end(self._clock(), size)
        if receiving in self._waiting:
            self._waiting.remove(receiving)
        if record.shared_page:
            # The source's slot has been read.
            tag = make_tag(nonce=nonce, piece=record.first_piece)
            self._transport.send(receiving.peer, tag, np.zeros(1, np.uint8), None)
        if land:
            self._counters["received_bytes"] += record.size_bytes
            self._counters["chunks_received"] += 1
            if receiving.buffer is not None:
                packed = receiving.buffer[: record.size_bytes]
                self._share_of(receiving.peer).pool.scatter(receiving.block_ids, packed)
        if receiving.buffer is not None:
            self._staging.give(receiving.peer, receiving.buffer)
            receiving.buffer = None
            self._post_waiting()

    # ------------------------------------------------------------------------------ inside

    def _receive_shared(self, receiving: Receiving) -> None:
        """Copy a chunk out of the source's shared memory, now, while the blocks are ours.

        Whether the source has used the slot anew meanwhile, its header says. The digest is taken
        of the copy, so that it stands for the blocks themselves.
        """
        record = receiving.record
        pool = self._share_of(receiving.peer).pool
        digest = RunningDigest() if self._settings.digest else None
        seen = digest.update if digest is not None else None
        mapped = self._memories.of(receiving.peer)
        whole = mapped is not None and self._slots.copy(
            mapped, record, lambda packed: pool.scatter(receiving.block_ids, packed, seen)
        )
        if mapped is None or whole is None:
            self._transport.abort(receiving.peer)
            self._over(record, ok=False)
        elif not whole:
            self._over(record, ok=True, overtaken=True)
        else:
            self._over(record, ok=True, digest=digest.value() if digest is not None else 0)

    def _over(self, record: Record, *, ok: bool, digest: int = 0, overtaken: bool = False) -> None:
        self.later.append(
            ChunkReceived(
                nonce=record.nonce,
                serial=record.serial,
                ok=ok,
                digest=digest,
                overtaken=overtaken,
            )
        )

    def _digest_of_blocks(self, receiving: Receiving) -> int:
        pool = self._share_of(receiving.peer).pool
        return pool.digest_of(
            [
                pool.part(*segment)
                for block_id in receiving.block_ids
                for segment in pool.segments(block_id)
            ]
        )

    def _post_pieces(self, receiving: Receiving) -> bool:
        """Post a receive for every message of a chunk; False when there is no buffer now."""
        record = receiving.record
        parts: list[Any]
        if receiving.direct:
            pool = self._share_of(receiving.peer).pool
            cut = pool.pieces(receiving.block_ids, record.piece_bytes)
            if cut is None:  # device memory cut otherwise than the source's: never by our peers
                self._transport.abort(receiving.peer)
                self._over(record, ok=False)
                return True
            parts = [pool.part(*piece) for piece in cut]
        else:
            buffer = self._staging.take(receiving.peer, record.size_bytes)
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

    def _post_waiting(self) -> None:
        """Give freed staging buffers to the chunks that wait for them."""
        for _ in range(len(self._waiting)):
            receiving = self._waiting.popleft()
            if not self._post_pieces(receiving):
                self._waiting.append(receiving)
