"""Shared memory in the driver: who gets a slot, and how long a peer's memory stays mapped."""

import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from pdd.core.identity import NodeIdentity
from pdd.transfer.driver import TransferDriver
from pdd.transfer.pool import BlockPool
from pdd.transfer.protocol_values import SendChunk
from pdd.transfer.settings import TransferSettings
from pdd.transfer.shared import PAGE_BYTES, SharedSlots
from pdd.transfer.values import Peer, PeerId
from pdd.wire.address import pack_address


class Transport:
    """Keeps what was posted and sent; peers are lost when the test says so."""

    def __init__(self):
        self.finals, self.lost, self.answers, self.pieces = [], [], [], []

    def progress(self, budget_s):
        return False

    def take_finals(self):
        taken, self.finals = self.finals, []
        return taken

    def take_lost(self):
        taken, self.lost = self.lost, []
        return taken

    def post_receive(self, peer, tag, buffer, token, *, discard=False):
        self.answers.append(token)

    def send(self, peer, tag, buffer, token):
        if token is not None:
            self.pieces.append(token)

    def abort(self, peer):
        pass

    def in_flight(self):
        return 0


class Rig:
    def __init__(self, shared):
        self.transport = Transport()
        self.counters = Counter()
        self.driver = TransferDriver(
            pool=BlockPool.contiguous(np.zeros(800, np.uint8), block_bytes=100),
            identity=NodeIdentity(name="a", uuid="a", boot_epoch=1),
            settings=TransferSettings(),
            transport=self.transport,
            address=b"",
            shared=shared,
            send_control=lambda peer, payload: None,
            emit=lambda event: None,
            counters=self.counters,
        )

    def send_chunk(self, name, serial):
        self.driver._sender.enqueue(
            SendChunk(
                peer=peer_id(name),
                nonce=ord(name),
                serial=serial,
                number=serial,
                first_index=0,
                block_ids=(0,),
                target_block_ids=(0,),
                shared=True,
            )
        )
        self.driver.step()

    def waiting_for_answers(self):
        return [(token.peer.uuid, token.serial) for token in self.transport.answers]

    def sent_as_messages(self):
        return [(token.peer.uuid, token.serial) for token in self.transport.pieces]


def peer_id(name):
    return PeerId(uuid=name, boot_epoch=1, rank=0)


@pytest.fixture
def slots():
    made = SharedSlots(slot_bytes=PAGE_BYTES, slot_count=2, per_peer=1)
    yield made
    made.close()


@pytest.fixture
def rig(slots):
    return Rig(slots)


def test_peers_that_do_not_answer_cannot_keep_others_from_being_served(rig):
    rig.send_chunk("x", 1)
    rig.send_chunk("y", 1)  # both slots are lent now
    rig.send_chunk("z", 1)
    assert rig.waiting_for_answers() == [("x", 1), ("y", 1)]
    assert rig.sent_as_messages() == [("z", 1)]


def test_a_peer_with_a_slot_of_its_own_waits_for_it_to_come_back(rig):
    rig.send_chunk("x", 1)
    rig.send_chunk("x", 2)
    assert rig.waiting_for_answers() == [("x", 1)]
    assert rig.sent_as_messages() == []
    rig.transport.finals = [(rig.transport.answers[0], True)]
    rig.driver.step()
    assert rig.waiting_for_answers() == [("x", 1), ("x", 2)]


def test_a_slot_comes_back_when_its_peer_is_lost(rig, slots):
    rig.send_chunk("x", 1)
    rig.transport.finals, rig.transport.lost = [(rig.transport.answers[0], False)], [peer_id("x")]
    rig.driver.step()
    assert slots.lent_count == 0


@pytest.fixture
def source():
    """Another rank's memory, and where it is."""
    made = SharedSlots(slot_bytes=PAGE_BYTES, slot_count=2, per_peer=1)
    identity = NodeIdentity(name="s", uuid="s", boot_epoch=1)
    address = pack_address(made.address(b"ucx"))
    peer = Peer(identity=identity, rank=0, control_address="s:1", ucx_address=address)
    yield made, peer
    made.close()


def mappings_of(memory):
    return Path("/proc/self/maps").read_text().count(memory.address(b"").name)


def descriptor_count():
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("ending", ["left", "lost"])
def test_the_memory_of_a_peer_that_is_gone_is_let_go(rig, source, ending):
    memory, peer = source
    before = mappings_of(memory), descriptor_count()
    for _ in range(3):  # it comes and goes
        rig.driver.learn_peer(peer)
        assert rig.driver.shares_memory_with(peer.peer_id)
        assert mappings_of(memory) == before[0] + 1
        if ending == "left":
            rig.driver.disconnect(peer.peer_id)
        else:
            rig.transport.lost = [peer.peer_id]
            rig.driver.step()
        assert (mappings_of(memory), descriptor_count()) == before
