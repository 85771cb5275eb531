"""The receiving side (decode node) of a transfer. Pure: events in, effects out. Read this first.

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

    what goes wrong                     what the target does                    the user hears
    ----------------------------------  --------------------------------------  --------------
    the grant, or its answer, is lost   Grant again, ever more seldom; after    completed, or as
                                        answer_timeout_s the peer is lost       a lost connection
    a chunk is damaged                  Again; at the second time it fails      digest_mismatch
    the source refuses or ends          what has come is kept, the rest is bad  refused, aborted,
                                                                                ...
    the source has fewer blocks         those are awaited, the rest is bad      out_of_range
    a record breaks the rules           nothing is posted for it; ClosePeer     protocol_violation
    the connection is lost              one new lane for what is missing, then  peer_lost, unless
                                        it fails                                resumed
    the deadline                        Cancel, repeated                        deadline
    the user cancels                    Cancel, repeated; later chunks are      cancelled
                                        discarded
    receives do not become final        ClosePeer after quiesce_timeout_s,      as it ended
                                        which makes them final
    no END after a cancel               ClosePeer after drain_timeout_s         (heard already)
    the receipt is lost                 the source probes; told again           (heard already)

Invariants: each opened key gets exactly one of TargetCompleted, TargetFailed, TargetCancelled, and
only when no receive is outstanding that could write into its blocks. A lane has a record receive
posted while it is LIVE with blocks yet to be announced, and while it is DRAINING.

Bounds: outstanding chunks per lane by ``OUTSTANDING_CHUNKS`` (then no further record is read until
one is done: the source waits); chunk size by ``MAX_CHUNK_BYTES`` (larger is a violation).

Where to read on, in ``protocol_target_*``: ``lanes`` (what is said, and said again), ``records``
(chunks and digests), ``ends`` (completion, early ends, quiet, lost peers), ``state``.
"""

from collections.abc import Callable, Sequence
from typing import assert_never

from pdd.core.identity import NodeIdentity
from pdd.transfer import protocol_target_ends as ends
from pdd.transfer import protocol_target_lanes as lanes
from pdd.transfer import protocol_target_records as records
from pdd.transfer.protocol_target_state import TargetState, Want
from pdd.transfer.protocol_values import (
    ChunkReceived,
    ControlReceived,
    Effect,
    Emit,
    PeerLost,
    RecordReceived,
    SendControl,
    TargetCancelRequested,
    TargetEvent,
    TargetOpened,
    Ticked,
)
from pdd.transfer.settings import TransferSettings
from pdd.transfer.values import PeerId, Reason, TargetCompleted
from pdd.wire.control import Cancel, Probe, Refusal
from pdd.wire.record import Record


class TargetProtocol:
    """All transfers into this rank's pool.

    Args:
        identity, address: what the tickets say about this node.
        block_bytes: bytes of one block that a peer fills (packed).
        connection_of: how many endpoints to a peer have been lost (``connection_numbers``).
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
        connection_of: Callable[[PeerId], int],
        lands_direct: Callable[[PeerId, Record, Sequence[int]], bool],
        new_nonce: Callable[[], int],
    ) -> None:
        self._state = TargetState(
            identity=identity,
            address=address,
            block_bytes=block_bytes,
            settings=settings,
            connection_of=connection_of,
            lands_direct=lands_direct,
            new_nonce=new_nonce,
        )

    def step(self, event: TargetEvent, *, now_s: float) -> list[Effect]:
        """Apply one event. ``now_s`` is monotonic seconds from the driver's clock."""
        state = self._state
        state.now_s = now_s
        state.effects = []
        match event:
            case TargetOpened():
                _opened(state, event)
            case TargetCancelRequested():
                ends.cancel(state, event.key)
            case RecordReceived():
                records.record_received(state, event)
            case ChunkReceived():
                records.chunk_received(state, event)
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
        """True when nothing is open and nothing is on its way."""
        return not self._state.wants and not self._state.lanes

    def uses(self, peer: PeerId) -> bool:
        """Whether anything is yet to be had from or said to ``peer`` unasked."""
        state = self._state
        return any(lane.peer == peer for lane in state.lanes.values()) or any(
            want.peer == peer for want in state.wants.values()
        )

    def counts(self) -> dict[str, int]:
        """Sizes of what is held now."""
        wants = self._state.wants
        return {
            "target_open": len(wants),
            "target_lanes": len(self._state.lanes),
            "target_timers": len(self._state.timers),
            "quarantined_blocks": sum(len(want.block_ids) for want in wants.values()),
        }


def _opened(state: TargetState, event: TargetOpened) -> None:
    assert event.key not in state.wants, f"transfer {event.key} is open already"
    if not event.block_ids:
        # Nothing is wanted: the source is told so that it need not wait for a grant.
        cancel = Cancel(key=event.key, nonce=state.new_nonce(), reason=Reason.COMPLETED.value)
        state.effects.append(SendControl(peer=event.peer, message=cancel))
        done = TargetCompleted(key=event.key, transferred_bytes=0, duration_s=0.0)
        state.effects.append(Emit(event=done))
        return
    want = Want(
        key=event.key,
        peer=event.peer,
        first_index=event.first_index,
        block_ids=tuple(event.block_ids),
        deadline_at_s=event.deadline_at_s,
        opened_at_s=state.now_s,
        shared=event.shared,
    )
    state.wants[event.key] = want
    state.timers.schedule(event.deadline_at_s, "deadline", event.key)
    lanes.start_lane(state, want)


def _control(state: TargetState, event: ControlReceived) -> None:
    message = event.message
    match message:
        case Refusal():
            ends.refused(state, event.peer, message)
        case Probe():
            ends.probed(state, event.peer, message)
        case _:
            raise AssertionError(f"{type(message).__name__} is not for a target")


def _ticked(state: TargetState) -> None:
    for what, whom in state.timers.due(state.now_s):
        if isinstance(whom, int):
            lane = state.lanes.get(whom)
            if lane is not None:
                lanes.lane_timer(state, what, lane)
        else:
            want = state.wants.get(whom)
            if want is not None:
                ends.want_timer(state, what, want)
