"""What comes in band: records, the chunks that they announce, and whether a chunk is right.

::

    record --not in order--> ClosePeer (the source began the lane anew; we resume)
      |----not acceptable--> violation
      |----CHUNK, live-----> ReceiveChunk --final--> digest right: Land, verified
      |                          \\-> wrong, or its slot overtaken: Again once, then the want fails
      |----CHUNK, draining-> DiscardChunk, no block in reach
      '----END-------------> the want fails with the source's reason; the lane is over. One that is
                             out of range first waits for the chunks that were announced
"""

from pdd.transfer import protocol_target_ends as ends
from pdd.transfer import protocol_target_lanes as lanes
from pdd.transfer.protocol_target_state import Lane, Outstanding, TargetState, Want
from pdd.transfer.protocol_values import (
    ChunkReceived,
    ClosePeer,
    Count,
    DiscardChunk,
    Drop,
    Land,
    ReceiveChunk,
    RecordReceived,
)
from pdd.transfer.values import Reason
from pdd.wire.record import PIECES_PER_CHUNK, EndReason, Record, RecordKind, unpack_record

MAX_CHUNK_BYTES = 64 << 20  # of chunks of several blocks

_END_REASONS = {
    EndReason.NONE: Reason.PROTOCOL_VIOLATION,
    EndReason.CANCELLED: Reason.CANCELLED,
    EndReason.ABORTED: Reason.ABORTED,
    EndReason.EXPIRED: Reason.DEADLINE,
    EndReason.OUT_OF_RANGE: Reason.OUT_OF_RANGE,
    EndReason.SUPERSEDED: Reason.PROTOCOL_VIOLATION,
    EndReason.REFUSED: Reason.REFUSED,
}


def record_received(state: TargetState, event: RecordReceived) -> None:
    """A posted record receive is final."""
    lane = state.lanes.get(event.nonce)
    if lane is None:
        return  # PeerLost took the lane; its last receives end after it only by failing
    lane.record_posted = False
    if event.data is None:
        return  # PeerLost follows
    try:
        record = unpack_record(event.data)
    except ValueError:
        ends.violation(state, lane)
        return
    if record.nonce != lane.nonce:
        ends.violation(state, lane)
        return
    if not _in_order(lane, record):
        # The source lost the connection and began this lane anew; we have not noticed the loss
        # yet. Make it known: the want is resumed under another nonce.
        state.effects.append(ClosePeer(peer=lane.peer))
        return
    lane.next_serial = record.serial + 1
    match record.kind:
        case RecordKind.ACCEPTED | RecordKind.HELD:
            lane.answered = True
            _note_accepted(state, lane, record)
        case RecordKind.CHUNK:
            lane.answered = lane.chunks_seen = True
            if not _announced(state, lane, record):
                return
        case RecordKind.END:
            _ended(state, lane, record.reason)
            return
    lanes.post_record(state, lane)


def chunk_received(state: TargetState, event: ChunkReceived) -> None:
    """All receives of an announced chunk are final: is it right?"""
    lane = state.lanes.get(event.nonce)
    outstanding = lane.outstanding.pop(event.serial, None) if lane is not None else None
    if lane is None or outstanding is None:
        state.effects.append(Drop(nonce=event.nonce, serial=event.serial))
        return
    record = outstanding.record
    first, count = record.first_index, record.block_count
    lane.announced.difference_update(range(first, first + count))
    want = state.wants.get(lane.key)
    if not lane.live or want is None or not event.ok:
        state.effects.append(Drop(nonce=event.nonce, serial=event.serial))
        if not lane.live:
            ends.lane_settled(state, lane)
        return
    wrong = _what_is_wrong(state, event, record)
    if wrong is not None:
        state.effects.append(Drop(nonce=event.nonce, serial=event.serial))
        _ask_again(state, want, lane, record, wrong)
        return
    state.effects.append(Land(nonce=event.nonce, serial=event.serial))
    want.verified.update(range(first, first + count))
    want.transferred_bytes += record.size_bytes
    if len(want.verified) == len(want.block_ids):
        ends.complete(state, want, lane)
    elif lane.ended:
        _end_when_all_came(state, want, lane)
    else:
        lanes.post_record(state, lane)


def _in_order(lane: Lane, record: Record) -> bool:
    """END may skip the serials of chunks that the source still had to send, and an answer may come
    twice when the source lost the connection in between.
    """
    answer = record.kind in (RecordKind.ACCEPTED, RecordKind.HELD)
    return (
        record.serial == lane.next_serial
        or record.kind is RecordKind.END
        or (answer and not lane.chunks_seen)
    )


def _note_accepted(state: TargetState, lane: Lane, record: Record) -> None:
    want = state.wants.get(lane.key)
    if record.kind is RecordKind.ACCEPTED and want is not None and want.accepted_at_s is None:
        want.accepted_at_s = state.now_s  # that of a resumed transfer is its first lane's


def _announced(state: TargetState, lane: Lane, record: Record) -> bool:
    """Take the chunk that a record announces; False when the record breaks the rules."""
    if not lane.live:
        lane.outstanding[record.serial] = Outstanding(record=record, direct=False)
        state.effects.append(DiscardChunk(peer=lane.peer, record=record))
        return True
    want = state.wants[lane.key]
    if not _acceptable(state, want, lane, record):
        ends.violation(state, lane)
        return False
    start = record.first_index - want.first_index
    block_ids = want.block_ids[start : start + record.block_count]
    direct = state.lands_direct(lane.peer, record, block_ids)
    indices = range(record.first_index, record.first_index + record.block_count)
    lane.announced.update(indices)
    for serial in [s for s, (first, _) in lane.again.items() if first in indices]:
        del lane.again[serial]
    lane.outstanding[record.serial] = Outstanding(record=record, direct=direct)
    state.effects.append(
        ReceiveChunk(peer=lane.peer, record=record, block_ids=block_ids, direct=direct)
    )
    return True


def _acceptable(state: TargetState, want: Want, lane: Lane, record: Record) -> bool:
    """Everything a record must fulfil before a receive is posted into reserved blocks."""
    first, count = record.first_index, record.block_count
    if first < want.first_index or first + count > want.first_index + len(want.block_ids):
        state.count_refused(Reason.OUT_OF_RANGE)
        return False
    if any(i in want.verified or i in lane.announced for i in range(first, first + count)):
        state.count_refused(Reason.CONSUMED)
        return False
    if record.size_bytes != count * state.block_bytes(want.peer):
        return False
    if count > 1 and record.size_bytes > MAX_CHUNK_BYTES:
        return False
    if record.piece_count > PIECES_PER_CHUNK:
        return False
    if record.shared_page and not want.shared:
        return False
    return not (state.settings.digest and record.digest == 0)


def _ended(state: TargetState, lane: Lane, reason: EndReason) -> None:
    lane.ended = True
    want = state.wants.get(lane.key)
    if lane.live and want is not None:
        if reason is EndReason.OUT_OF_RANGE:
            _end_when_all_came(state, want, lane)
            return
        ends.fail(state, want, _END_REASONS[reason])
    ends.lane_settled(state, lane)


def _end_when_all_came(state: TargetState, want: Want, lane: Lane) -> None:
    """The source has sent what it has of the want, which is not all."""
    if not lane.outstanding:
        ends.fail(state, want, Reason.OUT_OF_RANGE)


def _what_is_wrong(state: TargetState, event: ChunkReceived, record: Record) -> Reason | None:
    if event.overtaken:
        state.effects.append(Count(name="chunks_overtaken"))
        return Reason.OVERTAKEN
    if state.settings.digest and event.digest != record.digest:
        state.effects.append(Count(name="digest_mismatches"))
        return Reason.DIGEST_MISMATCH
    return None


def _ask_again(state: TargetState, want: Want, lane: Lane, record: Record, wrong: Reason) -> None:
    """A chunk is damaged or overtaken: it is asked for once more, block by block only once."""
    indices = range(record.first_index, record.first_index + record.block_count)
    if lane.ended or any(index in want.retried for index in indices):
        ends.fail(state, want, wrong)
        return
    want.retried.update(indices)
    lane.again[record.serial] = (record.first_index, record.block_count)
    lanes.say_again(state, lane, record.serial)
    lanes.post_record(state, lane)
