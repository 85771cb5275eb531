"""How wants end at the target: complete, failed or cancelled; and what a lost peer does to them.

::

    complete: every block verified           --> Receipt, TargetCompleted
    end:      a reason, with what is missing --> the lane drains: Cancel until END, chunks discarded
        v
    quiet?    no receive can write into the blocks; staged and shared chunks never do
        |       --no--> quiesce_timeout_s --> ClosePeer, which makes the receives final
        v yes
    TargetFailed or TargetCancelled

A lane outlives its want while messages are on their way: at most ``drain_timeout_s``, then
ClosePeer.
"""

from pdd.transfer import protocol_target_lanes as lanes
from pdd.transfer.protocol_target_state import Lane, TargetState, Want
from pdd.transfer.protocol_values import ClosePeer, Count, Drop, Emit, SendControl
from pdd.transfer.values import (
    PeerId,
    Reason,
    TargetCancelled,
    TargetCompleted,
    TargetFailed,
)
from pdd.wire.control import Probe, Receipt, Refusal

RESUMES = 1


def complete(state: TargetState, want: Want, lane: Lane) -> None:
    """The last block is verified."""
    assert not lane.outstanding
    assert not lane.record_posted
    del state.lanes[lane.nonce]
    del state.wants[want.key]
    _send_receipt(state, lane.peer, key=want.key, nonce=lane.nonce)
    began_s = state.now_s if want.accepted_at_s is None else want.accepted_at_s
    state.effects.append(
        Emit(
            event=TargetCompleted(
                key=want.key,
                transferred_bytes=want.transferred_bytes,
                duration_s=state.now_s - want.opened_at_s,
                moving_s=state.now_s - began_s,
            )
        )
    )


def cancel(state: TargetState, key: str) -> None:
    """The user gives a want up."""
    want = state.wants.get(key)
    if want is None:
        return  # its terminal event is on its way to the user already
    if want.ending is None:
        _end(state, want, TargetCancelled(key=key), reason=Reason.CANCELLED)
    elif isinstance(want.ending, TargetFailed):
        want.ending = TargetCancelled(key=key)


def fail(state: TargetState, want: Want, reason: Reason) -> None:
    """The want will not be filled."""
    failed = TargetFailed(
        key=want.key,
        bad_indices=want.missing(),
        reason=reason,
        transferred_bytes=want.transferred_bytes,
    )
    _end(state, want, failed, reason=reason)


def violation(state: TargetState, lane: Lane) -> None:
    """The source does what it must not: nothing more is taken from it on this endpoint."""
    state.count_refused(Reason.PROTOCOL_VIOLATION)
    want = state.wants.get(lane.key)
    if lane.live and want is not None:
        fail(state, want, Reason.PROTOCOL_VIOLATION)
    state.effects.append(ClosePeer(peer=lane.peer))


def lane_settled(state: TargetState, lane: Lane) -> None:
    """After a change to a lane that is not live: is it over, is its want?"""
    want = state.wants.get(lane.key)
    if want is not None and want.nonce == lane.nonce:
        _finish_if_quiet(state, want)
    if lane.ended and not lane.outstanding:
        state.lanes.pop(lane.nonce, None)
    elif not lane.live:
        lanes.post_record(state, lane)


def refused(state: TargetState, peer: PeerId, message: Refusal) -> None:
    """The source will not serve a lane."""
    lane = state.lanes.get(message.nonce)
    if lane is None or lane.peer != peer:
        state.count_refused(Reason.UNKNOWN_NONCE)
        return
    state.effects.append(Count(name="grants_refused"))
    want = state.wants.get(lane.key)
    if lane.live and want is not None:
        fail(state, want, Reason.REFUSED)


def probed(state: TargetState, peer: PeerId, message: Probe) -> None:
    """The source asks whether its blocks are needed yet."""
    if message.nonce in state.lanes:
        return  # still receiving
    # Completed or given up: either way nothing is wanted from the source any more.
    _send_receipt(state, peer, key=message.key, nonce=message.nonce)


def peer_lost(state: TargetState, peer: PeerId) -> None:
    """Every lane of this peer is gone; what is missing is asked for once more, then given up."""
    for lane in [lane for lane in state.lanes.values() if lane.peer == peer]:
        for serial in lane.outstanding:
            state.effects.append(Drop(nonce=lane.nonce, serial=serial))
        del state.lanes[lane.nonce]
        want = state.wants.get(lane.key)
        if want is None or want.nonce != lane.nonce:
            continue
        if want.ending is not None:
            _finish_if_quiet(state, want)
        elif want.attempt < RESUMES and state.now_s < want.deadline_at_s:
            want.attempt += 1
            state.effects.append(Count(name="resumes"))
            lanes.start_lane(state, want)
        else:
            fail(state, want, Reason.PEER_LOST)


def want_timer(state: TargetState, what: str, want: Want) -> None:
    """The deadline, or the end of the wait for receives that could write into the blocks."""
    if what == "deadline" and want.ending is None and want.deadline_at_s <= state.now_s:
        fail(state, want, Reason.DEADLINE)
    elif what == "quiesce" and want.ending is not None:
        state.effects.append(ClosePeer(peer=want.peer))


def _end(
    state: TargetState, want: Want, event: TargetFailed | TargetCancelled, *, reason: Reason
) -> None:
    """The want will not be filled. Its lane drains; its user hears of it when all is quiet."""
    if want.ending is not None:
        return
    want.ending = event
    lane = state.lanes.get(want.nonce)
    if lane is not None:
        _drain(state, lane, reason)
    if not _finish_if_quiet(state, want):
        at_s = state.now_s + state.settings.quiesce_timeout_s
        state.timers.schedule(at_s, "quiesce", want.key)
    if lane is not None:
        lane_settled(state, lane)


def _drain(state: TargetState, lane: Lane, reason: Reason) -> None:
    lane.live = False
    lane.cancel_reason = reason
    lane.again.clear()
    if lane.ended:
        return
    lanes.post_record(state, lane)
    lanes.say_cancel(state, lane)
    state.timers.schedule(state.now_s + state.settings.drain_timeout_s, "drain", lane.nonce)


def _finish_if_quiet(state: TargetState, want: Want) -> bool:
    """Emit the terminal event unless a receive could yet write into the want's blocks."""
    if want.ending is None:
        return False
    lane = state.lanes.get(want.nonce)
    if lane is not None and any(chunk.direct for chunk in lane.outstanding.values()):
        return False
    del state.wants[want.key]
    state.effects.append(Emit(event=want.ending))
    return True


def _send_receipt(state: TargetState, peer: PeerId, *, key: str, nonce: int) -> None:
    if not state.settings.faults.drop_receipts:
        state.effects.append(SendControl(peer=peer, message=Receipt(key=key, nonce=nonce)))
