"""Shared memory between ranks: found by its description only, and read without danger."""

import dataclasses
import errno
import os
import threading

import pytest

from pdd.transfer.shared import PAGE_BYTES, SharedSlots, attach, host_id


@pytest.fixture
def slots():
    made = SharedSlots(slot_bytes=PAGE_BYTES + 1, slot_count=3, per_peer=2)
    yield made
    made.close()


def test_a_target_reads_what_the_source_has_written_into_a_slot(slots):
    slot = slots.take("peer")
    slots.part(slot, 5)[:] = range(5)
    mapped = attach(slots.address(b""), host=host_id())
    start = slots.offset(slot)
    assert mapped[start : start + 5].tolist() == [0, 1, 2, 3, 4]
    assert not mapped.flags.writeable


def test_slots_begin_at_pages_and_are_lent_up_to_both_bounds(slots):
    assert slots.slot_bytes == 2 * PAGE_BYTES
    lent = [slots.take("one"), slots.take("one"), slots.take("one"), slots.take("two")]
    assert sorted(slot for slot in lent if slot is not None) == [0, 1, 2]
    assert lent[2] is None  # two for one peer
    assert slots.take("two") is None  # three over all
    slots.give("one", lent[0])
    assert slots.take("two") == lent[0]


def held_bytes(slots):
    return os.fstat(slots.address(b"").fd).st_blocks * 512


def test_a_slot_has_all_its_memory_before_it_is_lent_and_others_have_none(slots):
    assert held_bytes(slots) == 0
    slots.take("one")
    assert held_bytes(slots) == slots.size_bytes // 3
    slots.take("one")
    assert held_bytes(slots) == slots.size_bytes // 3 * 2


class NoMemory(SharedSlots):
    """The kernel has pages for ``count`` slots."""

    def __init__(self, count, **sizes):
        super().__init__(**sizes)
        self._map = Populated(self._map, count)


class Populated:
    def __init__(self, mapped, count):
        self._mapped, self._left = mapped, count

    def madvise(self, *arguments):
        if self._left == 0:
            raise OSError(errno.EFAULT, "a SIGBUS would have been generated")
        self._left -= 1

    def close(self):
        self._mapped.close()


def no_room(fd, offset, length):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_where_the_kernel_has_no_more_memory_the_slots_that_have_some_are_lent(monkeypatch, caplog):
    monkeypatch.setattr(os, "posix_fallocate", no_room)
    slots = NoMemory(1, slot_bytes=PAGE_BYTES, slot_count=3, per_peer=3)
    first = slots.take("one")
    assert slots.take("one") is None
    assert slots.slot_count == 1
    assert "no memory for another 8192 B" in caplog.text
    slots.give("one", first)
    assert slots.take("two") == first
    assert caplog.text.count("no memory") == 1
    slots.close()


def test_an_older_kernel_provides_the_memory_by_its_file(monkeypatch):
    monkeypatch.setattr("pdd.transfer.shared._POPULATE_WRITE", 10_000)  # EINVAL
    slots = SharedSlots(slot_bytes=PAGE_BYTES, slot_count=2, per_peer=2)
    slots.take("one")
    assert held_bytes(slots) == slots.size_bytes // 2
    slots.close()


@pytest.mark.parametrize(
    "change",
    [
        {"name": "pdd-kv-of-another-process"},
        {"name": ""},
        {"host": "elsewhere"},
        {"host": ""},
        {"size_bytes": 3 * PAGE_BYTES},
        {"size_bytes": 0},
        {"fd": 1 << 20},
        {"pid": 0},
    ],
)
def test_memory_that_is_not_the_described_one_is_not_mapped(slots, change):
    address = dataclasses.replace(slots.address(b""), **change)
    assert attach(address, host=host_id()) is None


def test_memory_whose_size_could_still_change_is_not_mapped(slots):
    fd = os.memfd_create("pdd-kv-soft", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, slots.size_bytes)
        soft = dataclasses.replace(slots.address(b""), fd=fd, name="pdd-kv-soft")
        assert attach(soft, host=host_id()) is None
    finally:
        os.close(fd)


def test_a_mapping_outlives_the_source():
    made = SharedSlots(slot_bytes=PAGE_BYTES, slot_count=1, per_peer=1)
    made.part(made.take("peer"), 1)[:] = 7
    address = made.address(b"")
    mapped = attach(address, host=host_id())
    made.close()
    assert mapped[PAGE_BYTES] == 7
    assert attach(address, host=host_id()) is None


def test_looking_for_memory_where_a_recycled_pid_has_a_pipe_does_not_block(slots, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    fd = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)  # nobody writes: opening it again would wait
    address = dataclasses.replace(slots.address(b""), fd=fd)
    found = []
    looking = threading.Thread(
        target=lambda: found.append(attach(address, host=host_id())), daemon=True
    )
    looking.start()
    looking.join(5.0)
    blocked = looking.is_alive()
    if blocked:
        os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))  # lets it go
        looking.join()
    os.close(fd)
    assert not blocked
    assert found == [None]
