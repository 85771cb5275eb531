"""Nodes that are restarted for ever: what a driver keeps of their former lives is nothing."""

from collections import Counter

import numpy as np
import pytest

from pdd.core.identity import NodeIdentity
from pdd.transfer.driver import TransferDriver
from pdd.transfer.pool import BlockPool
from pdd.transfer.protocol_values import TargetCancelRequested, TargetOpened
from pdd.transfer.receiver import Flow
from pdd.transfer.settings import TransferSettings
from pdd.transfer.values import Peer
from pdd.wire.address import RankAddress, pack_address
from pdd.wire.control import Grant, pack_control

LIVES = 40


class Transport:
    """Connects at once; an aborted endpoint is lost in the next round."""

    def __init__(self):
        self.up, self.lost = set(), []

    def connect(self, peer, address):
        self.up.add(peer)

    def has(self, peer):
        return peer in self.up

    def is_leaving(self, peer):
        return peer in self.lost

    def abort(self, peer):
        if peer in self.up:
            self.up.remove(peer)
            self.lost.append(peer)

    def take_lost(self):
        taken, self.lost = self.lost, []
        return taken

    def progress(self, budget_s):
        return False

    def take_finals(self):
        return []

    def post_receive(self, peer, tag, buffer, token, *, discard=False):
        pass

    def send(self, peer, tag, buffer, token):
        pass

    def in_flight(self):
        return 0


class Rig:
    def __init__(self):
        self.now_s, self.said = 0.0, []
        self.transport = Transport()
        self.driver = TransferDriver(
            pool=BlockPool.contiguous(np.zeros(800, np.uint8), block_bytes=100),
            identity=NodeIdentity(name="a", uuid="a", boot_epoch=1),
            settings=TransferSettings(),
            transport=self.transport,
            address=b"",
            send_control=lambda peer, payload: self.said.append(peer.peer_id),
            emit=lambda event: None,
            counters=Counter(),
            clock=lambda: self.now_s,
        )

    def round(self):
        self.driver.step()
        self.driver.tidy()

    def kept(self):
        driver = self.driver
        return {
            "peers": len(driver._peers),
            "shares": len(driver._out_shares) + len(driver._in_shares),
            "flows": len(driver._receiver.flows),
            "mapped": len(driver._memories._mapped),
            "turns": len(driver._source._state.peers),
            "leaving": len(driver._leaving),
        }


def life(epoch):
    return Peer(
        identity=NodeIdentity(name="b", uuid="b", boot_epoch=epoch),
        rank=0,
        control_address="b:1",
        ucx_address=pack_address(RankAddress(ucx_address=b"ucx")),
    )


def meet(rig, epoch):
    """It joins, is given a share, and asks for a sequence that is not here."""
    peer = life(epoch)
    rig.driver.join(peer)
    rig.driver.set_shares(peer.peer_id, send=[(0, 50)], receive=[(50, 50)])
    rig.driver._receiver.flows[peer.peer_id] = Flow()
    grant = Grant(
        key=f"k{epoch}",
        nonce=epoch,
        attempt=0,
        source_uuid="a",
        source_boot_epoch=1,
        target_uuid="b",
        target_boot_epoch=epoch,
        first_index=0,
        block_ids=(1,),
        held=(),
        lease_ms=1000,
        address=peer.ucx_address,
        shared=0,
        connection=0,
    )
    rig.driver.control(peer, pack_control(grant))
    rig.round()
    rig.now_s += 2.0  # the lease is over: it is refused
    rig.round()


@pytest.mark.parametrize("news", ["left", "newer life"])
def test_a_life_that_is_over_leaves_nothing(news):
    rig = Rig()
    for epoch in range(1, LIVES):
        meet(rig, epoch)
        if news == "left":
            rig.driver.disconnect(life(epoch).peer_id)
        else:
            rig.driver.learn_peer(life(epoch + 1))
        rig.round()
        rig.round()
    left = 1 if news == "newer life" else 0
    assert rig.kept() == dict.fromkeys(rig.kept(), 0) | {"peers": left}


def test_a_peer_that_left_stays_known_while_a_transfer_from_it_is_open():
    rig = Rig()
    peer = life(1)
    rig.driver.join(peer)
    rig.driver.target(
        TargetOpened(key="k", peer=peer.peer_id, first_index=0, block_ids=[1], deadline_at_s=9.0)
    )
    rig.driver.disconnect(peer.peer_id)
    rig.round()
    rig.round()  # it is asked once more, over a new connection
    assert rig.said == [peer.peer_id] * 2
    assert rig.kept()["peers"] == 1
    rig.driver.target(TargetCancelRequested(key="k"))
    rig.transport.abort(peer.peer_id)
    rig.round()
    rig.round()
    assert rig.kept()["peers"] == 0


def test_a_peer_that_joins_again_is_not_forgotten():
    rig = Rig()
    rig.driver.join(life(1))
    rig.driver.disconnect(life(1).peer_id)
    rig.driver.join(life(1))
    rig.transport.abort(life(1).peer_id)
    rig.round()
    rig.round()
    assert rig.kept()["peers"] == 1
