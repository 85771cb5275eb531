"""The target's state machine, event by event; random orders are in tests/property."""

import pytest

from pdd.core.identity import NodeIdentity
from pdd.transfer.protocol_target import TargetProtocol
from pdd.transfer.protocol_values import (
    ChunkReceived,
    ClosePeer,
    Connect,
    ControlReceived,
    Count,
    DiscardChunk,
    Emit,
    Land,
    PeerLost,
    PostRecord,
    ReceiveChunk,
    RecordReceived,
    SendControl,
    TargetCancelRequested,
    TargetOpened,
    Ticked,
)
from pdd.transfer.settings import TransferSettings
from pdd.transfer.values import PeerId, Reason, TargetCancelled, TargetCompleted, TargetFailed
from pdd.wire.control import Again, Cancel, Grant, Probe, Receipt, Refusal
from pdd.wire.record import EndReason, Record, RecordKind, pack_record

PEER = PeerId(uuid="s", boot_epoch=1, rank=0)
BLOCK_BYTES = 100
BLOCKS = (7, 3, 9, 4)


class Target:
    def __init__(self, *, direct=False, digest=True):
        self.nonces = iter(range(1, 100))
        self.now_s = 0.0
        self.protocol = TargetProtocol(
            identity=NodeIdentity(name="decode-0", uuid="t", boot_epoch=5),
            address=b"address",
            block_bytes=lambda peer: BLOCK_BYTES,
            settings=TransferSettings(digest=digest),
            connection_of=lambda peer: 0,
            lands_direct=lambda peer, record, block_ids: direct,
            new_nonce=lambda: next(self.nonces),
        )

    def give(self, event):
        return self.protocol.step(event, now_s=self.now_s)

    def open(self, *, block_ids=BLOCKS, first_index=2, deadline_s=30.0, shared=False):
        return self.give(
            TargetOpened(
                key="k",
                peer=PEER,
                first_index=first_index,
                block_ids=block_ids,
                deadline_at_s=self.now_s + deadline_s,
                shared=shared,
            )
        )

    def record(self, kind=RecordKind.CHUNK, *, nonce=1, serial, **fields):
        record = Record(kind=kind, nonce=nonce, serial=serial, **fields)
        return self.give(RecordReceived(nonce=nonce, data=pack_record(record)))

    def chunk(self, *, serial, first_index, count=1, nonce=1, **changed):
        size = count * BLOCK_BYTES
        fields = {
            "first_index": first_index,
            "block_count": count,
            "size_bytes": size,
            "piece_bytes": size,
            "digest": 77,
            **changed,
        }
        return self.record(nonce=nonce, serial=serial, **fields)

    def received(self, *, serial, nonce=1, ok=True, digest=77, overtaken=False):
        return self.give(
            ChunkReceived(nonce=nonce, serial=serial, ok=ok, digest=digest, overtaken=overtaken)
        )

    def tick(self, seconds):
        self.now_s += seconds
        return self.give(Ticked())


def kinds(effects):
    return [type(effect) for effect in effects]


def messages(effects):
    return [effect.message for effect in effects if isinstance(effect, SendControl)]


def events(effects):
    return [effect.event for effect in effects if isinstance(effect, Emit)]


def test_opening_posts_a_receive_before_it_grants():
    effects = Target().open()
    assert kinds(effects) == [Connect, PostRecord, SendControl]
    [grant] = messages(effects)
    assert isinstance(grant, Grant)
    assert (grant.first_index, grant.block_ids, grant.held) == (2, BLOCKS, ())
    assert (grant.source_uuid, grant.source_boot_epoch) == ("s", 1)
    assert (grant.target_uuid, grant.target_boot_epoch) == ("t", 5)
    assert grant.lease_ms == 30_000


def test_a_grant_is_said_again_until_it_is_answered():
    target = Target()
    first = messages(target.open())
    assert messages(target.tick(0.3))[0].nonce == first[0].nonce
    target.record(RecordKind.HELD, serial=0)
    assert messages(target.tick(5.0)) == []


def test_a_source_that_does_not_answer_is_taken_for_lost():
    target = Target()
    target.open()
    assert ClosePeer in kinds(target.tick(5.0))


def test_blocks_are_complete_only_when_the_last_digest_fits():
    target = Target()
    target.open()
    target.record(RecordKind.ACCEPTED, serial=0)
    effects = target.chunk(serial=1, first_index=2, count=3)
    assert kinds(effects) == [ReceiveChunk, PostRecord]
    assert effects[0].block_ids == BLOCKS[:3]
    assert kinds(target.chunk(serial=2, first_index=5)) == [ReceiveChunk]
    assert kinds(target.received(serial=2)) == [Land]
    effects = target.received(serial=1)
    assert kinds(effects) == [Land, SendControl, Emit]
    assert isinstance(messages(effects)[0], Receipt)
    assert events(effects) == [TargetCompleted(key="k", transferred_bytes=400, duration_s=0.0)]
    assert target.protocol.idle


def test_waiting_for_the_sources_engine_is_not_time_on_the_way():
    target = Target()
    target.open()
    target.record(RecordKind.HELD, serial=0)
    target.tick(3.0)
    target.record(RecordKind.ACCEPTED, serial=1)
    target.chunk(serial=2, first_index=2, count=4)
    target.tick(0.5)
    [done] = events(target.received(serial=2))
    assert (done.duration_s, done.moving_s) == (3.5, 0.5)


def test_a_wrong_digest_is_asked_for_once_and_then_given_up():
    target = Target()
    target.open()
    target.chunk(serial=0, first_index=2, count=4)
    effects = target.received(serial=0, digest=78)
    assert messages(effects) == [Again(key="k", nonce=1, serial=0)]
    assert PostRecord in kinds(effects)
    target.chunk(serial=1, first_index=2, count=4)
    effects = target.received(serial=1, digest=78)
    [failed] = events(effects)
    assert failed == TargetFailed(
        key="k",
        bad_indices=(2, 3, 4, 5),
        reason=Reason.DIGEST_MISMATCH,
        transferred_bytes=0,
    )


@pytest.mark.parametrize("digest", [77, 0], ids=["digests", "none"])
def test_a_chunk_whose_slot_was_overtaken_is_asked_for_once_and_then_given_up(digest):
    target = Target(digest=bool(digest))
    target.open(shared=True)
    place = {"digest": digest, "shared_generation": 2, "shared_page": 1}
    target.chunk(serial=0, first_index=2, count=4, **place)
    effects = target.received(serial=0, digest=digest, overtaken=True)
    assert messages(effects) == [Again(key="k", nonce=1, serial=0)]
    assert Count(name="chunks_overtaken") in effects
    assert Land not in kinds(effects)
    target.chunk(serial=1, first_index=2, count=4, **place)
    effects = target.received(serial=1, digest=digest, overtaken=True)
    [failed] = events(effects)
    assert (failed.reason, failed.bad_indices) == (Reason.OVERTAKEN, (2, 3, 4, 5))


@pytest.mark.parametrize(
    "change",
    [
        {"first_index": 1},
        {"first_index": 5, "count": 2},
        {"size_bytes": 99, "piece_bytes": 99},
        {"digest": 0},
        {"piece_bytes": 1, "count": 4, "size_bytes": 400_000},
        {"shared_generation": 2, "shared_page": 1},
    ],
)
def test_a_record_outside_the_ticket_posts_nothing_and_closes_the_connection(change):
    target = Target()
    target.open()
    effects = target.chunk(**{"serial": 0, "first_index": 2, **change})
    assert ReceiveChunk not in kinds(effects)
    assert ClosePeer in kinds(effects)
    assert events(effects)[0].reason is Reason.PROTOCOL_VIOLATION


def test_a_block_is_not_received_twice():
    target = Target()
    target.open()
    target.chunk(serial=0, first_index=2, count=2)
    effects = target.chunk(serial=1, first_index=3)
    assert ReceiveChunk not in kinds(effects)
    assert ClosePeer in kinds(effects)


def test_a_flush_is_no_record():
    target = Target()
    target.open()
    effects = target.give(RecordReceived(nonce=1, data=bytes(64)))
    assert events(effects)[0].reason is Reason.PROTOCOL_VIOLATION


def test_a_cancel_waits_for_receives_that_write_into_the_blocks():
    target = Target(direct=True)
    target.open()
    target.chunk(serial=0, first_index=2)
    effects = target.give(TargetCancelRequested(key="k"))
    assert isinstance(messages(effects)[0], Cancel)
    assert events(effects) == []
    assert events(target.received(serial=0)) == [TargetCancelled(key="k")]


def test_a_cancel_of_a_staged_transfer_is_quiet_at_once():
    target = Target(direct=False)
    target.open()
    target.chunk(serial=0, first_index=2)
    effects = target.give(TargetCancelRequested(key="k"))
    assert events(effects) == [TargetCancelled(key="k")]
    assert Land not in kinds(target.received(serial=0))


def test_receives_that_never_end_are_ended_by_closing_the_connection():
    target = Target(direct=True)
    target.open()
    target.chunk(serial=0, first_index=2)
    target.give(TargetCancelRequested(key="k"))
    assert ClosePeer in kinds(target.tick(2.0))
    target.received(serial=0, ok=False)
    assert target.protocol.counts()["target_open"] == 0


def test_chunks_of_a_cancelled_transfer_are_taken_off_the_wire_until_its_end():
    target = Target()
    target.open()
    target.give(TargetCancelRequested(key="k"))
    assert kinds(target.chunk(serial=0, first_index=2)) == [DiscardChunk, PostRecord]
    target.record(RecordKind.END, serial=1, reason=EndReason.CANCELLED)
    assert not target.protocol.idle
    target.received(serial=0)
    assert target.protocol.idle


def test_a_lost_peer_is_granted_what_is_missing_once():
    target = Target()
    target.open()
    target.chunk(serial=0, first_index=3)
    target.received(serial=0)
    effects = target.give(PeerLost(peer=PEER))
    [grant] = messages(effects)
    assert (grant.attempt, grant.nonce, grant.held) == (1, 2, (3,))
    [failed] = events(target.give(PeerLost(peer=PEER)))
    assert failed.reason is Reason.PEER_LOST
    assert failed.bad_indices == (2, 4, 5)
    assert failed.transferred_bytes == BLOCK_BYTES


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (EndReason.ABORTED, Reason.ABORTED),
        (EndReason.EXPIRED, Reason.DEADLINE),
        (EndReason.OUT_OF_RANGE, Reason.OUT_OF_RANGE),
        (EndReason.REFUSED, Reason.REFUSED),
    ],
)
def test_the_sources_end_tells_why(end, reason):
    target = Target()
    target.open()
    effects = target.record(RecordKind.END, serial=0, reason=end)
    assert events(effects)[0].reason is reason
    assert target.protocol.idle


def test_the_end_of_a_source_that_has_fewer_blocks_waits_for_those_that_are_on_their_way():
    target = Target()
    target.open()
    target.chunk(serial=0, first_index=2)
    target.chunk(serial=1, first_index=3)
    assert target.record(RecordKind.END, serial=2, reason=EndReason.OUT_OF_RANGE) == []
    assert events(target.received(serial=1)) == []
    [failed] = events(target.received(serial=0))
    assert (failed.reason, failed.bad_indices) == (Reason.OUT_OF_RANGE, (4, 5))
    assert failed.transferred_bytes == 2 * BLOCK_BYTES
    assert target.protocol.idle


def test_a_chunk_that_is_damaged_after_that_end_is_not_asked_for_again():
    target = Target()
    target.open()
    target.chunk(serial=0, first_index=2)
    target.record(RecordKind.END, serial=1, reason=EndReason.OUT_OF_RANGE)
    effects = target.received(serial=0, digest=78)
    [failed] = events(effects)
    assert (failed.reason, failed.bad_indices) == (Reason.DIGEST_MISMATCH, (2, 3, 4, 5))
    assert messages(effects) == []
    assert target.protocol.idle


def test_what_is_on_its_way_after_that_end_is_awaited_until_the_deadline():
    target = Target(direct=True)
    target.open(deadline_s=3.0)
    target.chunk(serial=0, first_index=2)
    target.record(RecordKind.END, serial=1, reason=EndReason.OUT_OF_RANGE)
    assert events(target.tick(3.0)) == [], "its bytes may still be written"
    [failed] = events(target.received(serial=0))
    assert (failed.reason, failed.bad_indices) == (Reason.DEADLINE, (2, 3, 4, 5))
    assert target.protocol.idle


def test_a_refusal_fails_the_transfer_only_when_it_comes_from_the_source():
    target = Target()
    target.open()
    refusal = Refusal(key="k", nonce=1, reason="unknown_key")
    other = PeerId(uuid="x", boot_epoch=1, rank=0)
    assert events(target.give(ControlReceived(peer=other, message=refusal))) == []
    [failed] = events(target.give(ControlReceived(peer=PEER, message=refusal)))
    assert failed.reason is Reason.REFUSED


def test_a_probe_after_completion_is_answered_with_the_receipt():
    target = Target()
    target.open()
    probe = ControlReceived(peer=PEER, message=Probe(key="k", nonce=1))
    assert messages(target.give(probe)) == []
    target.chunk(serial=0, first_index=2, count=4)
    target.received(serial=0)
    assert messages(target.give(probe)) == [Receipt(key="k", nonce=1)]
