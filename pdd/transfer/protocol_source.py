"""The sending side (prefill node) of a transfer. Pure: events in, effects out. Read this first.

A *sequence* is what the user opened, by key; its blocks arrive in prompt order. A *lane* is one
grant in force: one nonce, one peer. Nothing is sent without a lane.

::

    sequence                                       lane (nonce)
    --------                                       ----
    source_open                                    Grant accepted (right node, life, attempt, lease)
        |  (a grant may have come before: HELD)      | Connect, record ACCEPTED
        v                                            v
    OPEN --grant--> GRANTED <--------------------  SENDING  chunks of what is appended and wanted,
        |              |  PeerLost: back to OPEN     |      at most window_chunks per peer;
        |              |  for resume_grace_s         |      Again: that chunk once more
        |              |                             v all sent
        | abort / deadline / cancel / receipt      WAITING  Probe repeated until the receipt
        v                                            |
    ENDING  waits until every send is final         ENDED  (record END unless a receipt came)
        |   (after quiesce_timeout_s: ClosePeer)
        v
    RELEASED(reason)

    what goes wrong                     what the source does                    released as
    ----------------------------------  --------------------------------------  --------------
    a ticket does not fit               Refusal and END; the sequence stays     (not at all)
    the sequence never comes            the grant is refused after              (not known)
                                        pending_grant_timeout_s (unknown_key)
    wanted blocks will never exist      sends those before them, then END       out_of_range
                                        out_of_range
    a chunk arrived damaged             that chunk once more; the target        (not at all),
                                        gives up at the second time             then cancelled
    the target cancels                  END cancelled                           cancelled
    the user aborts                     END aborted                             aborted
    deadline, or the lease is over      END expired                             deadline
    the receipt is lost                 Probe, until one comes or the lease     completed, or
                                        is over                                 deadline
    the connection is lost              keeps the blocks for resume_grace_s;    peer_lost, unless
                                        a newer attempt gets what is missing    resumed
    sends do not become final           ClosePeer after quiesce_timeout_s,      as it ended
                                        which makes them final

Invariants: each opened key gets exactly one SourceReleased, and only when no send is outstanding
that reads its blocks. A chunk is sent at most twice. Nothing is sent after a lane's lease.

Bounds: grants for sequences not yet known by ``max_pending_grants`` (then ``too_many_pending``);
memory of finished keys and nonces by ``REMEMBERED`` each (the oldest is forgotten; a message about
a forgotten one is answered like one about an unknown one, which is safe, only less clear).

Where to read on, in ``protocol_source_*``: ``tickets`` (does a grant fit), ``grants`` (accepted,
kept, refused, cancelled), ``lanes`` (chunks, turns, window), ``ends`` (release, lost peers),
``state``.
"""

from collections.abc import Callable
from typing import assert_never

from pdd.core.identity import NodeIdentity
from pdd.transfer import protocol_source_ends as ends
from pdd.transfer import protocol_source_grants as grants
from pdd.transfer import protocol_source_lanes as lanes
from pdd.transfer.protocol_source_state import Sequence, SourceState
from pdd.transfer.protocol_values import (
    ChunkSent,
    ControlReceived,
    Count,
    Effect,
    PeerLost,
    SourceAborted,
    SourceAppended,
    SourceEvent,
    SourceOpened,
    Ticked,
)
from pdd.transfer.settings import TransferSettings
from pdd.transfer.values import PeerId, Reason
from pdd.wire.control import Again, Cancel, Grant, Receipt
from pdd.wire.record import EndReason


class SourceProtocol:
    """All transfers out of this rank's pool.

    Args:
        identity: the node that tickets must name as their source.
        block_bytes: bytes of one block that a peer gets (packed).
    """

    def __init__(
        self,
        *,
        identity: NodeIdentity,
        block_bytes: Callable[[PeerId], int],
        settings: TransferSettings,
    ) -> None:
        self._state = SourceState(identity=identity, settings=settings, block_bytes=block_bytes)

    def step(self, event: SourceEvent, *, now_s: float) -> list[Effect]:
        """Apply one event. ``now_s`` is monotonic seconds from the driver's clock."""
        state = self._state
        state.now_s = now_s
        state.effects = []
        match event:
            case SourceOpened():
                _opened(state, event)
            case SourceAppended():
                _appended(state, event)
            case SourceAborted():
                _aborted(state, event)
            case ChunkSent():
                lanes.sent(state, event)
            case ControlReceived():
                _control(state, event)
            case PeerLost():
                ends.peer_lost(state, event.peer)
            case Ticked():
                _ticked(state)
            case _:
                assert_never(event)
        return state.effects

    def next_wakeup_s(self) -> float | None:
        """When to send ``Ticked`` at the latest, or None."""
        return self._state.timers.next_s()

    @property
    def idle(self) -> bool:
        """True when no lane is in force and no send is outstanding."""
        return not self._state.lanes

    def uses(self, peer: PeerId) -> bool:
        """Whether anything is yet to be sent or said to ``peer`` unasked."""
        state = self._state
        return any(lane.peer == peer for lane in state.lanes.values()) or any(
            kept_for == peer for kept_for, _, _ in state.pending.values()
        )

    def counts(self) -> dict[str, int]:
        """Sizes of what is held now."""
        return {
            "source_open": len(self._state.sequences),
            "source_lanes": len(self._state.lanes),
            "pending_grants": len(self._state.pending),
            "source_timers": len(self._state.timers),
        }


def _opened(state: SourceState, event: SourceOpened) -> None:
    assert event.key not in state.sequences, f"transfer {event.key} is open already"
    sequence = Sequence(key=event.key, deadline_at_s=event.deadline_at_s)
    state.sequences[event.key] = sequence
    state.finished_keys.pop(event.key, None)
    if event.key in state.cancelled_keys:
        del state.cancelled_keys[event.key]
        ends.end(state, sequence, Reason.CANCELLED, EndReason.CANCELLED)
        return
    state.timers.schedule(event.deadline_at_s, "deadline", event.key)
    grants.opened(state, sequence)


def _aborted(state: SourceState, event: SourceAborted) -> None:
    sequence = state.sequences.get(event.key)
    if sequence is None or sequence.ending is not None:
        return
    if sequence.granted:  # what nobody had asked for is only put away
        state.effects.append(Count(name=f"aborted_{event.reason}"))
    ends.end(state, sequence, Reason.ABORTED, EndReason.ABORTED)


def _appended(state: SourceState, event: SourceAppended) -> None:
    sequence = state.sequences.get(event.key)
    if sequence is None or sequence.ending is not None:
        return  # released or ending; the user cannot know yet
    assert not sequence.last, f"transfer {event.key} got blocks after its last one"
    if sequence.first_index is None:
        sequence.first_index = event.first_index
    assert event.first_index == sequence.end_index, (
        f"transfer {event.key}: block {event.first_index} where {sequence.end_index} was due"
    )
    sequence.block_ids.extend(event.block_ids)
    sequence.last = event.last
    lane = state.lanes.get(sequence.nonce)
    if lane is not None:
        grants.check_range(state, sequence, lane)
        lanes.take_turn(state, lane)


def _control(state: SourceState, event: ControlReceived) -> None:
    message = event.message
    if isinstance(message, Grant):
        grants.granted(state, event.peer, message)
        return
    lane = state.lanes.get(message.nonce)
    if lane is not None and lane.peer != event.peer:
        state.count_refused(Reason.UNKNOWN_NONCE)
        return
    match message:
        case Receipt():
            ends.receipt(state, message, lane)
        case Again():
            lanes.send_again(state, message, lane)
        case Cancel():
            grants.cancelled(state, event.peer, message, lane)
        case _:
            raise AssertionError(f"{type(message).__name__} is not for a source")


def _ticked(state: SourceState) -> None:
    for what, whom in state.timers.due(state.now_s):
        if isinstance(whom, int):
            lane = state.lanes.get(whom)
            if lane is not None:
                lanes.lane_timer(state, what, lane)
        elif what == "pending":
            grants.pending_timer(state, whom)
        else:
            sequence = state.sequences.get(whom)
            if sequence is not None:
                ends.sequence_timer(state, what, sequence)
