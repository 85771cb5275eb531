"""From a grant to a lane: accepted, kept for a sequence that is yet to come, refused, or cancelled.

::

    Grant --ticket does not fit--> Refusal (control) and END (in band)
      |---sequence known---------> lane, ACCEPTED
      |---not known--------------> pending, HELD --opened--> lane, ACCEPTED
                                      |---its time is over--> refused (unknown_key)
                                      |---another target's--> refused (consumed)

Whatever the answer, the target's posted record receive is used up in band, so that it cannot be
left waiting.
"""

from pdd.transfer import protocol_source_ends as ends
from pdd.transfer import protocol_source_lanes as lanes
from pdd.transfer.protocol_source_state import Lane, Sequence, SourceState, remember
from pdd.transfer.protocol_source_tickets import why_refused
from pdd.transfer.protocol_values import Connect, SendControl, SendRecord
from pdd.transfer.values import PeerId, Reason
from pdd.wire.control import Cancel, Grant, Refusal
from pdd.wire.record import EndReason, Record, RecordKind


def granted(state: SourceState, peer: PeerId, grant: Grant) -> None:
    """``peer`` wants blocks of a sequence."""
    refusal = why_refused(state, peer, grant)
    if refusal is not None:
        _refuse(state, peer, grant, refusal)
        return
    lease_at_s = state.now_s + grant.lease_ms / 1000
    sequence = state.sequences.get(grant.key)
    if sequence is not None:
        current = state.lanes.get(sequence.nonce)
        if current is not None and current.nonce == grant.nonce:
            return  # said again; ACCEPTED went in band, which loses nothing
        _accept(state, sequence, peer, grant, lease_at_s, first_serial=0)
        return
    full = len(state.pending) >= state.settings.max_pending_grants
    if full and grant.key not in state.pending:
        _refuse(state, peer, grant, Reason.TOO_MANY_PENDING)
        return
    kept = state.pending.get(grant.key)
    state.pending[grant.key] = (peer, grant, lease_at_s)
    if kept is not None and kept[0] != peer:
        _refuse(state, kept[0], kept[1], Reason.CONSUMED)  # else it would wait for its deadline
    # Said again for a grant said again: our first answer may have been lost.
    state.effects.append(Connect(peer=peer))
    held = Record(kind=RecordKind.HELD, nonce=grant.nonce, serial=0)
    state.effects.append(SendRecord(peer=peer, record=held))
    keep_s = min(grant.lease_ms / 1000, state.settings.pending_grant_timeout_s)
    state.timers.schedule(state.now_s + keep_s, "pending", grant.key)


def opened(state: SourceState, sequence: Sequence) -> None:
    """A sequence is known now: serve the grant that has waited for it, if one has."""
    pending = state.pending.pop(sequence.key, None)
    if pending is not None:
        peer, grant, lease_at_s = pending
        _accept(state, sequence, peer, grant, lease_at_s, first_serial=1)


def cancelled(state: SourceState, peer: PeerId, message: Cancel, lane: Lane | None) -> None:
    """The target wants nothing more under this nonce; it is told END in any case."""
    if lane is not None:
        sequence = state.sequences.get(lane.key)
        if sequence is None or sequence.nonce != lane.nonce:
            return  # ended already: END is on its way
        ends.end(state, sequence, Reason.CANCELLED, EndReason.CANCELLED)
        return
    sequence = state.sequences.get(message.key)
    pending = state.pending.get(message.key)
    if pending is not None and pending[1].nonce == message.nonce:
        del state.pending[message.key]
    if sequence is not None and sequence.nonce == 0:
        ends.end(state, sequence, Reason.CANCELLED, None)
    elif sequence is None and message.key not in state.finished_keys:
        remember(state.cancelled_keys, message.key, None)
    if message.reason != Reason.COMPLETED.value:
        _end_unknown(state, peer, message.nonce, EndReason.CANCELLED)


def check_range(state: SourceState, sequence: Sequence, lane: Lane) -> None:
    """A grant for blocks that will never exist here is ended, not left to its deadline. What exists
    of them is sent first, as long as nothing before it is missing."""
    if sequence.first_index is None or lane.ended:
        return
    wanted = [i for i in range(lane.first_index, lane.end_index) if i not in lane.held]
    if wanted and wanted[0] < sequence.first_index:
        ends.end_out_of_range(state, sequence)
    elif wanted and sequence.last and wanted[-1] >= sequence.end_index:
        lane.is_short = True
        lanes.end_if_short(state, sequence, lane)


def pending_timer(state: SourceState, key: str) -> None:
    """An early grant whose sequence has not come in time is refused."""
    pending = state.pending.get(key)
    if pending is None:
        return
    peer, grant, lease_at_s = pending
    due_s = min(
        lease_at_s,
        lease_at_s - grant.lease_ms / 1000 + state.settings.pending_grant_timeout_s,
    )
    if due_s <= state.now_s:
        del state.pending[key]
        _refuse(state, peer, grant, Reason.UNKNOWN_KEY)


def _accept(
    state: SourceState,
    sequence: Sequence,
    peer: PeerId,
    grant: Grant,
    lease_at_s: float,
    *,
    first_serial: int,
) -> None:
    """Begin a lane. ``first_serial`` 1 where HELD was its first record."""
    old = state.lanes.get(sequence.nonce)
    if old is not None:
        ends.end_lane(state, old, EndReason.SUPERSEDED)
    lane = Lane(
        nonce=grant.nonce,
        key=grant.key,
        peer=peer,
        attempt=grant.attempt,
        first_index=grant.first_index,
        target_block_ids=grant.block_ids,
        held=frozenset(grant.held),
        lease_at_s=lease_at_s,
        cursor=grant.first_index,
        next_serial=first_serial,
        shared=bool(grant.shared),
    )
    state.lanes[lane.nonce] = lane
    sequence.nonce = lane.nonce
    sequence.lanes.add(lane.nonce)
    sequence.granted = True
    sequence.resume_by_s = None
    state.timers.schedule(lease_at_s, "lease", lane.nonce)
    state.effects.append(Connect(peer=peer))
    ends.send_record(state, lane, RecordKind.ACCEPTED)
    check_range(state, sequence, lane)
    lanes.take_turn(state, lane)


def _refuse(state: SourceState, peer: PeerId, grant: Grant, reason: Reason) -> None:
    """Say no over both channels: in band, so that the target's posted receive is used up."""
    state.count_refused(reason)
    refusal = Refusal(key=grant.key, nonce=grant.nonce, reason=reason.value)
    state.effects.append(SendControl(peer=peer, message=refusal))
    if grant.nonce not in state.lanes and reason is not Reason.MALFORMED:
        _end_unknown(state, peer, grant.nonce, EndReason.REFUSED)


def _end_unknown(state: SourceState, peer: PeerId, nonce: int, reason: EndReason) -> None:
    """Use up the record receive that the target holds for a nonce that is not in force."""
    if nonce in state.ended_nonces:
        return
    remember(state.ended_nonces, nonce, peer)
    state.effects.append(Connect(peer=peer))
    record = Record(kind=RecordKind.END, nonce=nonce, serial=0, reason=reason)
    state.effects.append(SendRecord(peer=peer, record=record))
