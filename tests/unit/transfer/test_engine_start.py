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
from pdd.wire.address import unpack_address


class Transport:
    """One that has nothing to do."""

    def __init__(self):
        self._woken = threading.Event()

    def open(self):
        return b"ucx"

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
