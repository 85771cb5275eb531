"""What the target says on a lane, and says again until it is answered.

::

    start_lane: Connect, PostRecord, Grant --------- answered in band, else after
        |                                            answer_timeout_s: ClosePeer
        v
    not answered:      Grant   \\
    chunk damaged:     Again    }  repeated, each pause twice the last, up to
    draining, no END:  Cancel  /   control_repeat_limit_s

A record receive is posted before the grant that makes the source send, and then while there is
anything to be announced; ``OUTSTANDING_CHUNKS`` on the way make the source wait.
"""

from pdd.transfer.protocol_target_state import Lane, TargetState, Want
from pdd.transfer.protocol_values import ClosePeer, Connect, Count, PostRecord, SendControl
from pdd.wire.control import Again, Cancel, Grant

OUTSTANDING_CHUNKS = 64


def start_lane(state: TargetState, want: Want) -> None:
    """Ask the want's peer for what is missing, under a new nonce."""
    nonce = state.new_nonce()
    while nonce in state.lanes:
        nonce = state.new_nonce()
    lane = Lane(
        nonce=nonce,
        key=want.key,
        peer=want.peer,
        repeat_pause_s=state.settings.grant_repeat_s,
    )
    state.lanes[nonce] = lane
    want.nonce = nonce
    state.effects.append(Connect(peer=want.peer))
    post_record(state, lane)
    _send_grant(state, want)
    _schedule_repeat(state, lane)
    at_s = state.now_s + state.settings.answer_timeout_s
    state.timers.schedule(at_s, "answer", nonce)


def post_record(state: TargetState, lane: Lane) -> None:
    """Post a receive for the lane's next record, unless there is one or none will come."""
    if lane.record_posted or lane.ended or len(lane.outstanding) >= OUTSTANDING_CHUNKS:
        return
    if lane.live:
        want = state.wants[lane.key]
        if len(want.verified) + len(lane.announced) == len(want.block_ids):
            return  # everything has been announced
    lane.record_posted = True
    state.effects.append(PostRecord(peer=lane.peer, nonce=lane.nonce))


def say_again(state: TargetState, lane: Lane, serial: int) -> None:
    """Have a damaged chunk sent once more."""
    _send_again(state, lane, serial)
    _repeat_from_now(state, lane)


def say_cancel(state: TargetState, lane: Lane) -> None:
    """Tell the source that nothing more is wanted."""
    _send_cancel(state, lane)
    _repeat_from_now(state, lane)


def lane_timer(state: TargetState, what: str, lane: Lane) -> None:
    """Time to say something again, or to give the connection up."""
    if what == "repeat":
        _repeat(state, lane)
    elif what == "answer" and lane.live and not lane.answered:
        state.effects.append(Count(name="unanswered_grants"))
        state.effects.append(ClosePeer(peer=lane.peer))
    elif what == "drain" and not lane.live:
        state.effects.append(ClosePeer(peer=lane.peer))


def _repeat(state: TargetState, lane: Lane) -> None:
    """Send again what has not been answered, and look again later."""
    if not lane.live:
        if lane.ended:
            return
        _send_cancel(state, lane)
    elif not lane.answered:
        _send_grant(state, state.wants[lane.key])
    elif lane.again:
        for serial in lane.again:
            _send_again(state, lane, serial)
    else:
        return
    _schedule_repeat(state, lane)


def _repeat_from_now(state: TargetState, lane: Lane) -> None:
    lane.repeat_pause_s = state.settings.grant_repeat_s
    _schedule_repeat(state, lane)


def _schedule_repeat(state: TargetState, lane: Lane) -> None:
    state.timers.schedule(state.now_s + lane.repeat_pause_s, "repeat", lane.nonce)
    lane.repeat_pause_s = min(2 * lane.repeat_pause_s, state.settings.control_repeat_limit_s)


def _send_grant(state: TargetState, want: Want) -> None:
    lease_ms = int((want.deadline_at_s - state.now_s) * 1000)
    if lease_ms <= 0:
        return  # the deadline's own timer is due
    grant = Grant(
        key=want.key,
        nonce=want.nonce,
        attempt=want.attempt,
        source_uuid=want.peer.uuid,
        source_boot_epoch=want.peer.boot_epoch,
        target_uuid=state.identity.uuid,
        target_boot_epoch=state.identity.boot_epoch,
        first_index=want.first_index,
        block_ids=want.block_ids,
        held=tuple(sorted(want.verified)),
        lease_ms=lease_ms,
        address=state.address,
        shared=int(want.shared),
        connection=state.connection_of(want.peer),
    )
    state.effects.append(SendControl(peer=want.peer, message=grant))


def _send_again(state: TargetState, lane: Lane, serial: int) -> None:
    again = Again(key=lane.key, nonce=lane.nonce, serial=serial)
    state.effects.append(SendControl(peer=lane.peer, message=again))


def _send_cancel(state: TargetState, lane: Lane) -> None:
    cancel = Cancel(key=lane.key, nonce=lane.nonce, reason=lane.cancel_reason.value)
    state.effects.append(SendControl(peer=lane.peer, message=cancel))
