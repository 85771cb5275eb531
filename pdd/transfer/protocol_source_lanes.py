"""What is sent on the lanes: chunks of what is computed and wanted, in turns, within the window.

::

    take_turn --> next_chunk: one to send again, else the next that is appended and not held
        ^             |
        |             v   at most window_chunks per peer; the peer's lanes take turns
      sent <------ SendChunk
        |
        v nothing left and all final: Probe, ever more seldom, until the receipt;
                                      END, where the target wants more than there will be

A chunk is sent at most twice. Nothing is sent after a lane's lease.
"""

from pdd.transfer import protocol_source_ends as ends
from pdd.transfer.protocol_source_state import Lane, PeerTurns, Sequence, SourceState
from pdd.transfer.protocol_values import ChunkSent, SendChunk, SendControl
from pdd.transfer.values import Reason
from pdd.wire.control import Again, Probe
from pdd.wire.record import EndReason


def take_turn(state: SourceState, lane: Lane) -> None:
    """Put a lane with work into its peer's queue, and send while the window has room."""
    turns = state.peers.setdefault(lane.peer, PeerTurns())
    if not lane.queued and _next_chunk(state, lane, take=False) is not None:
        lane.queued = True
        turns.turns.append(lane.nonce)
    while turns.turns and turns.in_flight < state.settings.window_chunks:
        chosen = state.lanes.get(turns.turns.popleft())
        if chosen is None:
            continue
        chosen.queued = False
        chunk = _next_chunk(state, chosen, take=True)
        if chunk is None:
            continue
        _send_chunk(state, chosen, turns, *chunk)
        if _next_chunk(state, chosen, take=False) is not None:
            chosen.queued = True
            turns.turns.append(chosen.nonce)


def sent(state: SourceState, event: ChunkSent) -> None:
    """A chunk is final: room in the window, and perhaps the end of a lane or sequence."""
    lane = state.lanes.get(event.nonce)
    if lane is None or event.serial not in lane.in_flight:
        return  # PeerLost has settled it
    lane.in_flight.discard(event.serial)
    turns = state.peers[lane.peer]
    turns.in_flight -= 1
    sequence = state.sequences.get(lane.key)
    if sequence is not None and event.ok:
        sequence.sent_bytes += event.size_bytes
    if sequence is not None and sequence.ending is None and not lane.ended:
        if not end_if_short(state, sequence, lane) and _is_done(state, lane):
            _probe_later(state, lane)
    elif not lane.in_flight:
        ends.forget_lane(state, lane)
        if sequence is not None:
            ends.release_if_final(state, sequence)
    take_turn(state, lane)


def send_again(state: SourceState, message: Again, lane: Lane | None) -> None:
    """A chunk arrived damaged: once more, but not twice."""
    if lane is None or lane.ended:
        return
    if message.serial in lane.sent and message.serial not in lane.resent:
        lane.resent.add(message.serial)
        lane.again.append(message.serial)
        take_turn(state, lane)


def lane_timer(state: SourceState, what: str, lane: Lane) -> None:
    """The lease is over, or it is time to ask for the receipt."""
    if lane.ended:
        return
    sequence = state.sequences.get(lane.key)
    if sequence is None or sequence.ending is not None:
        return
    if what == "lease":
        ends.end(state, sequence, Reason.DEADLINE, EndReason.EXPIRED)
    elif what == "probe":
        if lane.in_flight or lane.again:
            return  # something is being sent once more; its end schedules the next probe
        probe = Probe(key=lane.key, nonce=lane.nonce)
        state.effects.append(SendControl(peer=lane.peer, message=probe))
        limit_s = 2 * state.settings.control_repeat_limit_s
        lane.probe_pause_s = min(2 * lane.probe_pause_s, limit_s)
        _probe_later(state, lane)


def end_if_short(state: SourceState, sequence: Sequence, lane: Lane) -> bool:
    """End a lane that wants more than there will be, once the target has got all that there is:
    the chunks of an earlier one might never be read."""
    if not lane.is_short or not _is_done(state, lane):
        return False
    ends.end_out_of_range(state, sequence)
    return True


def _is_done(state: SourceState, lane: Lane) -> bool:
    """Whether all that may be sent now is final."""
    return not lane.in_flight and _next_chunk(state, lane, take=False) is None


def _probe_later(state: SourceState, lane: Lane) -> None:
    if lane.cursor >= lane.end_index:
        state.timers.schedule(state.now_s + lane.probe_pause_s, "probe", lane.nonce)


def _next_chunk(state: SourceState, lane: Lane, *, take: bool) -> tuple[int, int, int] | None:
    """``(first_index, block_count, chunk_number)`` of what this lane sends next."""
    sequence = state.sequences.get(lane.key)
    if lane.ended or sequence is None or sequence.ending is not None:
        return None
    if lane.again:
        again = lane.sent[lane.again[0]]
        if take:
            lane.again.popleft()
        return again
    while lane.cursor in lane.held:
        lane.cursor += 1
    block_bytes = state.block_bytes(lane.peer)
    blocks_per_chunk = max(1, state.settings.chunk_bytes // block_bytes)
    limit = min(lane.end_index, sequence.end_index, lane.cursor + blocks_per_chunk)
    end = lane.cursor
    while end < limit and end not in lane.held:
        end += 1
    if end == lane.cursor:
        return None
    chunk = (lane.cursor, end - lane.cursor, lane.next_number)
    if take:
        lane.cursor = end
        lane.next_number += 1
    return chunk


def _send_chunk(
    state: SourceState, lane: Lane, turns: PeerTurns, first: int, count: int, number: int
) -> None:
    sequence = state.sequences[lane.key]
    assert sequence.first_index is not None
    start = first - sequence.first_index
    target_start = first - lane.first_index
    serial = lane.next_serial
    lane.next_serial += 1
    lane.sent[serial] = (first, count, number)
    lane.in_flight.add(serial)
    turns.in_flight += 1
    state.effects.append(
        SendChunk(
            peer=lane.peer,
            nonce=lane.nonce,
            serial=serial,
            first_index=first,
            block_ids=tuple(sequence.block_ids[start : start + count]),
            target_block_ids=lane.target_block_ids[target_start : target_start + count],
            number=number,
            shared=lane.shared,
        )
    )
