"""The sending side (prefill node) of a transfer. Pure: events in, effects out.

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

Invariants: each opened key gets exactly one SourceReleased, and only when no send is outstanding
that reads its blocks. A chunk is sent at most twice. Nothing is sent after a lane's lease.

Bounds: grants for sequences not yet known by ``max_pending_grants`` (then ``too_many_pending``);
memory of finished keys and nonces by ``REMEMBERED`` each (the oldest is forgotten; a message about
a forgotten one is answered like one about an unknown one, which is safe, only less clear).
"""

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar, assert_never

from pdd.core.identity import NodeIdentity
from pdd.transfer.protocol_timers import Timers
from pdd.transfer.protocol_values import (
    ChunkSent,
    ClosePeer,
    Connect,
    ControlReceived,
    Count,
    Effect,
    Emit,
    PeerLost,
    SendChunk,
    SendControl,
    SendRecord,
    SourceAborted,
    SourceAppended,
    SourceEvent,
    SourceOpened,
    Ticked,
)
from pdd.transfer.settings import TransferSettings
from pdd.transfer.values import PeerId, Reason, SourceReleased
from pdd.wire.control import Again, Cancel, Grant, Probe, Receipt, Refusal
from pdd.wire.record import EndReason, Record, RecordKind

K = TypeVar("K")
V = TypeVar("V")
REMEMBERED = 4096
FIRST_PROBE_S = 1.0


@dataclass(slots=True, kw_only=True)
class _Lane:
    nonce: int
    key: str
    peer: PeerId
    attempt: int
    first_index: int
    target_block_ids: tuple[int, ...]
    held: frozenset[int]
    lease_at_s: float
    cursor: int  # next prompt block index to look at
    next_serial: int
    shared: bool
    ended: bool = False
    queued: bool = False  # in its peer's turn queue
    # serial -> (first index, block count, chunk number)
    sent: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    next_number: int = 0
    again: deque[int] = field(default_factory=deque)  # serials to send once more
    resent: set[int] = field(default_factory=set)
    in_flight: set[int] = field(default_factory=set)
    probe_pause_s: float = FIRST_PROBE_S

    @property
    def end_index(self) -> int:
        return self.first_index + len(self.target_block_ids)


@dataclass(slots=True, kw_only=True)
class _Sequence:
    key: str
    deadline_at_s: float
    first_index: int | None = None
    block_ids: list[int] = field(default_factory=list)
    last: bool = False
    nonce: int = 0  # of the lane in force, 0 = none
    lanes: set[int] = field(default_factory=set)  # every lane with sends in flight, and in force
    sent_bytes: int = 0
    resume_by_s: float | None = None
    ending: Reason | None = None

    @property
    def end_index(self) -> int:
        return (self.first_index or 0) + len(self.block_ids)


@dataclass(slots=True, kw_only=True)
class _PeerTurns:
    """Whose turn it is among the lanes to one peer."""

    in_flight: int = 0
    turns: deque[int] = field(default_factory=deque)  # nonces


class SourceProtocol:
    """All transfers out of this rank's pool."""

    def __init__(
        self,
        *,
        identity: NodeIdentity,
        block_bytes: Callable[[PeerId], int],
        settings: TransferSettings,
    ) -> None:
        self._identity = identity
        self._settings = settings
        self._block_bytes = block_bytes
        self._sequences: dict[str, _Sequence] = {}
        self._lanes: dict[int, _Lane] = {}
        self._pending: OrderedDict[str, tuple[PeerId, Grant, float]] = OrderedDict()
        self._peers: dict[PeerId, _PeerTurns] = {}
        self._finished_keys: OrderedDict[str, None] = OrderedDict()
        self._cancelled_keys: OrderedDict[str, None] = OrderedDict()
        self._ended_nonces: OrderedDict[int, PeerId] = OrderedDict()
        self._timers = Timers()
        self._effects: list[Effect] = []
        self._now_s = 0.0

    def step(self, event: SourceEvent, *, now_s: float) -> list[Effect]:
        """Apply one event. ``now_s`` is monotonic seconds from the driver's clock."""
        self._now_s = now_s
        self._effects = []
        match event:
            case SourceOpened():
                self._on_opened(event)
            case SourceAppended():
                self._on_appended(event)
            case SourceAborted():
                sequence = self._sequences.get(event.key)
                if sequence is not None:
                    self._end(sequence, Reason.ABORTED, EndReason.ABORTED)
            case ChunkSent():
                self._on_sent(event)
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
        """True when no lane is in force and no send is outstanding."""
        return not self._lanes

    def counts(self) -> dict[str, int]:
        """Sizes of what is held now."""
        return {
            "source_open": len(self._sequences),
            "source_lanes": len(self._lanes),
            "pending_grants": len(self._pending),
        }

    # ------------------------------------------------------------------------------ user

    def _on_opened(self, event: SourceOpened) -> None:
        assert event.key not in self._sequences, f"transfer {event.key} is open already"
        sequence = _Sequence(key=event.key, deadline_at_s=event.deadline_at_s)
        self._sequences[event.key] = sequence
        self._finished_keys.pop(event.key, None)
        if event.key in self._cancelled_keys:
            del self._cancelled_keys[event.key]
            self._end(sequence, Reason.CANCELLED, EndReason.CANCELLED)
            return
        self._timers.schedule(event.deadline_at_s, "deadline", event.key)
        pending = self._pending.pop(event.key, None)
        if pending is not None:
            peer, grant, lease_at_s = pending
            self._accept(sequence, peer, grant, lease_at_s, first_serial=1)

    def _on_appended(self, event: SourceAppended) -> None:
        sequence = self._sequences.get(event.key)
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
        lane = self._lanes.get(sequence.nonce)
        if lane is not None:
            self._check_range(sequence, lane)
            self._take_turn(lane)

    # ------------------------------------------------------------------------------ grants

    def _on_grant(self, peer: PeerId, grant: Grant) -> None:
        refusal = self._why_refused(peer, grant)
        if refusal is not None:
            self._refuse(peer, grant, refusal)
            return
        lease_at_s = self._now_s + grant.lease_ms / 1000
        sequence = self._sequences.get(grant.key)
        if sequence is not None:
            current = self._lanes.get(sequence.nonce)
            if current is not None and current.nonce == grant.nonce:
                return  # said again; ACCEPTED went in band, which loses nothing
            self._accept(sequence, peer, grant, lease_at_s)
            return
        full = len(self._pending) >= self._settings.max_pending_grants
        if full and grant.key not in self._pending:
            self._refuse(peer, grant, Reason.TOO_MANY_PENDING)
            return
        self._pending[grant.key] = (peer, grant, lease_at_s)
        # Said again for a grant said again: our first answer may have been lost.
        self._effects.append(Connect(peer=peer))
        held = Record(kind=RecordKind.HELD, nonce=grant.nonce, serial=0)
        self._effects.append(SendRecord(peer=peer, record=held))
        keep_s = min(grant.lease_ms / 1000, self._settings.pending_grant_timeout_s)
        self._timers.schedule(self._now_s + keep_s, "pending", grant.key)

    def _why_refused(self, peer: PeerId, grant: Grant) -> Reason | None:
        me = (self._identity.uuid, self._identity.boot_epoch)
        if (grant.source_uuid, grant.source_boot_epoch) != me:
            return Reason.WRONG_NODE
        if (grant.target_uuid, grant.target_boot_epoch) != (peer.uuid, peer.boot_epoch):
            return Reason.WRONG_TARGET
        if grant.lease_ms <= 0:
            return Reason.EXPIRED
        if grant.lease_ms > self._settings.max_lease_s * 1000:
            return Reason.LEASE_TOO_LONG
        if not grant.block_ids or not grant.address:
            return Reason.MALFORMED
        if grant.nonce in self._ended_nonces:
            return Reason.CONSUMED
        lane = self._lanes.get(grant.nonce)
        if lane is not None and (lane.key != grant.key or lane.peer != peer or lane.ended):
            return Reason.CONSUMED
        sequence = self._sequences.get(grant.key)
        if sequence is None:
            return Reason.CONSUMED if grant.key in self._finished_keys else None
        if sequence.ending is not None:
            return Reason.CONSUMED
        current = self._lanes.get(sequence.nonce)
        if current is None or current.nonce == grant.nonce:
            return None
        if current.peer != peer:
            return Reason.CONSUMED
        return Reason.STALE_ATTEMPT if grant.attempt <= current.attempt else None

    def _refuse(self, peer: PeerId, grant: Grant, reason: Reason) -> None:
        """Say no over both channels: in band, so that the target's posted receive is used up."""
        self._effects.append(Count(name=f"refused_{reason.value}"))
        refusal = Refusal(key=grant.key, nonce=grant.nonce, reason=reason.value)
        self._effects.append(SendControl(peer=peer, message=refusal))
        if grant.nonce not in self._lanes and reason is not Reason.MALFORMED:
            self._end_unknown(peer, grant.nonce, EndReason.REFUSED)

    def _end_unknown(self, peer: PeerId, nonce: int, reason: EndReason) -> None:
        """Use up the record receive that the target holds for a nonce that is not in force."""
        if nonce in self._ended_nonces:
            return
        self._remember(self._ended_nonces, nonce, peer)
        self._effects.append(Connect(peer=peer))
        record = Record(kind=RecordKind.END, nonce=nonce, serial=0, reason=reason)
        self._effects.append(SendRecord(peer=peer, record=record))

    def _accept(
        self,
        sequence: _Sequence,
        peer: PeerId,
        grant: Grant,
        lease_at_s: float,
        *,
        first_serial: int = 0,
    ) -> None:
        old = self._lanes.get(sequence.nonce)
        if old is not None:
            self._end_lane(old, EndReason.SUPERSEDED)
        lane = _Lane(
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
        self._lanes[lane.nonce] = lane
        sequence.nonce = lane.nonce
        sequence.lanes.add(lane.nonce)
        sequence.resume_by_s = None
        self._timers.schedule(lease_at_s, "lease", lane.nonce)
        self._effects.append(Connect(peer=peer))
        self._send_record(lane, RecordKind.ACCEPTED)
        self._check_range(sequence, lane)
        self._take_turn(lane)

    def _send_record(
        self, lane: _Lane, kind: RecordKind, reason: EndReason = EndReason.NONE
    ) -> None:
        record = Record(kind=kind, nonce=lane.nonce, serial=lane.next_serial, reason=reason)
        lane.next_serial += 1
        self._effects.append(SendRecord(peer=lane.peer, record=record))

    def _check_range(self, sequence: _Sequence, lane: _Lane) -> None:
        """A grant for blocks that will never exist here is ended, not left to its deadline."""
        if sequence.first_index is None or lane.ended:
            return
        wanted = [i for i in range(lane.first_index, lane.end_index) if i not in lane.held]
        too_early = bool(wanted) and wanted[0] < sequence.first_index
        too_late = bool(wanted) and sequence.last and wanted[-1] >= sequence.end_index
        if too_early or too_late:
            self._effects.append(Count(name=f"refused_{Reason.OUT_OF_RANGE.value}"))
            self._end(sequence, Reason.OUT_OF_RANGE, EndReason.OUT_OF_RANGE)

    # ------------------------------------------------------------------------------ chunks

    def _take_turn(self, lane: _Lane) -> None:
        """Put a lane with work into its peer's queue, and send while the window has room."""
        turns = self._peers.setdefault(lane.peer, _PeerTurns())
        if not lane.queued and self._next_chunk(lane, take=False) is not None:
            lane.queued = True
            turns.turns.append(lane.nonce)
        while turns.turns and turns.in_flight < self._settings.window_chunks:
            chosen = self._lanes.get(turns.turns.popleft())
            if chosen is None:
                continue
            chosen.queued = False
            chunk = self._next_chunk(chosen, take=True)
            if chunk is None:
                continue
            self._send_chunk(chosen, turns, *chunk)
            if self._next_chunk(chosen, take=False) is not None:
                chosen.queued = True
                turns.turns.append(chosen.nonce)

    def _next_chunk(self, lane: _Lane, *, take: bool) -> tuple[int, int, int] | None:
        """``(first_index, block_count, chunk_number)`` of what this lane sends next."""
        sequence = self._sequences.get(lane.key)
        if lane.ended or sequence is None or sequence.ending is not None:
            return None
        if lane.again:
            again = lane.sent[lane.again[0]]
            if take:
                lane.again.popleft()
            return again
        while lane.cursor in lane.held:
            lane.cursor += 1
        block_bytes = self._block_bytes(lane.peer)
        blocks_per_chunk = max(1, self._settings.chunk_bytes // block_bytes)
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
        self, lane: _Lane, turns: _PeerTurns, first: int, count: int, number: int
    ) -> None:
        sequence = self._sequences[lane.key]
        assert sequence.first_index is not None
        start = first - sequence.first_index
        target_start = first - lane.first_index
        serial = lane.next_serial
        lane.next_serial += 1
        lane.sent[serial] = (first, count, number)
        lane.in_flight.add(serial)
        turns.in_flight += 1
        self._effects.append(
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

    def _on_sent(self, event: ChunkSent) -> None:
        lane = self._lanes.get(event.nonce)
        if lane is None or event.serial not in lane.in_flight:
            return  # PeerLost has settled it
        lane.in_flight.discard(event.serial)
        turns = self._peers[lane.peer]
        turns.in_flight -= 1
        sequence = self._sequences.get(lane.key)
        if sequence is not None and event.ok:
            sequence.sent_bytes += event.size_bytes
        if sequence is not None and sequence.ending is None and not lane.ended:
            if not lane.in_flight and self._next_chunk(lane, take=False) is None:
                self._probe_later(lane)
        elif not lane.in_flight:
            self._forget_lane(lane)
            if sequence is not None:
                self._release_if_final(sequence)
        self._take_turn(lane)

    def _probe_later(self, lane: _Lane) -> None:
        if lane.cursor >= lane.end_index:
            self._timers.schedule(self._now_s + lane.probe_pause_s, "probe", lane.nonce)

    # ------------------------------------------------------------------------------ control

    def _on_control(self, event: ControlReceived) -> None:
        message = event.message
        if isinstance(message, Grant):
            self._on_grant(event.peer, message)
            return
        lane = self._lanes.get(message.nonce)
        if lane is not None and lane.peer != event.peer:
            self._effects.append(Count(name=f"refused_{Reason.UNKNOWN_NONCE.value}"))
            return
        match message:
            case Receipt():
                sequence = self._sequences.get(message.key)
                if lane is None or sequence is None or lane.ended:
                    return  # said again
                lane.ended = True
                self._remember(self._ended_nonces, lane.nonce, lane.peer)
                self._end(sequence, Reason.COMPLETED, None)
            case Again():
                if lane is None or lane.ended:
                    return
                if message.serial in lane.sent and message.serial not in lane.resent:
                    lane.resent.add(message.serial)
                    lane.again.append(message.serial)
                    self._take_turn(lane)
            case Cancel():
                self._on_cancel(event.peer, message, lane)
            case _:
                raise AssertionError(f"{type(message).__name__} is not for a source")

    def _on_cancel(self, peer: PeerId, message: Cancel, lane: _Lane | None) -> None:
        if lane is not None:
            sequence = self._sequences.get(lane.key)
            if sequence is None or sequence.nonce != lane.nonce:
                return  # ended already: END is on its way
            self._end(sequence, Reason.CANCELLED, EndReason.CANCELLED)
            return
        sequence = self._sequences.get(message.key)
        pending = self._pending.get(message.key)
        if pending is not None and pending[1].nonce == message.nonce:
            del self._pending[message.key]
        if sequence is not None and sequence.nonce == 0:
            self._end(sequence, Reason.CANCELLED, None)
        elif sequence is None and message.key not in self._finished_keys:
            self._remember(self._cancelled_keys, message.key, None)
        if message.reason != Reason.COMPLETED.value:
            self._end_unknown(peer, message.nonce, EndReason.CANCELLED)

    # ------------------------------------------------------------------------------ ends

    def _end(self, sequence: _Sequence, reason: Reason, end_reason: EndReason | None) -> None:
        """Nothing more is sent for this sequence; it is released when every send is final."""
        if sequence.ending is not None:
            return
        sequence.ending = reason
        lane = self._lanes.get(sequence.nonce)
        if lane is not None and end_reason is not None and not lane.ended:
            self._end_lane(lane, end_reason)
        elif lane is not None and not lane.in_flight:
            self._forget_lane(lane)
        if not self._release_if_final(sequence):
            at_s = self._now_s + self._settings.quiesce_timeout_s
            self._timers.schedule(at_s, "quiesce", sequence.key)

    def _end_lane(self, lane: _Lane, reason: EndReason) -> None:
        lane.ended = True
        self._remember(self._ended_nonces, lane.nonce, lane.peer)
        self._send_record(lane, RecordKind.END, reason)
        if not lane.in_flight:
            self._forget_lane(lane)

    def _forget_lane(self, lane: _Lane) -> None:
        self._lanes.pop(lane.nonce, None)
        sequence = self._sequences.get(lane.key)
        if sequence is not None:
            sequence.lanes.discard(lane.nonce)
            if sequence.nonce == lane.nonce:
                sequence.nonce = 0

    def _release_if_final(self, sequence: _Sequence) -> bool:
        if sequence.ending is None:
            return False
        if any(self._lanes[nonce].in_flight for nonce in sequence.lanes if nonce in self._lanes):
            return False
        del self._sequences[sequence.key]
        self._remember(self._finished_keys, sequence.key, None)
        released = SourceReleased(
            key=sequence.key, reason=sequence.ending, sent_bytes=sequence.sent_bytes
        )
        self._effects.append(Emit(event=released))
        return True

    def _on_peer_lost(self, peer: PeerId) -> None:
        self._peers.pop(peer, None)
        # An END may have been lost with the connection; whoever asks again gets another.
        for nonce in [nonce for nonce, who in self._ended_nonces.items() if who == peer]:
            del self._ended_nonces[nonce]
        for lane in [lane for lane in self._lanes.values() if lane.peer == peer]:
            sequence = self._sequences.get(lane.key)
            in_force = sequence is not None and sequence.nonce == lane.nonce
            # The nonce is not remembered as ended: the target may have closed the connection and
            # granted this lane before we noticed; then it will say the same grant again.
            self._forget_lane(lane)
            if sequence is None:
                continue
            if sequence.ending is not None:
                self._release_if_final(sequence)
            elif in_force:
                sequence.resume_by_s = self._now_s + self._settings.resume_grace_s
                self._timers.schedule(sequence.resume_by_s, "resume", sequence.key)

    def _on_ticked(self) -> None:
        for what, whom in self._timers.due(self._now_s):
            if isinstance(whom, str):
                self._on_key_timer(what, whom)
            else:
                self._on_lane_timer(what, whom)

    def _on_key_timer(self, what: str, key: str) -> None:
        if what == "pending":
            pending = self._pending.get(key)
            if pending is None:
                return
            peer, grant, lease_at_s = pending
            due_s = min(
                lease_at_s,
                lease_at_s - grant.lease_ms / 1000 + self._settings.pending_grant_timeout_s,
            )
            if due_s <= self._now_s:
                del self._pending[key]
                self._refuse(peer, grant, Reason.UNKNOWN_KEY)
            return
        sequence = self._sequences.get(key)
        if sequence is None:
            return
        if what == "deadline" and sequence.deadline_at_s <= self._now_s:
            self._end(sequence, Reason.DEADLINE, EndReason.EXPIRED)
        elif what == "resume":
            resume_by_s = sequence.resume_by_s
            if resume_by_s is not None and resume_by_s <= self._now_s:
                self._end(sequence, Reason.PEER_LOST, None)
        elif what == "quiesce" and sequence.ending is not None:
            for nonce in sorted(sequence.lanes):
                lane = self._lanes.get(nonce)
                if lane is not None and lane.in_flight:
                    self._effects.append(ClosePeer(peer=lane.peer))

    def _on_lane_timer(self, what: str, nonce: int) -> None:
        lane = self._lanes.get(nonce)
        if lane is None or lane.ended:
            return
        sequence = self._sequences.get(lane.key)
        if sequence is None or sequence.ending is not None:
            return
        if what == "lease":
            self._end(sequence, Reason.DEADLINE, EndReason.EXPIRED)
        elif what == "probe":
            if lane.in_flight or lane.again:
                return  # something is being sent once more; its end schedules the next probe
            probe = Probe(key=lane.key, nonce=lane.nonce)
            self._effects.append(SendControl(peer=lane.peer, message=probe))
            lane.probe_pause_s = min(
                2 * lane.probe_pause_s, 2 * self._settings.control_repeat_limit_s
            )
            self._probe_later(lane)

    @staticmethod
    def _remember(memory: OrderedDict[K, V], item: K, what: V) -> None:
        memory[item] = what
        memory.move_to_end(item)
        if len(memory) > REMEMBERED:
            memory.popitem(last=False)
