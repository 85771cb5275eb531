"""A slot of shared memory that is filled anew while it is copied is noticed, digests or not."""

import itertools
import sys
import threading

import numpy as np
import pytest

from pdd.transfer.pool import BlockPool
from pdd.transfer.shared import PAGE_BYTES, SharedSlots, SlotReader, attach
from pdd.wire.record import Record, RecordKind

BLOCK_BYTES = 64
BLOCKS = 6
CHUNK_BYTES = BLOCK_BYTES * BLOCKS


@pytest.fixture
def slots():
    made = SharedSlots(slot_bytes=PAGE_BYTES, slot_count=1, per_peer=1)
    yield made
    made.close()


class Writer:
    """A source that fills its one slot again and again, in steps that a test can stop between."""

    def __init__(self, slots, *, part_bytes=BLOCK_BYTES, size_bytes=CHUNK_BYTES):
        self.slots, self.slot = slots, slots.take("peer")
        self.header = slots.header(self.slot)
        self.part_bytes, self.size_bytes = part_bytes, size_bytes

    def fill(self, value, *, nonce, serial):
        """Yields before each change of memory; returns the record."""
        yield
        self.header.begin()
        packed = self.slots.part(self.slot, self.size_bytes)
        for at in range(0, self.size_bytes, self.part_bytes):
            yield
            packed[at : at + self.part_bytes] = value
        yield
        generation = self.header.end(nonce=nonce, serial=serial)
        return Record(
            kind=RecordKind.CHUNK,
            nonce=nonce,
            serial=serial,
            block_count=BLOCKS,
            size_bytes=self.size_bytes,
            piece_bytes=self.size_bytes,
            shared_generation=generation,
            shared_page=self.slots.offset(self.slot) // PAGE_BYTES + 1,
        )


def run(steps):
    """To its end; what it returns."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def copied(slots, record, *, between=lambda: None):
    """The blocks, and whether they are said to be right; ``between`` runs after each piece."""
    pool = BlockPool.contiguous(np.zeros(CHUNK_BYTES, np.uint8), block_bytes=BLOCK_BYTES)
    mapped = attach(slots.address(b""), host=slots.host)

    def copy(packed):
        between()
        pool.scatter(range(BLOCKS), packed, lambda piece: between())

    whole = SlotReader().copy(mapped, record, copy)
    return set(pool.memory.tolist()), whole


def test_what_was_announced_is_copied_and_said_to_be_right(slots):
    record = run(Writer(slots).fill(7, nonce=1, serial=0))
    assert copied(slots, record) == ({7}, True)


@pytest.mark.parametrize("again", [(1, 0), (1, 1), (2, 0)], ids=["same", "serial", "nonce"])
def test_a_slot_that_was_filled_anew_before_the_copy_is_overtaken(slots, again):
    """Also under the nonce and the serial of before: a lane can begin anew with them."""
    writer = Writer(slots)
    record = run(writer.fill(7, nonce=1, serial=0))
    run(writer.fill(8, nonce=again[0], serial=again[1]))
    assert copied(slots, record)[1] is False


FILL_STEPS = BLOCKS + 2  # looks at the writer between begin, each part, and end


@pytest.mark.parametrize(
    ("before", "started_at"),
    [*itertools.product(range(FILL_STEPS + 1), range(BLOCKS + 1))],
)
def test_no_interleaving_of_one_refill_and_one_copy_is_taken_for_right(slots, before, started_at):
    """``before`` steps of the refill are done before the copy; the rest one by one, from the piece
    ``started_at`` of the copy on."""
    writer = Writer(slots)
    record = run(writer.fill(7, nonce=1, serial=0))
    refill = writer.fill(8, nonce=1, serial=0)
    next(refill)
    for _ in range(before):
        next(refill, None)
    pieces = itertools.count()

    def between():
        if next(pieces) >= started_at:
            next(refill, None)

    values, whole = copied(slots, record, between=between)
    assert whole is False or values == {7}
    if before:
        assert whole is False


def test_a_slot_being_written_when_the_source_dies_is_never_right(slots):
    writer = Writer(slots)
    record = run(writer.fill(7, nonce=1, serial=0))
    refill = writer.fill(8, nonce=1, serial=0)
    for _ in range(4):
        next(refill)
    assert copied(slots, record)[1] is False
    record = run(writer.fill(9, nonce=3, serial=0))  # and one that begins after an odd number
    assert copied(slots, record) == ({9}, True)


def test_a_record_that_points_outside_the_memory_is_told_from_an_overtaken_one(slots):
    record = run(Writer(slots).fill(7, nonce=1, serial=0))
    mapped = attach(slots.address(b""), host=slots.host)
    for page in (1, 3, 1 << 20):
        outside = Record(
            kind=RecordKind.CHUNK,
            nonce=1,
            serial=0,
            block_count=1,
            size_bytes=PAGE_BYTES,
            piece_bytes=PAGE_BYTES,
            shared_generation=record.shared_generation,
            shared_page=page,
        )
        assert SlotReader().copy(mapped, outside, lambda packed: None) is None


def test_a_source_that_never_waits_is_never_believed_wrongly():
    """Two threads on two mappings: the copies run at once, since numpy lets the interpreter go."""
    size = 1 << 20
    slots = SharedSlots(slot_bytes=size, slot_count=1, per_peer=1)
    writer = Writer(slots, part_bytes=size, size_bytes=size)
    mapped = attach(slots.address(b""), host=slots.host)
    latest, stop = [run(writer.fill(0, nonce=1, serial=0))], threading.Event()
    value_of = {latest[0].shared_generation: 0}

    def write():
        for serial in itertools.count(1):
            if stop.is_set():
                return
            record = run(writer.fill(serial % 251, nonce=1, serial=serial))
            value_of[record.shared_generation] = serial % 251
            latest[0] = record

    thread = threading.Thread(target=write)
    thread.start()
    landed, reader = np.zeros(size, np.uint8), SlotReader()
    right = overtaken = 0
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        while right < 50 or overtaken < 50:
            record = latest[0]
            if reader.copy(mapped, record, lambda packed: np.copyto(landed, packed)):
                right += 1
                value = value_of[record.shared_generation]
                assert (landed.min(), landed.max()) == (value, value)
            else:
                overtaken += 1
    finally:
        sys.setswitchinterval(interval_s)
        stop.set()
        thread.join()
        slots.close()
