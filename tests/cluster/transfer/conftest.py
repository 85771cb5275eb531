"""Two ranks in this process, over real UCX on the loopback."""

import dataclasses
import os
import threading
import time

import numpy as np
import pytest

from pdd.core.identity import NodeIdentity
from pdd.transfer.engine import TransferEngine
from pdd.transfer.environment import ucx_environment
from pdd.transfer.pool import BlockPool, Region
from pdd.transfer.settings import TransferSettings
from pdd.transfer.values import Peer
from tests.waiting import wait_until

os.environ.update(ucx_environment(transport="tcp", devices="lo"))
if os.environ.get("PDD_TEST_RENDEZVOUS"):  # see test_rendezvous.py
    del os.environ["UCX_RNDV_SCHEME"]

WAIT_S = 20.0
"""How long a test waits for an event before it fails; nothing is measured with it."""


def make_pool(*, layout="layer", block_count=40, layer_count=6, segment_bytes=50_000):
    """``layer``: staged; ``block``: one stretch per block, long enough to be received in place.

    ``shared`` is ``layer`` with the bytes going through shared memory.
    """
    if layout == "block":
        layer_count, segment_bytes = 1, 300_000
    memory = np.zeros(block_count * layer_count * segment_bytes, np.uint8)
    region = Region(
        offset=0,
        layer_count=layer_count,
        layer_stride=block_count * segment_bytes,
        block_stride=segment_bytes,
        segment_bytes=segment_bytes,
    )
    return BlockPool(memory, regions=[region], block_count=block_count)


class Rank:
    """An engine, its pool, and a control channel that a test can look into and break."""

    def __init__(self, name, pool, settings, *, boot_epoch=1, rank=0):
        self.identity = NodeIdentity(name=name, uuid=f"{name}-uuid", boot_epoch=boot_epoch)
        self.pool = pool
        self.rank = rank
        self.happened = threading.Event()
        self.others = {}
        self.sent_control = []
        self.lose_control = False
        self.engine = TransferEngine(
            pool=pool,
            identity=self.identity,
            rank=rank,
            settings=settings,
            send_control=self._send_control,
            on_event=self.happened.set,
        )
        self.address = self.engine.start()

    @property
    def peer(self):
        return Peer(
            identity=self.identity,
            rank=self.rank,
            control_address=f"{self.identity.name}.{self.rank}",
            ucx_address=self.address,
        )

    def _send_control(self, peer, payload):
        self.sent_control.append((peer, payload))
        if not self.lose_control:
            self.others[peer.control_address].engine.deliver_control(self.peer, payload)

    def next_events(self, count=1):
        """Wait for ``count`` terminal events."""
        events = []
        end_s = time.monotonic() + WAIT_S
        while len(events) < count:
            events += self.engine.poll()
            if len(events) < count:
                assert time.monotonic() < end_s, f"{events} after {WAIT_S} s: {self.engine.stats()}"
                self.happened.wait(0.2)
                self.happened.clear()
        return events

    def bytes_of(self, block_ids):
        return [
            b"".join(
                self.pool.memory[offset : offset + size].tobytes()
                for offset, size in self.pool.segments(block_id)
            )
            for block_id in block_ids
        ]

    def wait_for(self, name, value=1):
        """Wait until a counter has reached ``value``."""
        self.wait_until(lambda: self.engine.stats().get(name, 0) >= value)

    def wait_until(self, condition):
        wait_until(condition, lambda: f"its condition; {self.engine.stats()}")


@pytest.fixture
def make_ranks():
    """Build linked ranks; all are closed when the test is over."""
    built = []

    def make(*, layout="layer", source=None, target=None, target_layout=None, shared=None):
        lanes = shared or (layout == "shared", layout == "shared")
        source, target = (
            dataclasses.replace(given or TransferSettings(), shared_memory=lane)
            for given, lane in zip((source, target), lanes, strict=True)
        )
        ranks = (
            Rank("prefill", make_pool(layout=layout), source),
            Rank("decode", make_pool(layout=target_layout or layout), target),
        )
        link(*ranks)
        built.extend(ranks)
        rng = np.random.default_rng(5)
        pool = ranks[0].pool
        pool.memory[:] = rng.integers(0, 256, pool.size_bytes, np.uint8)
        return ranks

    make.keep = built.append
    yield make
    for rank in built:
        rank.engine.close()


def link(*ranks):
    """Let every rank reach every other over the control channel."""
    for rank in ranks:
        rank.others.update({other.peer.control_address: other for other in ranks})
