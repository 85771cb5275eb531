"""Somebody who reaches a rank's UCX worker without a ticket gets nothing and moves nothing."""

import random

import numpy as np
import pytest

from pdd.transfer.settings import TransferSettings
from pdd.transfer.values import TargetCompleted
from pdd.wire.address import unpack_address
from pdd.wire.record import Record, RecordKind, pack_record
from pdd.wire.tag import NONCE_BITS, RECORD_PIECE, make_tag

pytestmark = pytest.mark.cluster

SOURCE_IDS, TARGET_IDS = list(range(10, 18)), list(range(8))


class Stranger:
    """A bare UCX worker that knows the target's address and nothing else."""

    def __init__(self, address):
        import ucxx._lib.libucxx as lib
        from ucxx._lib.arr import Array

        self.lib, self.array = lib, Array
        context = lib.UCXContext({}, feature_flags=(lib.Feature.TAG, lib.Feature.WAKEUP))
        self.worker = lib.UCXWorker(
            context, enable_delayed_submission=False, enable_python_future=False
        )
        self.worker.init_blocking_progress_mode()
        remote = lib.UCXAddress.create_from_buffer(np.frombuffer(address, np.uint8))
        self.endpoint = lib.UCXEndpoint.create_from_worker_address(
            self.worker, remote, endpoint_error_handling=True
        )

    def send(self, tag, data):
        return self.endpoint.tag_send(self.array(data), self.lib.UCXXTag(tag))

    def receive_anything(self, buffer):
        return self.endpoint.tag_recv(
            self.array(buffer), self.lib.UCXXTag(0), self.lib.UCXXTagMask(0)
        )

    def progress(self):
        for _ in range(200):
            self.worker.progress()

    def close(self):
        self.endpoint.close_blocking(period=10**7, max_attempts=100)
        self.progress()
        self.endpoint = self.worker = None


def test_a_stranger_gets_nothing_and_moves_nothing(make_ranks):
    source, target = make_ranks(
        layout="block", source=TransferSettings(), target=TransferSettings()
    )
    target.engine.target_open(
        "k", source=source.peer, first_index=0, block_ids=TARGET_IDS, deadline_s=60.0
    )
    source.wait_for("connects")  # the target's record receive is posted by now
    before = target.pool.memory.copy()
    stranger = Stranger(unpack_address(target.address).ucx_address)
    caught = np.zeros(target.pool.block_bytes, np.uint8)
    fishing = stranger.receive_anything(caught)
    guesses = random.Random(1)
    sent = [stranger.send(1, np.ones(1, np.uint8)) for _ in range(20)]  # hello, hello
    for _ in range(200):
        nonce = guesses.randrange(1, 1 << NONCE_BITS)
        record = Record(
            kind=RecordKind.CHUNK,
            nonce=nonce,
            serial=0,
            block_count=1,
            size_bytes=target.pool.block_bytes,
            piece_bytes=target.pool.block_bytes,
            digest=1,
        )
        data = np.frombuffer(bytearray(pack_record(record)), np.uint8)
        sent.append(stranger.send(make_tag(nonce=nonce, piece=RECORD_PIECE), data))
        payload = np.full(target.pool.block_bytes, 0xEE, np.uint8)
        sent.append(stranger.send(make_tag(nonce=nonce, piece=0), payload))
        stranger.progress()
    assert (target.pool.memory == before).all()
    assert not fishing.completed
    assert not caught.any()
    assert target.engine.stats().get("chunks_received", 0) == 0

    source.engine.source_open("k", deadline_s=60.0)
    source.engine.source_append("k", first_index=0, block_ids=SOURCE_IDS, last=True)
    assert isinstance(target.next_events()[0], TargetCompleted)
    assert target.bytes_of(TARGET_IDS) == source.bytes_of(SOURCE_IDS)
    assert not caught.any()
    stranger.close()


def test_the_context_cannot_be_read_or_written_by_peers():
    """RMA and active messages are off: their handlers do not exist in this process."""
    import ucxx._lib.libucxx as lib

    from pdd.transfer import ucx_transport

    transport = ucx_transport.UcxTransport()
    transport.open()
    try:
        flags = transport._context.feature_flags
        assert flags == lib.Feature.TAG.value | lib.Feature.WAKEUP.value
    finally:
        transport.close()
