"""Both sides of a connection give up the same one, whoever closed it and whatever is lost."""

from collections import Counter

import numpy as np
import pytest

from pdd.core.identity import NodeIdentity
from pdd.transfer import connection_numbers
from pdd.transfer.connection_numbers import ConnectionNumbers
from pdd.transfer.driver import HELD_GRANTS, TransferDriver
from pdd.transfer.pool import BlockPool
from pdd.transfer.settings import TransferSettings
from pdd.transfer.values import Peer, PeerId
from pdd.wire.address import RankAddress, pack_address
from pdd.wire.control import Grant, pack_control
from pdd.wire.record import RecordKind, unpack_record
from pdd.wire.tag import HELLO_TAG

PEER = PeerId(uuid="t", boot_epoch=1, rank=0)


def test_a_peer_that_has_lost_more_makes_ours_stale_once():
    numbers = ConnectionNumbers()
    assert not numbers.heard(PEER, 0, has_endpoint=True)
    assert numbers.heard(PEER, 1, has_endpoint=True)
    numbers.lost(PEER)  # what closing it comes to
    assert numbers.of(PEER) == 1
    assert not numbers.heard(PEER, 1, has_endpoint=True)


def test_a_number_is_taken_over_where_no_endpoint_is():
    numbers = ConnectionNumbers()
    assert not numbers.heard(PEER, 3, has_endpoint=False)
    assert numbers.of(PEER) == 3
    assert not numbers.heard(PEER, 2, has_endpoint=True)  # ours is newer


def test_numbers_of_peers_are_bounded():
    numbers = ConnectionNumbers()
    for epoch in range(connection_numbers.REMEMBERED + 1):
        numbers.lost(PeerId(uuid="t", boot_epoch=epoch, rank=0))
    assert numbers.of(PeerId(uuid="t", boot_epoch=0, rank=0)) == 0
    assert numbers.of(PeerId(uuid="t", boot_epoch=1, rank=0)) == 1
    assert len(numbers._numbers) == connection_numbers.REMEMBERED


class Transport:
    """Lets the test say when a closed endpoint is reported."""

    def __init__(self):
        self.up, self.leaving, self.reported, self.sent = set(), [], [], []

    def connect(self, peer, address):
        if peer not in self.leaving:
            self.up.add(peer)

    def has(self, peer):
        return peer in self.up

    def is_leaving(self, peer):
        return peer in self.leaving

    def abort(self, peer):
        if peer in self.up:
            self.up.remove(peer)
            self.leaving.append(peer)

    def report(self):
        self.reported, self.leaving = self.leaving, []

    def take_lost(self):
        taken, self.reported = self.reported, []
        return taken

    def progress(self, budget_s):
        return False

    def take_finals(self):
        return []

    def send(self, peer, tag, buffer, token):
        if tag != HELLO_TAG:
            self.sent.append((peer in self.up, bytes(buffer)))

    def in_flight(self):
        return 0


@pytest.fixture
def rig():
    class Rig:
        transport, counters = Transport(), Counter()
        driver = TransferDriver(
            pool=BlockPool.contiguous(np.zeros(800, np.uint8), block_bytes=100),
            identity=NodeIdentity(name="a", uuid="a", boot_epoch=1),
            settings=TransferSettings(),
            transport=transport,
            address=b"",
            send_control=lambda peer, payload: None,
            emit=lambda event: None,
            counters=counters,
            clock=lambda: 0.0,
        )

        def grant(self, key, *, connection):
            target = NodeIdentity(name="t", uuid="t", boot_epoch=1)
            grant = Grant(
                key=key,
                nonce=int(key) + 1,
                attempt=0,
                source_uuid="a",
                source_boot_epoch=1,
                target_uuid="t",
                target_boot_epoch=1,
                first_index=0,
                block_ids=(3,),
                held=(),
                lease_ms=1_000_000,
                address=pack_address(RankAddress(ucx_address=b"t")),
                shared=0,
                connection=connection,
            )
            peer = Peer(identity=target, rank=0, control_address="t:1", ucx_address=grant.address)
            self.driver.control(peer, pack_control(grant))

        def said(self):
            sent, self.transport.sent = self.transport.sent, []
            return [(up, unpack_record(data).kind, unpack_record(data).nonce) for up, data in sent]

    return Rig()


def test_a_grant_over_a_new_connection_waits_until_the_stale_endpoint_is_closed(rig):
    rig.grant("0", connection=0)
    rig.driver.step()
    assert rig.said() == [(True, RecordKind.HELD, 1)]
    rig.grant("1", connection=1)  # the target has closed, and asks anew
    rig.grant("2", connection=1)
    rig.driver.step()
    assert rig.said() == []
    rig.transport.report()
    rig.driver.step()
    assert rig.said() == [(True, RecordKind.HELD, 2), (True, RecordKind.HELD, 3)]
    assert rig.counters["stale_endpoints_closed"] == 1
    rig.grant("3", connection=1)
    assert rig.transport.has(PEER)


def test_grants_that_wait_for_a_close_are_bounded(rig):
    rig.grant("0", connection=0)
    for key in range(1, HELD_GRANTS + 10):
        rig.grant(str(key), connection=1)
    assert len(rig.driver._held_grants[PEER]) == HELD_GRANTS
    rig.transport.report()
    rig.driver.step()
    assert rig.driver._held_grants == {}
