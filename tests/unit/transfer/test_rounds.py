"""One round of the driver is short, however much has come in and however many peers wait."""

from collections import Counter

import numpy as np
import pytest

from pdd.core.identity import NodeIdentity
from pdd.transfer.driver import TransferDriver
from pdd.transfer.pool import BlockPool
from pdd.transfer.protocol_values import SendChunk, SourceAppended, SourceOpened
from pdd.transfer.sender import Sending
from pdd.transfer.settings import TransferFaults, TransferSettings
from pdd.transfer.values import Peer, PeerId
from pdd.wire.address import RankAddress, pack_address
from pdd.wire.control import Grant, pack_control

BUDGET_S = 0.004


class Clock:
    """Each look at it takes a millisecond, as a chunk's copy would between two looks."""

    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        self.now_s += 0.001
        return self.now_s


class Transport:
    """Hands out what the test has put in; keeps what was sent."""

    def __init__(self):
        self.finals, self.lost, self.sent = [], [], []

    def progress(self, budget_s):
        return False

    def take_finals(self):
        taken, self.finals = self.finals, []
        return taken

    def take_lost(self):
        taken, self.lost = self.lost, []
        return taken

    def send(self, peer, tag, buffer, token):
        if token is not None:
            self.sent.append(peer)

    def has(self, peer):
        return True

    def is_leaving(self, peer):
        return False

    def connect(self, peer, address):
        pass

    def in_flight(self):
        return 0


class Rig:
    def __init__(self):
        self.transport, self.clock = Transport(), Clock()
        self.settle()

    def settle(self, **settings):
        """A driver with these settings."""
        self.counters, self.events = Counter(), []
        self.driver = TransferDriver(
            pool=BlockPool.contiguous(np.zeros(800, np.uint8), block_bytes=100),
            identity=NodeIdentity(name="a", uuid="a", boot_epoch=1),
            settings=TransferSettings(round_budget_s=BUDGET_S, **settings),
            transport=self.transport,
            address=b"",
            send_control=lambda peer, payload: None,
            emit=self.events.append,
            counters=self.counters,
            clock=self.clock,
        )

    def grant(self, key):
        """A target asks for block 0 of a sequence."""
        identity = NodeIdentity(name="t", uuid="t", boot_epoch=1)
        grant = Grant(
            key=key,
            nonce=1,
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
            connection=0,
        )
        target = Peer(identity=identity, rank=0, control_address="t:1", ucx_address=grant.address)
        self.driver.control(target, pack_control(grant))


@pytest.fixture
def rig():
    return Rig()


def peer(number):
    return PeerId(uuid=f"peer-{number}", boot_epoch=1, rank=0)


def test_finals_beyond_the_budget_wait_for_later_rounds_and_none_is_forgotten(rig):
    waiting = [Sending(peer=peer(0), nonce=1, serial=n, size_bytes=1, left=2) for n in range(40)]
    rig.transport.finals = [(sending, True) for sending in waiting]
    done = []
    while len(done) < 40:
        assert rig.driver.step()
        before, done = len(done), [sending for sending in waiting if sending.left == 1]
        assert 1 <= len(done) - before <= 5
    assert done == waiting[:40]


def test_a_lost_peer_is_told_of_only_after_all_that_came_from_it(rig):
    waiting = [Sending(peer=peer(0), nonce=1, serial=n, size_bytes=1, left=2) for n in range(9)]
    rig.transport.finals = [(sending, False) for sending in waiting]
    rig.transport.lost = [peer(0)]
    rig.driver.step()
    assert any(sending.left == 2 for sending in waiting)
    assert rig.driver.sleep_s() == 0.0
    assert not rig.counters["peers_lost"]
    while any(sending.left == 2 for sending in waiting):
        rig.driver.step()
    rig.driver.step()
    assert rig.counters["peers_lost"] == 1


def test_a_lost_peer_is_told_of_however_busy_the_others_are(rig):
    first = [Sending(peer=peer(0), nonce=1, serial=n, size_bytes=1, left=2) for n in range(9)]
    rig.transport.finals = [(sending, False) for sending in first]
    rig.transport.lost = [peer(0)]
    for number in range(1, 6):
        rig.driver.step()
        others = [Sending(peer=peer(1), nonce=2, serial=n, size_bytes=1, left=2) for n in range(9)]
        rig.transport.finals += [(sending, True) for sending in others]
        print(f"round {number}: {rig.counters['peers_lost']} lost")
    assert rig.counters["peers_lost"] == 1


def test_a_lane_that_ends_by_the_clock_releases_its_blocks_in_the_same_round(rig):
    """Its chunks have not left: nothing else would wake the loop to take them back."""
    rig.settle(faults=TransferFaults(delay_s=60.0))
    driver = rig.driver
    driver.source(SourceOpened(key="held back", deadline_at_s=rig.clock.now_s + 50.0))
    driver.source(SourceAppended(key="held back", first_index=0, block_ids=[1], last=True))
    rig.grant("held back")
    rig.clock.now_s += 55.0
    driver.step()
    assert [event.key for event in rig.events] == ["held back"]


def test_many_peers_take_turns_in_rounds_that_stay_short(rig):
    for number in range(30):
        for serial in range(2):
            chunk = SendChunk(
                peer=peer(number),
                nonce=number + 1,
                serial=serial,
                number=serial,
                first_index=0,
                block_ids=(0,),
                target_block_ids=(0,),
                shared=False,
            )
            rig.driver._sender.enqueue(chunk)
    rounds = []
    while len(rig.transport.sent) < 60:
        before = len(rig.transport.sent)
        rig.driver.step()
        rounds.append(len(rig.transport.sent) - before)
    assert max(rounds) <= 5
    firsts = rig.transport.sent[:30]
    assert len(set(firsts)) == 30
