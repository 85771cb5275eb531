"""What an engine does without at its start, and what it cannot start without."""

import errno
import os
import threading
from pathlib import Path

import numpy as np
import pytest

from pdd.core.identity import NodeIdentity
from pdd.transfer.engine import TransferEngine
from pdd.transfer.pool import BlockPool
from pdd.transfer.settings import TransferSettings
from pdd.transfer.values import Peer
from pdd.wire.address import RankAddress, pack_address, unpack_address


class Transport:
    """One that has nothing to do."""

    def __init__(self):
        self._woken = threading.Event()
        self.connected = []

    def open(self):
        return b"ucx"

    def version(self):
        return "test 1.0"

    def lanes(self, peer):
        return ("wire/0",) if peer in self.connected else ()

    def has(self, peer):
        return peer in self.connected

    def connect(self, peer, address):
        self.connected.append(peer)

    def progress(self, budget_s):
        return False

    def take_finals(self):
        return []

    def take_lost(self):
        return []

    def in_flight(self):
        return 0

    def wait(self, timeout_s):
        self._woken.wait(timeout_s)
        self._woken.clear()

    def wake(self):
        self._woken.set()

    def close(self):
        pass


def engine(**settings):
    return TransferEngine(
        pool=BlockPool.contiguous(np.zeros(800, np.uint8), block_bytes=100),
        identity=NodeIdentity(name="a", uuid="a", boot_epoch=1),
        rank=0,
        settings=TransferSettings(**settings),
        send_control=lambda peer, payload: None,
        transport=Transport(),
    )


@pytest.mark.parametrize("digest", [True, False])
def test_an_engine_offers_its_shared_memory_with_digests_and_without(digest):
    made = engine(digest=digest)
    address = unpack_address(made.start())
    made.close()
    assert address.size_bytes > 0
    assert address.host


def forbidden(*arguments):
    raise PermissionError(errno.EPERM, "Operation not permitted")


@pytest.mark.parametrize("what", ["memfd_create", "host_id"])
def test_where_shared_memory_is_forbidden_blocks_go_over_ucx_and_the_log_says_so(
    what, monkeypatch, caplog
):
    if what == "memfd_create":  # as under a seccomp profile
        monkeypatch.setattr(os, "memfd_create", forbidden)
    else:  # as where /proc is hidden
        monkeypatch.setattr(Path, "read_text", forbidden)
    made = engine()
    address = unpack_address(made.start())
    made.close()
    assert (address.ucx_address, address.host, address.size_bytes) == (b"ucx", "", 0)
    assert "blocks go over UCX" in caplog.text
    assert "Operation not permitted" in caplog.text


def test_the_fingerprint_names_what_moves_the_bytes():
    made = engine(digest=False)
    made.start()
    made.close()
    assert made.fingerprint["transfer_transport"] == "test 1.0"
    assert made.fingerprint["transfer_digest"] == "none"


def test_whoever_asks_for_connections_hears_of_them_as_they_are_then():
    made, answers, answered = engine(), [], threading.Event()
    made.start()
    identity = NodeIdentity(name="b", uuid="b", boot_epoch=1)
    address = pack_address(RankAddress(ucx_address=b"ucx"))
    made.connect(Peer(identity=identity, rank=0, control_address="b:1", ucx_address=address))

    def answer(found):
        answers.append([(one.peer.uuid, one.lanes) for one in found])
        answered.set()

    made.look(answer)
    assert answered.wait(10)
    made.close()
    assert answers == [[("b", ("wire/0",))]]
