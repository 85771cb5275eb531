"""The source's state machine, event by event; random orders are in tests/property."""

import dataclasses

import pytest

from pdd.core.identity import NodeIdentity
from pdd.transfer.protocol_source import SourceProtocol
from pdd.transfer.protocol_values import (
    ChunkSent,
    ClosePeer,
    Connect,
    ControlReceived,
    Count,
    Emit,
    PeerLost,
    SendChunk,
    SendControl,
    SendRecord,
    SourceAborted,
    SourceAppended,
    SourceOpened,
    Ticked,
)
from pdd.transfer.settings import TransferSettings
from pdd.transfer.values import PeerId, Reason
from pdd.wire.control import Again, Cancel, Grant, Probe, Receipt, Refusal
from pdd.wire.record import EndReason, RecordKind

PEER = PeerId(uuid="t", boot_epoch=5, rank=0)
OTHER = PeerId(uuid="u", boot_epoch=1, rank=0)
GRANT = Grant(
    key="k",
    nonce=1,
    attempt=0,
    source_uuid="s",
    source_boot_epoch=1,
    target_uuid="t",
    target_boot_epoch=5,
    first_index=2,
    block_ids=(7, 3, 9, 4),
    held=(),
    lease_ms=30_000,
    address=b"address",
    shared=0,
    connection=0,
)


class Source:
    def __init__(self, **settings):
        self.now_s = 0.0
        self.protocol = SourceProtocol(
            identity=NodeIdentity(name="prefill-0", uuid="s", boot_epoch=1),
            block_bytes=lambda peer: 100,
            settings=TransferSettings(**{"chunk_bytes": 200, "window_chunks": 2, **settings}),
        )

    def give(self, event):
        return self.protocol.step(event, now_s=self.now_s)

    def open(self, deadline_s=30.0):
        return self.give(SourceOpened(key="k", deadline_at_s=self.now_s + deadline_s))

    def append(self, first_index, block_ids, *, last=False):
        return self.give(
            SourceAppended(key="k", first_index=first_index, block_ids=block_ids, last=last)
        )

    def say(self, message, peer=PEER):
        return self.give(ControlReceived(peer=peer, message=message))

    def grant(self, **changed):
        return self.say(dataclasses.replace(GRANT, **changed))

    def sent(self, serial, *, nonce=1, ok=True):
        return self.give(ChunkSent(nonce=nonce, serial=serial, size_bytes=100, ok=ok))

    def abort(self, reason):
        return self.give(SourceAborted(key="k", reason=reason))

    def tick(self, seconds):
        self.now_s += seconds
        return self.give(Ticked())


def chunks(effects):
    return [(e.first_index, e.block_ids) for e in effects if isinstance(e, SendChunk)]


def records(effects):
    return [(e.record.kind, e.record.reason) for e in effects if isinstance(e, SendRecord)]


def messages(effects):
    return [effect.message for effect in effects if isinstance(effect, SendControl)]


def released(effects):
    return [effect.event.reason for effect in effects if isinstance(effect, Emit)]


ACCEPTED = (RecordKind.ACCEPTED, EndReason.NONE)


def test_nothing_is_sent_without_a_grant():
    source = Source()
    source.open()
    assert source.append(0, range(10, 16), last=True) == []


def test_blocks_leave_as_they_are_appended_and_only_those_that_are_wanted():
    source = Source()
    source.open()
    assert records(source.grant()) == [ACCEPTED]
    assert chunks(source.append(0, [10, 11, 12])) == [(2, (12,))]
    assert chunks(source.append(3, [13, 14, 15, 16], last=True)) == [(3, (13, 14))]
    assert chunks(source.sent(1)) == [(5, (15,))]


def test_no_more_than_the_window_is_on_its_way():
    source = Source(window_chunks=1)
    source.open()
    source.append(0, range(10, 16), last=True)
    assert chunks(source.grant()) == [(2, (12, 13))]
    assert chunks(source.sent(1)) == [(4, (14, 15))]


def test_blocks_that_arrived_in_an_earlier_attempt_are_not_sent_again():
    source = Source(window_chunks=8)
    source.open()
    source.append(0, range(10, 16), last=True)
    assert chunks(source.grant(held=(3, 4))) == [(2, (12,)), (5, (15,))]


def test_a_receipt_releases_when_every_send_is_final():
    source = Source()
    source.open()
    source.append(0, range(10, 16), last=True)
    source.grant()
    receipt = Receipt(key="k", nonce=1)
    assert released(source.say(receipt)) == []
    assert released(source.sent(1)) == []
    assert released(source.sent(2)) == [Reason.COMPLETED]
    assert source.protocol.idle


def test_a_missing_receipt_is_asked_for_until_the_deadline():
    source = Source()
    source.open(deadline_s=5.0)
    source.append(0, range(10, 16), last=True)
    source.grant()
    source.sent(1)
    source.sent(2)
    assert messages(source.tick(1.0)) == [Probe(key="k", nonce=1)]
    effects = source.tick(4.0)
    assert released(effects) == [Reason.DEADLINE]
    assert (RecordKind.END, EndReason.EXPIRED) in records(effects)


def test_a_damaged_chunk_is_sent_once_more_and_only_once():
    source = Source()
    source.open()
    source.append(0, range(10, 16), last=True)
    source.grant()
    source.sent(1)
    again = Again(key="k", nonce=1, serial=1)
    assert chunks(source.say(again)) == [(2, (12, 13))]
    assert chunks(source.say(again)) == []


def test_a_grant_before_its_sequence_is_held_and_then_served():
    source = Source()
    assert records(source.grant()) == [(RecordKind.HELD, EndReason.NONE)]
    assert records(source.open()) == [ACCEPTED]


def test_too_many_early_grants_are_refused():
    source = Source(max_pending_grants=1)
    source.grant(key="a", nonce=1)
    assert messages(source.grant(key="b", nonce=2)) == [
        Refusal(key="b", nonce=2, reason="too_many_pending")
    ]


def test_an_early_grant_is_not_replaced_by_an_older_attempt_that_comes_late():
    source = Source()
    source.grant(nonce=2, attempt=1)
    assert messages(source.grant(nonce=1, attempt=0)) == [
        Refusal(key="k", nonce=1, reason="stale_attempt")
    ]
    [accepted] = [effect.record for effect in source.open() if isinstance(effect, SendRecord)]
    assert (accepted.kind, accepted.nonce) == (RecordKind.ACCEPTED, 2)


def test_an_early_grant_that_another_target_replaces_is_refused_at_once():
    source = Source()
    source.grant()
    effects = source.say(
        dataclasses.replace(GRANT, nonce=2, target_uuid="u", target_boot_epoch=1), peer=OTHER
    )
    [refused] = [e for e in effects if isinstance(e, SendControl)]
    assert (refused.peer, refused.message) == (
        PEER,
        Refusal(key="k", nonce=1, reason=Reason.CONSUMED.value),
    )
    assert (RecordKind.END, EndReason.REFUSED) in records(effects)
    assert records(source.open()) == [ACCEPTED]  # for the other
    again = messages(source.grant())  # of the first, said again before it heard
    assert again == [Refusal(key="k", nonce=1, reason=Reason.CONSUMED.value)]


def test_an_abort_is_counted_where_somebody_had_asked_for_the_blocks():
    """Offers that nobody took, in the cut of another peer, end by the same call."""
    source = Source()
    source.open()
    assert Count(name="aborted_cancelled") not in source.abort("cancelled")
    source = Source()
    source.open()
    source.append(0, range(10, 16))
    source.grant()
    assert Count(name="aborted_cancelled") in source.abort("cancelled")
    assert source.abort("cancelled") == []  # it is ending already


def test_an_early_grant_is_refused_when_its_time_is_over():
    source = Source(pending_grant_timeout_s=2.0)
    source.grant()
    effects = source.tick(2.0)
    assert messages(effects) == [Refusal(key="k", nonce=1, reason="unknown_key")]
    assert records(effects) == [(RecordKind.END, EndReason.REFUSED)]


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"source_uuid": "x"}, "wrong_node"),
        ({"source_boot_epoch": 2}, "wrong_node"),
        ({"target_uuid": "x"}, "wrong_target"),
        ({"target_boot_epoch": 4}, "wrong_target"),
        ({"lease_ms": 0}, "expired"),
        ({"lease_ms": 10**10}, "lease_too_long"),
        ({"block_ids": ()}, "malformed"),
        ({"address": b""}, "malformed"),
    ],
)
def test_a_ticket_that_does_not_fit_is_refused(changed, reason):
    source = Source()
    source.open()
    source.append(0, range(10, 16), last=True)
    effects = source.grant(**changed)
    assert [message.reason for message in messages(effects)] == [reason]
    assert chunks(effects) == []


def test_a_newer_attempt_takes_over_and_an_older_one_is_refused():
    source = Source()
    source.open()
    source.grant()
    effects = source.grant(nonce=2, attempt=1)
    assert (RecordKind.END, EndReason.SUPERSEDED) in records(effects)
    assert ACCEPTED in records(effects)
    assert messages(source.grant(nonce=3, attempt=0))[0].reason == "stale_attempt"


def test_another_target_cannot_take_a_granted_sequence():
    source = Source()
    source.open()
    source.grant()
    effects = source.say(
        dataclasses.replace(GRANT, nonce=2, target_uuid="u", target_boot_epoch=1), peer=OTHER
    )
    assert messages(effects)[0].reason == "consumed"


def test_a_lost_peer_leaves_time_for_a_resume():
    source = Source(resume_grace_s=3.0)
    source.open()
    source.append(0, range(10, 16), last=True)
    source.grant()
    source.sent(1, ok=False)
    source.sent(2, ok=False)
    assert released(source.give(PeerLost(peer=PEER))) == []
    assert chunks(source.grant(nonce=2, attempt=1, held=(2, 3))) == [(4, (14, 15))]
    source.sent(1, nonce=2, ok=False)
    source.give(PeerLost(peer=PEER))
    assert released(source.tick(3.0)) == [Reason.PEER_LOST]


def test_an_abort_ends_the_lane_and_waits_for_what_is_on_its_way():
    source = Source()
    source.open()
    source.append(0, range(10, 14))
    source.grant()
    effects = source.abort("user")
    assert records(effects) == [(RecordKind.END, EndReason.ABORTED)]
    assert released(effects) == []
    assert released(source.sent(1)) == [Reason.ABORTED]


def test_sends_that_never_end_are_ended_by_closing_the_connection():
    source = Source()
    source.open()
    source.append(0, range(10, 14))
    source.grant()
    source.abort("user")
    assert ClosePeer(peer=PEER) in source.tick(2.0)


def test_a_cancel_before_the_sequence_is_remembered():
    source = Source()
    effects = source.say(Cancel(key="k", nonce=9, reason="cancelled"))
    assert Connect(peer=PEER) in effects
    assert records(effects) == [(RecordKind.END, EndReason.CANCELLED)]
    assert released(source.open()) == [Reason.CANCELLED]


def test_an_end_that_a_lost_connection_swallowed_is_sent_again():
    source = Source()
    cancel = Cancel(key="k", nonce=9, reason="cancelled")
    assert records(source.say(cancel)) == [(RecordKind.END, EndReason.CANCELLED)]
    assert records(source.say(cancel)) == []
    source.give(PeerLost(peer=PEER))
    assert records(source.say(cancel)) == [(RecordKind.END, EndReason.CANCELLED)]


OUT_OF_RANGE = (RecordKind.END, EndReason.OUT_OF_RANGE)


def test_blocks_of_which_none_will_ever_exist_end_the_transfer_at_once():
    source = Source()
    source.open()
    source.grant()
    effects = source.append(0, range(10, 12), last=True)
    assert released(effects) == [Reason.OUT_OF_RANGE]
    assert records(effects) == [OUT_OF_RANGE]
    assert chunks(effects) == []


def test_those_that_exist_are_sent_before_a_transfer_of_too_many_ends():
    source = Source()
    source.open()
    source.grant()
    effects = source.append(0, range(10, 15), last=True)
    assert chunks(effects) == [(2, (12, 13)), (4, (14,))]
    assert (records(effects), released(effects)) == ([], [])
    assert released(source.sent(1)) == [], "one is on its way"
    effects = source.sent(2)
    assert (records(effects), released(effects)) == ([OUT_OF_RANGE], [Reason.OUT_OF_RANGE])
    assert source.protocol.idle


def test_one_of_too_many_ends_when_it_turns_out_that_the_last_was_sent():
    source = Source()
    source.open()
    source.grant()
    source.append(0, range(10, 14))
    assert records(source.sent(1)) == [], "there may be more"
    assert records(source.append(4, [], last=True)) == [OUT_OF_RANGE]


def test_one_of_too_many_sends_a_damaged_chunk_again_before_it_ends():
    source = Source()
    source.open()
    source.grant()
    source.append(0, range(10, 15), last=True)
    source.sent(1)
    source.say(Again(key="k", nonce=1, serial=1))
    effects = source.sent(2)
    assert records(effects) == [], "it is on its way"
    effects = source.sent(3)
    assert records(effects) == [OUT_OF_RANGE]


def test_what_the_target_has_already_is_not_sent_before_it_ends():
    source = Source()
    source.open()
    source.append(0, range(10, 15), last=True)
    effects = source.grant(held=(2, 3, 4))
    assert (chunks(effects), records(effects)) == ([], [ACCEPTED, OUT_OF_RANGE])
