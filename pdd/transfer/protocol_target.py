"""The receiving side (decode node) of a transfer. Pure: events in, effects out.

A *want* is what the user opened, by key. A *lane* is one attempt to fill it: one nonce, one peer.
A want has at most one live lane; a lane outlives its want while messages are on their way.

::

    want                                          lane (nonce)
    ----                                          ----
    target_open                                   LIVE --record HELD, ACCEPTED--> (answered)
        | Connect, PostRecord, Grant               | record CHUNK: receive it, then
        v                                          |   digest right: Land, verified
    FILLING --last block verified--> COMPLETED     |   digest wrong: Again once, else fail
        |    (Receipt)                             |
        | cancel / END / refusal / deadline /      v want ended early
        | second wrong digest                     DRAINING  Cancel repeated; chunks discarded
        v                                          |
    ENDING  waits until no receive can write       v END in band, and nothing outstanding
        |   into its blocks                       (gone)
        v
    CANCELLED or FAILED(bad indices)              PeerLost: every lane of the peer is gone;
                                                  a FILLING want gets one new lane (attempt + 1)
                                                  for what is missing, then FAILED

Invariants: each opened key gets exactly one of TargetCompleted, TargetFailed, TargetCancelled, and
only when no receive is outstanding that could write into its blocks. A lane has a record receive
posted while it is LIVE with blocks yet to be announced, and while it is DRAINING.

Bounds: outstanding chunks per lane by ``OUTSTANDING_CHUNKS`` (then no further record is read until
one is done: the source waits); chunk size by ``MAX_CHUNK_BYTES`` (larger is a violation).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from pdd.core.identity import NodeIdentity
from pdd.transfer.protocol_timers import Timers
from pdd.transfer.protocol_values import (
    ChunkReceived,
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
    SendControl,
    TargetCancelRequested,
    TargetEvent,
    TargetOpened,
    Ticked,
)
from pdd.transfer.settings import TransferSettings
from pdd.transfer.values import (
    PeerId,
    Reason,
    TargetCancelled,
    TargetCompleted,
    TargetFailed,
)
from pdd.wire.control import Again, Cancel, Grant, Probe, Receipt, Refusal
from pdd.wire.record import PIECES_PER_CHUNK, EndReason, Record, RecordKind, unpack_record

OUTSTANDING_CHUNKS = 64
MAX_CHUNK_BYTES = 64 << 20  # of chunks of several blocks
RESUMES = 1

_END_REASONS = {
    EndReason.NONE: Reason.PROTOCOL_VIOLATION,
    EndReason.CANCELLED: Reason.CANCELLED,
    EndReason.ABORTED: Reason.ABORTED,
    EndReason.EXPIRED: Reason.DEADLINE,
    EndReason.OUT_OF_RANGE: Reason.OUT_OF_RANGE,
    EndReason.SUPERSEDED: Reason.PROTOCOL_VIOLATION,
    EndReason.REFUSED: Reason.REFUSED,
}


@dataclass(slots=True, kw_only=True)
class _Want:
    key: str
    peer: PeerId
    first_index: int
    block_ids: tuple[int, ...]
    deadline_at_s: float
    opened_at_s: float
    accepted_at_s: float | None = None
    verified: set[int] = field(default_factory=set)  # prompt block indices
    attempt: int = 0
    nonce: int = 0
    transferred_bytes: int = 0
    retried: set[int] = field(default_factory=set)
    shared: bool = False
    ending: TargetFailed | TargetCancelled | None = None

    def missing(self) -> tuple[int, ...]:
        end = self.first_index + len(self.block_ids)
        return tuple(i for i in range(self.first_index, end) if i not in self.verified)


@dataclass(slots=True, kw_only=True)
class _Outstanding:
    record: Record
    direct: bool


@dataclass(slots=True, kw_only=True)
class _Lane:
    nonce: int
    key: str
    peer: PeerId
    live: bool = True
    answered: bool = False
    chunks_seen: bool = False
    ended: bool = False  # END came in band
    record_posted: bool = False
    next_serial: int = 0
    outstanding: dict[int, _Outstanding] = field(default_factory=dict)
    announced: set[int] = field(default_factory=set)  # indices in outstanding chunks
    again: dict[int, tuple[int, int]] = field(default_factory=dict)  # serial -> indices asked for
    repeat_pause_s: float = 0.0
    cancel_reason: Reason = Reason.CANCELLED


class TargetProtocol:
    """All transfers into this rank's pool.

    Args:
        identity, address: what the tickets say about this node.
        block_bytes: bytes of one block that a peer fills (packed).
        lands_direct: whether a chunk can be received in place; pure.
        new_nonce: 40 unguessable bits.
    """

    def __init__(
        self,
        *,
        identity: NodeIdentity,
        address: bytes,
        block_bytes: Callable[[PeerId], int],
        settings: TransferSettings,
        lands_direct: Callable[[PeerId, Record, Sequence[int]], bool],
        new_nonce: Callable[[], int],
    ) -> None:
        self._identity = identity
        self._address = address
        self._block_bytes = block_bytes
        self._settings = settings
        self._lands_direct = lands_direct
        self._new_nonce = new_nonce
        self._wants: dict[str, _Want] = {}
        self._lanes: dict[int, _Lane] = {}
        self._timers = Timers()
        self._effects: list[Effect] = []
        self._now_s = 0.0

    def step(self, event: TargetEvent, *, now_s: float) -> list[Effect]:
        """Apply one event. ``now_s`` is monotonic seconds from the driver's clock."""
        self._now_s = now_s
        self._effects = []
        match event:
            case TargetOpened():
                self._on_opened(event)
            case TargetCancelRequested():
                self._on_cancel(event.key)
            case RecordReceived():
                self._on_record(event)
            case ChunkReceived():
                self._on_chunk(event)
            case ControlReceived():
                self._on_control(event)
            case PeerLost():
                self._on_peer_lost(event.peer)
            case Ticked():
                self._on_ticked()
            case _:
                assert_never(event)
        return self._effects

    def next_wakeup_s(self) -> float | None:
        """When to send ``Ticked`` at the latest, or None."""
        return self._timers.next_s()

    @property
    def idle(self) -> bool:
        """True when nothing is open and nothing is on its way."""
        return not self._wants and not self._lanes

    def counts(self) -> dict[str, int]:
        """Sizes of what is held now."""
        quarantined = sum(len(want.block_ids) for want in self._wants.values())
        return {
            "target_open": len(self._wants),
            "target_lanes": len(self._lanes),
            "quarantined_blocks": quarantined,
        }

    # ------------------------------------------------------------------------------ user

    def _on_opened(self, event: TargetOpened) -> None:
        assert event.key not in self._wants, f"transfer {event.key} is open already"
        if not event.block_ids:
            # Nothing is wanted: the source is told so that it need not wait for a grant.
            cancel = Cancel(key=event.key, nonce=self._new_nonce(), reason=Reason.COMPLETED.value)
            self._effects.append(SendControl(peer=event.peer, message=cancel))
            done = TargetCompleted(key=event.key, transferred_bytes=0, duration_s=0.0)
            self._effects.append(Emit(event=done))
            return
        want = _Want(
            key=event.key,
            peer=event.peer,
            first_index=event.first_index,
            block_ids=tuple(event.block_ids),
            deadline_at_s=event.deadline_at_s,
            opened_at_s=self._now_s,
            shared=event.shared,
        )
        self._wants[event.key] = want
        self._timers.schedule(event.deadline_at_s, "deadline", event.key)
        self._start_lane(want)

    def _on_cancel(self, key: str) -> None:
        want = self._wants.get(key)
        if want is None:
            return  # its terminal event is on its way to the user already
        if want.ending is None:
            self._end(want, TargetCancelled(key=key), reason=Reason.CANCELLED)
        elif isinstance(want.ending, TargetFailed):
            want.ending = TargetCancelled(key=key)

    # ------------------------------------------------------------------------------ lanes

    def _start_lane(self, want: _Want) -> None:
        nonce = self._new_nonce()
        while nonce in self._lanes:
            nonce = self._new_nonce()
        lane = _Lane(
            nonce=nonce,
            key=want.key,
            peer=want.peer,
            repeat_pause_s=self._settings.grant_repeat_s,
        )
        self._lanes[nonce] = lane
        want.nonce = nonce
        self._effects.append(Connect(peer=want.peer))
        self._post_record(lane)
        self._send_grant(want)
        self._schedule_repeat(lane)
        at_s = self._now_s + self._settings.answer_timeout_s
        self._timers.schedule(at_s, "answer", nonce)

    def _send_grant(self, want: _Want) -> None:
        lease_ms = int((want.deadline_at_s - self._now_s) * 1000)
        if lease_ms <= 0:
            return  # the deadline's own timer is due
        grant = Grant(
            key=want.key,
            nonce=want.nonce,
            attempt=want.attempt,
            source_uuid=want.peer.uuid,
            source_boot_epoch=want.peer.boot_epoch,
            target_uuid=self._identity.uuid,
            target_boot_epoch=self._identity.boot_epoch,
            first_index=want.first_index,
            block_ids=want.block_ids,
            held=tuple(sorted(want.verified)),
            lease_ms=lease_ms,
            address=self._address,
            shared=int(want.shared),
        )
        self._effects.append(SendControl(peer=want.peer, message=grant))

    def _post_record(self, lane: _Lane) -> None:
        if lane.record_posted or lane.ended or len(lane.outstanding) >= OUTSTANDING_CHUNKS:
            return
        if lane.live:
            want = self._wants[lane.key]
            if len(want.verified) + len(lane.announced) == len(want.block_ids):
                return  # everything has been announced
        lane.record_posted = True
        self._effects.append(PostRecord(peer=lane.peer, nonce=lane.nonce))

    def _schedule_repeat(self, lane: _Lane) -> None:
        self._timers.schedule(self._now_s + lane.repeat_pause_s, "repeat", lane.nonce)
        lane.repeat_pause_s = min(2 * lane.repeat_pause_s, self._settings.control_repeat_limit_s)

    def _on_record(self, event: RecordReceived) -> None:
        lane = self._lanes.get(event.nonce)
        if lane is None:
            return  # PeerLost took the lane; its last receives end after it only by failing
        lane.record_posted = False
        if event.data is None:
            return  # PeerLost follows
        try:
            record = unpack_record(event.data)
        except ValueError:
            self._violation(lane)
            return
        # END may skip the serials of chunks that the source still had to send, and an answer may
        # come twice when the source lost the connection in between.
        answer = record.kind in (RecordKind.ACCEPTED, RecordKind.HELD)
        in_order = (
            record.serial == lane.next_serial
            or record.kind is RecordKind.END
            or (answer and not lane.chunks_seen)
        )
        if record.nonce != lane.nonce:
            self._violation(lane)
            return
        if not in_order:
            # The source lost the connection and began this lane anew; we have not noticed the loss
            # yet. Make it known: the want is resumed under another nonce.
            self._effects.append(ClosePeer(peer=lane.peer))
            return
        lane.next_serial = record.serial + 1
        match record.kind:
            case RecordKind.ACCEPTED | RecordKind.HELD:
                lane.answered = True
                self._note_accepted(lane, record)
            case RecordKind.CHUNK:
                lane.answered = lane.chunks_seen = True
                if not self._on_announced(lane, record):
                    return
            case RecordKind.END:
                self._on_end(lane, record.reason)
                return
        self._post_record(lane)

    def _on_announced(self, lane: _Lane, record: Record) -> bool:
        if not lane.live:
            lane.outstanding[record.serial] = _Outstanding(record=record, direct=False)
            self._effects.append(DiscardChunk(peer=lane.peer, record=record))
            return True
        want = self._wants[lane.key]
        if not self._acceptable(want, lane, record):
            self._violation(lane)
            return False
        start = record.first_index - want.first_index
        block_ids = want.block_ids[start : start + record.block_count]
        direct = self._lands_direct(lane.peer, record, block_ids)
        indices = range(record.first_index, record.first_index + record.block_count)
        lane.announced.update(indices)
        for serial in [s for s, (first, _) in lane.again.items() if first in indices]:
            del lane.again[serial]
        lane.outstanding[record.serial] = _Outstanding(record=record, direct=direct)
        self._effects.append(
            ReceiveChunk(peer=lane.peer, record=record, block_ids=block_ids, direct=direct)
        )
        return True

    def _acceptable(self, want: _Want, lane: _Lane, record: Record) -> bool:
        """Everything a record must fulfil before a receive is posted into reserved blocks."""
        first, count = record.first_index, record.block_count
        if first < want.first_index or first + count > want.first_index + len(want.block_ids):
            self._count(Reason.OUT_OF_RANGE)
            return False
        if any(i in want.verified or i in lane.announced for i in range(first, first + count)):
            self._count(Reason.CONSUMED)
            return False
        if record.size_bytes != count * self._block_bytes(want.peer):
            return False
        if count > 1 and record.size_bytes > MAX_CHUNK_BYTES:
            return False
        if record.piece_count > PIECES_PER_CHUNK:
            return False
        if record.shared_page and not want.shared:
            return False
        return not (self._settings.digest and record.digest == 0)

    def _on_end(self, lane: _Lane, reason: EndReason) -> None:
        lane.ended = True
        want = self._wants.get(lane.key)
        if lane.live and want is not None:
            self._fail(want, _END_REASONS[reason])
        self._lane_settled(lane)

    def _on_chunk(self, event: ChunkReceived) -> None:
        lane = self._lanes.get(event.nonce)
        outstanding = lane.outstanding.pop(event.serial, None) if lane is not None else None
        if lane is None or outstanding is None:
            self._effects.append(Drop(nonce=event.nonce, serial=event.serial))
            return
        record = outstanding.record
        first, count = record.first_index, record.block_count
        lane.announced.difference_update(range(first, first + count))
        want = self._wants.get(lane.key)
        if not lane.live or want is None or not event.ok:
            self._effects.append(Drop(nonce=event.nonce, serial=event.serial))
            if not lane.live:
                self._lane_settled(lane)
            return
        if self._settings.digest and event.digest != record.digest:
            self._effects.append(Drop(nonce=event.nonce, serial=event.serial))
            self._on_mismatch(want, lane, record)
            return
        self._effects.append(Land(nonce=event.nonce, serial=event.serial))
        want.verified.update(range(first, first + count))
        want.transferred_bytes += record.size_bytes
        if len(want.verified) == len(want.block_ids):
            self._complete(want, lane)
        else:
            self._post_record(lane)

    def _on_mismatch(self, want: _Want, lane: _Lane, record: Record) -> None:
        self._effects.append(Count(name="digest_mismatches"))
        indices = range(record.first_index, record.first_index + record.block_count)
        if any(index in want.retried for index in indices):
            self._fail(want, Reason.DIGEST_MISMATCH)
            return
        want.retried.update(indices)
        lane.again[record.serial] = (record.first_index, record.block_count)
        again = Again(key=lane.key, nonce=lane.nonce, serial=record.serial)
        self._effects.append(SendControl(peer=lane.peer, message=again))
        lane.repeat_pause_s = self._settings.grant_repeat_s
        self._schedule_repeat(lane)
        self._post_record(lane)

    def _complete(self, want: _Want, lane: _Lane) -> None:
        assert not lane.outstanding
        assert not lane.record_posted
        del self._lanes[lane.nonce]
        del self._wants[want.key]
        self._send_receipt(want.key, lane)
        began_s = self._now_s if want.accepted_at_s is None else want.accepted_at_s
        self._effects.append(
            Emit(
                event=TargetCompleted(
                    key=want.key,
                    transferred_bytes=want.transferred_bytes,
                    duration_s=self._now_s - want.opened_at_s,
                    moving_s=self._now_s - began_s,
                )
            )
        )

    def _send_receipt(self, key: str, lane: _Lane) -> None:
        if not self._settings.faults.drop_receipts:
            receipt = Receipt(key=key, nonce=lane.nonce)
            self._effects.append(SendControl(peer=lane.peer, message=receipt))

    def _note_accepted(self, lane: _Lane, record: Record) -> None:
        want = self._wants.get(lane.key)
        if record.kind is RecordKind.ACCEPTED and want is not None and want.accepted_at_s is None:
            want.accepted_at_s = self._now_s  # that of a resumed transfer is its first lane's

    # ------------------------------------------------------------------------------ early ends

    def _violation(self, lane: _Lane) -> None:
        """The source does what it must not: nothing more is taken from it on this endpoint."""
        self._count(Reason.PROTOCOL_VIOLATION)
        want = self._wants.get(lane.key)
        if lane.live and want is not None:
            self._fail(want, Reason.PROTOCOL_VIOLATION)
        self._effects.append(ClosePeer(peer=lane.peer))

    def _fail(self, want: _Want, reason: Reason) -> None:
        failed = TargetFailed(
            key=want.key,
            bad_indices=want.missing(),
            reason=reason,
            transferred_bytes=want.transferred_bytes,
        )
        self._end(want, failed, reason=reason)

    def _end(self, want: _Want, event: TargetFailed | TargetCancelled, *, reason: Reason) -> None:
        """The want will not be filled. Its lane drains; its user hears of it when all is quiet."""
        if want.ending is not None:
            return
        want.ending = event
        lane = self._lanes.get(want.nonce)
        if lane is not None:
            self._drain(lane, reason)
        if not self._finish_if_quiet(want):
            at_s = self._now_s + self._settings.quiesce_timeout_s
            self._timers.schedule(at_s, "quiesce", want.key)
        if lane is not None:
            self._lane_settled(lane)

    def _drain(self, lane: _Lane, reason: Reason) -> None:
        lane.live = False
        lane.cancel_reason = reason
        lane.again.clear()
        if lane.ended:
            return
        self._post_record(lane)
        self._send_cancel(lane)
        lane.repeat_pause_s = self._settings.grant_repeat_s
        self._schedule_repeat(lane)
        self._timers.schedule(self._now_s + self._settings.drain_timeout_s, "drain", lane.nonce)

    def _send_cancel(self, lane: _Lane) -> None:
        cancel = Cancel(key=lane.key, nonce=lane.nonce, reason=lane.cancel_reason.value)
        self._effects.append(SendControl(peer=lane.peer, message=cancel))

    def _lane_settled(self, lane: _Lane) -> None:
        """After a change to a lane that is not live: is it over, is its want?"""
        want = self._wants.get(lane.key)
        if want is not None and want.nonce == lane.nonce:
            self._finish_if_quiet(want)
        if lane.ended and not lane.outstanding:
            self._lanes.pop(lane.nonce, None)
        elif not lane.live:
            self._post_record(lane)

    def _finish_if_quiet(self, want: _Want) -> bool:
        """Emit the terminal event unless a receive could yet write into the want's blocks."""
        if want.ending is None:
            return False
        lane = self._lanes.get(want.nonce)
        if lane is not None and any(chunk.direct for chunk in lane.outstanding.values()):
            return False
        del self._wants[want.key]
        self._effects.append(Emit(event=want.ending))
        return True

    # ------------------------------------------------------------------------------ the world

    def _on_peer_lost(self, peer: PeerId) -> None:
        for lane in [lane for lane in self._lanes.values() if lane.peer == peer]:
            for serial in lane.outstanding:
                self._effects.append(Drop(nonce=lane.nonce, serial=serial))
            del self._lanes[lane.nonce]
            want = self._wants.get(lane.key)
            if want is None or want.nonce != lane.nonce:
                continue
            if want.ending is not None:
                self._finish_if_quiet(want)
            elif want.attempt < RESUMES and self._now_s < want.deadline_at_s:
                want.attempt += 1
                self._effects.append(Count(name="resumes"))
                self._start_lane(want)
            else:
                self._fail(want, Reason.PEER_LOST)

    def _on_control(self, event: ControlReceived) -> None:
        message = event.message
        match message:
            case Refusal():
                lane = self._lanes.get(message.nonce)
                if lane is None or lane.peer != event.peer:
                    self._count(Reason.UNKNOWN_NONCE)
                    return
                self._effects.append(Count(name="grants_refused"))
                want = self._wants.get(lane.key)
                if lane.live and want is not None:
                    self._fail(want, Reason.REFUSED)
            case Probe():
                if message.nonce in self._lanes:
                    return  # still receiving
                # Completed or given up: either way nothing is wanted from the source any more.
                receipt = Receipt(key=message.key, nonce=message.nonce)
                if not self._settings.faults.drop_receipts:
                    self._effects.append(SendControl(peer=event.peer, message=receipt))
            case _:
                raise AssertionError(f"{type(message).__name__} is not for a target")

    def _on_ticked(self) -> None:
        for what, whom in self._timers.due(self._now_s):
            if isinstance(whom, str):
                want = self._wants.get(whom)
                if want is None:
                    continue
                if what == "deadline" and want.ending is None and self._expired(want):
                    self._fail(want, Reason.DEADLINE)
                elif what == "quiesce" and want.ending is not None:
                    self._effects.append(ClosePeer(peer=want.peer))
            else:
                lane = self._lanes.get(whom)
                if lane is None:
                    continue
                if what == "repeat":
                    self._repeat(lane)
                elif what == "answer" and lane.live and not lane.answered:
                    self._effects.append(Count(name="unanswered_grants"))
                    self._effects.append(ClosePeer(peer=lane.peer))
                elif what == "drain" and not lane.live:
                    self._effects.append(ClosePeer(peer=lane.peer))

    def _expired(self, want: _Want) -> bool:
        return want.deadline_at_s <= self._now_s

    def _repeat(self, lane: _Lane) -> None:
        """Send again what has not been answered, and look again later."""
        if not lane.live:
            if lane.ended:
                return
            self._send_cancel(lane)
        elif not lane.answered:
            self._send_grant(self._wants[lane.key])
        elif lane.again:
            for serial in lane.again:
                again = Again(key=lane.key, nonce=lane.nonce, serial=serial)
                self._effects.append(SendControl(peer=lane.peer, message=again))
        else:
            return
        self._schedule_repeat(lane)

    def _count(self, reason: Reason) -> None:
        self._effects.append(Count(name=f"refused_{reason.value}"))
