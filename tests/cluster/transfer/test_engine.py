import dataclasses

import numpy as np
import pytest

from pdd.core.errors import KVTransferError
from pdd.transfer.settings import TransferFaults, TransferSettings
from pdd.transfer.ucx_memory import MappedMemory
from pdd.transfer.ucx_transport import UcxTransport
from pdd.transfer.values import (
    PeerId,
    Reason,
    SourceReleased,
    TargetCancelled,
    TargetCompleted,
    TargetFailed,
)
from pdd.wire.control import Cancel, Grant, Receipt, pack_control, unpack_control

pytestmark = pytest.mark.cluster

SOURCE_IDS = [7, 3, 30, 11, 12, 13, 2, 0, 39]
TARGET_IDS = [1, 38, 20, 21, 22, 5, 9, 4, 17]
SMALL = TransferSettings(chunk_bytes=600_000)  # two blocks per chunk


def with_faults(**faults):
    return dataclasses.replace(SMALL, faults=TransferFaults(**faults))


def start(source, target, *, key="k", first_index=0, deadline_s=30.0, count=9):
    """Open both sides; the target wants all but the first ``first_index`` blocks."""
    source.engine.source_open(key, deadline_s=deadline_s)
    target.engine.target_open(
        key,
        source=source.peer,
        first_index=first_index,
        block_ids=TARGET_IDS[first_index:count],
        deadline_s=deadline_s,
    )


def append_all(source, *, key="k", cut=4):
    source.engine.source_append(key, first_index=0, block_ids=SOURCE_IDS[:cut], last=False)
    source.engine.source_append(key, first_index=cut, block_ids=SOURCE_IDS[cut:], last=True)


@pytest.mark.parametrize("layout", ["layer", "block", "shared"])
@pytest.mark.parametrize("first_index", [0, 3])
def test_blocks_arrive_whole_and_both_sides_hear_of_it_once(make_ranks, layout, first_index):
    source, target = make_ranks(layout=layout)
    start(source, target, first_index=first_index)
    append_all(source)
    [completed] = target.next_events()
    [released] = source.next_events()
    size = (len(SOURCE_IDS) - first_index) * source.pool.block_bytes
    assert isinstance(completed, TargetCompleted)
    assert completed.transferred_bytes == size
    assert released == SourceReleased(key="k", reason=Reason.COMPLETED, sent_bytes=size)
    assert target.bytes_of(TARGET_IDS[first_index:]) == source.bytes_of(SOURCE_IDS[first_index:])
    assert not any(map(any, target.bytes_of(TARGET_IDS[:first_index])))
    assert target.engine.poll() == source.engine.poll() == []


@pytest.mark.parametrize(("layout", "target_layout"), [("layer", "block"), ("block", "layer")])
def test_pools_of_different_layouts_exchange_blocks(make_ranks, layout, target_layout):
    source, target = make_ranks(layout=layout, target_layout=target_layout)
    start(source, target)
    append_all(source)
    assert isinstance(target.next_events()[0], TargetCompleted)
    assert target.bytes_of(TARGET_IDS) == source.bytes_of(SOURCE_IDS)


def test_a_grant_that_comes_before_its_sequence_is_kept(make_ranks):
    source, target = make_ranks()
    target.engine.target_open(
        "k", source=source.peer, first_index=0, block_ids=TARGET_IDS, deadline_s=30.0
    )
    source.wait_for("connects")
    source.engine.source_open("k", deadline_s=30.0)
    append_all(source)
    assert isinstance(target.next_events()[0], TargetCompleted)
    assert source.next_events()[0].reason is Reason.COMPLETED


def test_a_target_that_wants_nothing_releases_the_source(make_ranks):
    source, target = make_ranks()
    source.engine.source_open("k", deadline_s=30.0)
    target.engine.target_open("k", source=source.peer, first_index=9, block_ids=[], deadline_s=30.0)
    assert target.next_events()[0].transferred_bytes == 0
    assert source.next_events() == [SourceReleased(key="k", reason=Reason.CANCELLED, sent_bytes=0)]


@pytest.mark.parametrize("layout", ["layer", "block", "shared"])
def test_a_damaged_chunk_is_asked_for_once_more(make_ranks, layout):
    source, target = make_ranks(layout=layout, source=with_faults(flip_byte_in_chunk=2))
    start(source, target)
    append_all(source)
    assert isinstance(target.next_events()[0], TargetCompleted)
    assert target.bytes_of(TARGET_IDS) == source.bytes_of(SOURCE_IDS)
    assert target.engine.stats()["digest_mismatches"] == 1


@pytest.mark.parametrize("layout", ["layer", "block", "shared"])
def test_a_chunk_damaged_twice_fails_the_transfer_with_its_indices(make_ranks, layout):
    source, target = make_ranks(layout=layout, source=with_faults(fail_chunk=1))
    start(source, target)
    append_all(source)
    [failed] = target.next_events()
    [released] = source.next_events()
    assert isinstance(failed, TargetFailed)
    assert failed.reason is Reason.DIGEST_MISMATCH
    blocks_per_chunk = max(1, SMALL.chunk_bytes // source.pool.block_bytes)
    assert set(range(blocks_per_chunk, 2 * blocks_per_chunk)) <= set(failed.bad_indices)
    assert released.reason is Reason.CANCELLED
    assert target.engine.stats()["digest_mismatches"] == 2


def test_a_source_that_never_computes_is_given_up_at_the_deadline(make_ranks):
    source, target = make_ranks()
    start(source, target, deadline_s=0.3)
    [failed] = target.next_events()
    assert isinstance(failed, TargetFailed)
    assert failed.reason is Reason.DEADLINE
    assert failed.bad_indices == tuple(range(len(TARGET_IDS)))
    assert isinstance(source.next_events()[0], SourceReleased)


@pytest.mark.parametrize("layout", ["layer", "block", "shared"])
def test_a_cancel_between_chunks_leaves_nothing_behind(make_ranks, layout):
    source, target = make_ranks(layout=layout, source=SMALL, target=SMALL)
    for number in range(20):
        key = f"k{number}"
        start(source, target, key=key)
        append_all(source, key=key)
        target.engine.target_cancel(key)
        [ended] = target.next_events()
        assert ended.key == key
        source.next_events()
    start(source, target)
    append_all(source)
    assert isinstance(target.next_events()[0], TargetCompleted)
    assert target.bytes_of(TARGET_IDS) == source.bytes_of(SOURCE_IDS)


def test_shared_memory_carries_the_bytes_when_both_sides_have_it(make_ranks):
    source, target = make_ranks(layout="shared", source=SMALL, target=SMALL)
    start(source, target)
    append_all(source)
    assert isinstance(target.next_events()[0], TargetCompleted)
    source.next_events()
    assert source.engine.stats()["shared_bytes"] == len(SOURCE_IDS) * source.pool.block_bytes


@pytest.mark.parametrize("shared", [(True, False), (False, True)])
def test_one_side_with_shared_memory_sends_over_ucx(make_ranks, shared):
    source, target = make_ranks(source=SMALL, target=SMALL, shared=shared)
    start(source, target)
    append_all(source)
    assert isinstance(target.next_events()[0], TargetCompleted)
    source.next_events()
    assert source.engine.stats()["shared_bytes"] == 0
    assert target.bytes_of(TARGET_IDS) == source.bytes_of(SOURCE_IDS)


@pytest.mark.parametrize("layout", ["layer", "block", "shared"])
def test_without_digests_the_same_blocks_arrive(make_ranks, layout):
    blind = dataclasses.replace(SMALL, digest=False)
    source, target = make_ranks(layout=layout, source=blind, target=blind)
    start(source, target)
    append_all(source)
    assert isinstance(target.next_events()[0], TargetCompleted)
    assert target.bytes_of(TARGET_IDS) == source.bytes_of(SOURCE_IDS)


@pytest.mark.parametrize("layout", ["layer", "block", "shared"])
def test_two_ranks_send_to_each_other_at_the_same_time(make_ranks, layout):
    one, two = make_ranks(layout=layout, source=SMALL, target=SMALL)
    theirs = [33, 34, 35, 36]  # of the second rank, which the first pulls while it sends
    free = [14, 15, 16, 18]
    two.pool.memory[:] = 5
    start(one, two)
    two.engine.source_open("back", deadline_s=30.0)
    one.engine.target_open("back", source=two.peer, first_index=0, block_ids=free, deadline_s=30.0)
    two.engine.source_append("back", first_index=0, block_ids=theirs, last=True)
    append_all(one)
    ended = one.next_events(2) + two.next_events(2)
    assert {(type(event), event.key) for event in ended} == {
        (TargetCompleted, "k"),
        (SourceReleased, "k"),
        (TargetCompleted, "back"),
        (SourceReleased, "back"),
    }
    assert two.bytes_of(TARGET_IDS) == one.bytes_of(SOURCE_IDS)
    assert one.bytes_of(free) == two.bytes_of(theirs)
    assert one.engine.stats()["connects"] == 1


def test_a_sequence_moves_on_from_one_target_to_the_next(make_ranks):
    source, target = make_ranks(source=SMALL, target=SMALL)
    start(source, target)
    append_all(source)
    assert isinstance(target.next_events()[0], TargetCompleted)
    target.engine.source_open("moved", deadline_s=30.0)
    target.engine.source_append("moved", first_index=0, block_ids=TARGET_IDS, last=True)
    free = [31, 32, 33, 34, 35, 36, 37, 8, 10]
    source.engine.target_open(
        "moved", source=target.peer, first_index=0, block_ids=free, deadline_s=30.0
    )
    source.next_events(2)  # its release, and the end of what came back
    assert source.bytes_of(free) == source.bytes_of(SOURCE_IDS)


def test_a_cancelled_target_is_quiet_while_the_source_still_holds_chunks_back(make_ranks):
    source, target = make_ranks(source=with_faults(delay_s=60.0))
    start(source, target)
    append_all(source)
    source.wait_for("connects")
    target.engine.target_cancel("k")
    assert target.next_events() == [TargetCancelled(key="k")]
    assert source.next_events() == [SourceReleased(key="k", reason=Reason.CANCELLED, sent_bytes=0)]
    assert not any(map(any, target.bytes_of(TARGET_IDS)))


def test_an_aborted_source_fails_the_target_at_once(make_ranks):
    source, target = make_ranks()
    start(source, target)
    source.engine.source_append("k", first_index=0, block_ids=SOURCE_IDS[:2], last=False)
    target.wait_for("chunks_received", 1)
    source.engine.source_abort("k", "test")
    [failed] = target.next_events()
    assert isinstance(failed, TargetFailed)
    assert failed.reason is Reason.ABORTED
    assert 2 in failed.bad_indices
    assert source.next_events()[0].reason is Reason.ABORTED


@pytest.mark.parametrize("layout", ["layer", "shared"])
def test_a_target_that_wants_more_than_there_is_gets_what_there_is(make_ranks, layout):
    source, target = make_ranks(layout=layout)
    start(source, target)
    source.engine.source_append("k", first_index=0, block_ids=SOURCE_IDS[:4], last=True)
    [failed] = target.next_events()
    assert failed.reason is Reason.OUT_OF_RANGE
    assert failed.bad_indices == tuple(range(4, len(TARGET_IDS)))
    assert target.bytes_of(TARGET_IDS[:4]) == source.bytes_of(SOURCE_IDS[:4])
    assert failed.transferred_bytes == 4 * target.pool.block_bytes
    assert source.next_events()[0].reason is Reason.OUT_OF_RANGE


def test_a_lost_receipt_is_asked_for(make_ranks):
    source, target = make_ranks()
    start(source, target)
    target.lose_control = True  # the grant is lost too, and repeated
    append_all(source)
    target.wait_for("connects")
    target.lose_control = False
    target.next_events()
    assert source.next_events()[0].reason is Reason.COMPLETED


def test_a_source_without_any_receipt_gives_its_blocks_back_at_the_deadline(make_ranks):
    source, target = make_ranks(target=with_faults(drop_receipts=True))
    start(source, target, deadline_s=1.0)
    append_all(source)
    assert isinstance(target.next_events()[0], TargetCompleted)
    assert source.next_events()[0].reason is Reason.DEADLINE


@pytest.mark.parametrize("layout", ["layer", "shared"])
def test_a_closed_connection_is_resumed_once_with_what_is_missing(make_ranks, layout):
    source, target = make_ranks(layout=layout)
    start(source, target)
    source.engine.source_append("k", first_index=0, block_ids=SOURCE_IDS[:4], last=False)
    target.wait_for("chunks_received", 1)
    target.engine.disconnect(source.peer)
    target.wait_for("resumes")
    source.engine.source_append("k", first_index=4, block_ids=SOURCE_IDS[4:], last=True)
    [completed] = target.next_events()
    assert isinstance(completed, TargetCompleted)
    assert target.bytes_of(TARGET_IDS) == source.bytes_of(SOURCE_IDS)
    assert completed.transferred_bytes == len(TARGET_IDS) * target.pool.block_bytes
    grants = [
        message
        for message in (unpack_control(payload) for _, payload in target.sent_control)
        if isinstance(message, Grant)
    ]
    assert [grant.attempt for grant in (grants[0], grants[-1])] == [0, 1]
    assert grants[0].nonce != grants[-1].nonce
    assert grants[-1].held


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"source_uuid": "someone-else"}, Reason.WRONG_NODE),
        ({"source_boot_epoch": 0}, Reason.WRONG_NODE),
        ({"target_uuid": "someone-else"}, Reason.WRONG_TARGET),
        ({"target_boot_epoch": 2}, Reason.WRONG_TARGET),
        ({"lease_ms": 0}, Reason.EXPIRED),
        ({"lease_ms": 10**12}, Reason.LEASE_TOO_LONG),
        ({"block_ids": ()}, Reason.MALFORMED),
        ({"first_index": 9}, Reason.OUT_OF_RANGE),
    ],
)
def test_a_ticket_that_does_not_fit_moves_nothing_and_is_counted(make_ranks, change, reason):
    source, target = make_ranks()
    source.engine.source_open("k", deadline_s=30.0)
    source.engine.source_append("k", first_index=0, block_ids=SOURCE_IDS, last=True)
    ticket = Grant(
        key="k",
        nonce=77,
        attempt=0,
        source_uuid=source.identity.uuid,
        source_boot_epoch=1,
        target_uuid=target.identity.uuid,
        target_boot_epoch=1,
        first_index=0,
        block_ids=tuple(TARGET_IDS),
        held=(),
        lease_ms=30_000,
        address=target.address,
        shared=0,
        connection=0,
    )
    ticket = dataclasses.replace(ticket, **change)
    source.engine.deliver_control(target.peer, pack_control(ticket))
    source.wait_for(f"refused_{reason.value}")
    assert source.engine.stats().get("chunks_sent", 0) == 0


def test_a_used_ticket_is_refused(make_ranks):
    source, target = make_ranks()
    start(source, target)
    append_all(source)
    target.next_events()
    source.next_events()
    used = next(p for _, p in target.sent_control if isinstance(unpack_control(p), Grant))
    source.engine.deliver_control(target.peer, used)
    source.wait_for("refused_consumed")
    sent = source.engine.stats()["chunks_sent"]
    source.engine.source_open("k", deadline_s=30.0)  # the key lives again; the ticket does not
    append_all(source)
    source.engine.deliver_control(target.peer, used)
    source.wait_for("refused_consumed", 2)
    assert source.engine.stats()["chunks_sent"] == sent


def test_a_message_from_another_peer_than_the_grants_is_refused(make_ranks):
    source, target = make_ranks()
    start(source, target)
    target.wait_for("connects")
    source.wait_for("connects")
    grant = next(
        m for m in (unpack_control(p) for _, p in target.sent_control) if isinstance(m, Grant)
    )
    stranger = dataclasses.replace(
        target.peer, identity=dataclasses.replace(target.identity, uuid="stranger")
    )
    for message in (
        Receipt(key="k", nonce=grant.nonce),
        Cancel(key="k", nonce=grant.nonce, reason="x"),
    ):
        source.engine.deliver_control(stranger, pack_control(message))
    source.wait_for("refused_unknown_nonce", 2)
    append_all(source)
    assert isinstance(target.next_events()[0], TargetCompleted)


def test_nonsense_on_the_control_channel_is_counted(make_ranks):
    source, target = make_ranks()
    source.engine.deliver_control(target.peer, b"nonsense")
    source.wait_for("refused_malformed")


def test_callers_faults_are_named_at_once(make_ranks):
    source, target = make_ranks()
    start(source, target)
    with pytest.raises(ValueError, match="open already"):
        source.engine.source_open("k", deadline_s=1.0)
    with pytest.raises(ValueError, match="open already"):
        target.engine.target_open(
            "k", source=source.peer, first_index=0, block_ids=[1], deadline_s=1.0
        )
    with pytest.raises(ValueError, match="block 40 is not in"):
        source.engine.source_append("k", first_index=0, block_ids=[40], last=True)
    with pytest.raises(ValueError, match="names a block twice"):
        target.engine.target_open(
            "l", source=source.peer, first_index=0, block_ids=[1, 1], deadline_s=1.0
        )


def test_close_is_idempotent_and_poll_then_has_nothing(make_ranks):
    source, target = make_ranks()
    start(source, target)
    for _ in range(2):
        source.engine.close()
    assert source.engine.poll() == []
    source.engine.source_abort("k", "after close")


@pytest.mark.parametrize("layout", ["layer", "shared"])
def test_a_connection_tells_what_it_runs_on_and_how_fast_it_was(make_ranks, layout):
    source, target = make_ranks(layout=layout)
    start(source, target)
    append_all(source)
    target.next_events()
    target.wait_until(lambda: target.engine.connections())
    [connection] = target.engine.connections()
    assert connection.peer == source.peer.peer_id
    assert connection.lanes[0] == "tcp/lo"
    assert ("shared_memory" in connection.lanes) == (layout == "shared")
    assert connection.bytes_per_s > 0


def test_a_pool_is_registered_with_ucx_for_the_engines_life(make_ranks, monkeypatch):
    closed = []
    close = MappedMemory.close
    monkeypatch.setattr(
        MappedMemory, "close", lambda self: (closed.append(self._handle), close(self))
    )
    source, _ = make_ranks()
    assert closed == []
    source.engine.close()
    [handle] = closed
    assert handle.value


def test_memory_that_ucx_cannot_register_is_refused_with_what_to_do():
    transport = UcxTransport(memory=(0, 1 << 62))
    try:
        with pytest.raises(KVTransferError, match="locked memory"):
            transport.open()
    finally:
        transport.close()


def test_a_peer_is_lost_only_after_what_could_not_be_posted_has_been_taken():
    transport, other = UcxTransport(), UcxTransport()
    peer = PeerId(uuid="u", boot_epoch=1, rank=0)
    try:
        transport.open()
        transport.connect(peer, other.open())
        transport.abort(peer)
        transport.take_finals()
        transport.send(peer, 7 << 24, np.zeros(1, np.uint8), "refused")
        assert peer not in transport.take_lost()
        assert ("refused", False) in transport.take_finals()
    finally:
        transport.close()
        other.close()
