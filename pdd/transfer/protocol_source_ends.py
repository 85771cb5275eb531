"""How sequences and lanes end at the source: for a reason, and only when nothing is read any more.

::

    end(sequence)            the reason is fixed; its lane gets END unless the target ended it
        v
    every send final?  --no--> quiesce_timeout_s --> ClosePeer, which makes them final
        v yes
    SourceReleased           the key is remembered as finished

A lane may outlive its grant (superseded, or its sequence ended): it stays known until its sends
are final, and nothing new is sent on it.
"""

from pdd.transfer.protocol_source_state import Lane, Sequence, SourceState, remember
from pdd.transfer.protocol_values import ClosePeer, Emit, SendRecord
from pdd.transfer.values import PeerId, Reason, SourceReleased
from pdd.wire.control import Receipt
from pdd.wire.record import EndReason, Record, RecordKind


def send_record(
    state: SourceState, lane: Lane, kind: RecordKind, reason: EndReason = EndReason.NONE
) -> None:
    """Say something in band that is no chunk."""
    record = Record(kind=kind, nonce=lane.nonce, serial=lane.next_serial, reason=reason)
    lane.next_serial += 1
    state.effects.append(SendRecord(peer=lane.peer, record=record))


def end(
    state: SourceState, sequence: Sequence, reason: Reason, end_reason: EndReason | None
) -> None:
    """Nothing more is sent for this sequence; it is released when every send is final.

    ``end_reason``: what the target is told in band; None where it knows, or is lost.
    """
    if sequence.ending is not None:
        return
    sequence.ending = reason
    lane = state.lanes.get(sequence.nonce)
    if lane is not None and end_reason is not None and not lane.ended:
        end_lane(state, lane, end_reason)
    elif lane is not None and not lane.in_flight:
        forget_lane(state, lane)
    if not release_if_final(state, sequence):
        at_s = state.now_s + state.settings.quiesce_timeout_s
        state.timers.schedule(at_s, "quiesce", sequence.key)


def end_out_of_range(state: SourceState, sequence: Sequence) -> None:
    """The target has got what there is, and wants more than that."""
    state.count_refused(Reason.OUT_OF_RANGE)
    end(state, sequence, Reason.OUT_OF_RANGE, EndReason.OUT_OF_RANGE)


def end_lane(state: SourceState, lane: Lane, reason: EndReason) -> None:
    """Say END; the lane is forgotten when its sends are final."""
    lane.ended = True
    remember(state.ended_nonces, lane.nonce, lane.peer)
    send_record(state, lane, RecordKind.END, reason)
    if not lane.in_flight:
        forget_lane(state, lane)


def forget_lane(state: SourceState, lane: Lane) -> None:
    """Nothing is on its way on this lane, and nothing will be."""
    state.lanes.pop(lane.nonce, None)
    sequence = state.sequences.get(lane.key)
    if sequence is not None:
        sequence.lanes.discard(lane.nonce)
        if sequence.nonce == lane.nonce:
            sequence.nonce = 0


def release_if_final(state: SourceState, sequence: Sequence) -> bool:
    """Tell the user that an ended sequence's blocks are read no more, once that is so."""
    if sequence.ending is None:
        return False
    if any(state.lanes[nonce].in_flight for nonce in sequence.lanes if nonce in state.lanes):
        return False
    del state.sequences[sequence.key]
    remember(state.finished_keys, sequence.key, None)
    released = SourceReleased(
        key=sequence.key, reason=sequence.ending, sent_bytes=sequence.sent_bytes
    )
    state.effects.append(Emit(event=released))
    return True


def receipt(state: SourceState, message: Receipt, lane: Lane | None) -> None:
    """The target has everything."""
    sequence = state.sequences.get(message.key)
    if lane is None or sequence is None or lane.ended:
        return  # said again
    lane.ended = True
    remember(state.ended_nonces, lane.nonce, lane.peer)
    end(state, sequence, Reason.COMPLETED, None)


def peer_lost(state: SourceState, peer: PeerId) -> None:
    """Every lane to this peer is gone; its sequences wait for a resume, ``resume_grace_s`` long."""
    state.peers.pop(peer, None)
    # An END may have been lost with the connection; whoever asks again gets another.
    for nonce in [nonce for nonce, who in state.ended_nonces.items() if who == peer]:
        del state.ended_nonces[nonce]
    for lane in [lane for lane in state.lanes.values() if lane.peer == peer]:
        sequence = state.sequences.get(lane.key)
        in_force = sequence is not None and sequence.nonce == lane.nonce
        # The nonce is not remembered as ended: the target may have closed the connection and
        # granted this lane before we noticed; then it will say the same grant again.
        forget_lane(state, lane)
        if sequence is None:
            continue
        if sequence.ending is not None:
            release_if_final(state, sequence)
        elif in_force:
            sequence.resume_by_s = state.now_s + state.settings.resume_grace_s
            state.timers.schedule(sequence.resume_by_s, "resume", sequence.key)


def sequence_timer(state: SourceState, what: str, sequence: Sequence) -> None:
    """The deadline, the end of the wait for a resume, or that of the wait for final sends."""
    if what == "deadline" and sequence.deadline_at_s <= state.now_s:
        end(state, sequence, Reason.DEADLINE, EndReason.EXPIRED)
    elif what == "resume":
        resume_by_s = sequence.resume_by_s
        if resume_by_s is not None and resume_by_s <= state.now_s:
            end(state, sequence, Reason.PEER_LOST, None)
    elif what == "quiesce" and sequence.ending is not None:
        for nonce in sorted(sequence.lanes):
            lane = state.lanes.get(nonce)
            if lane is not None and lane.in_flight:
                state.effects.append(ClosePeer(peer=lane.peer))
