"""Blocking calls, one after the other, in a thread of their own."""

import asyncio
import threading
from collections.abc import AsyncIterator
from functools import partial

import pytest

from pdd.replication.disk_thread import DiskThread


@pytest.fixture
async def disk() -> AsyncIterator[DiskThread]:
    thread = DiskThread("raft-disk-test")
    yield thread
    await asyncio.to_thread(thread.close)


async def test_calls_are_made_in_order_in_one_other_thread(disk: DiskThread) -> None:
    made: list[tuple[int, str]] = []

    def note(number: int) -> None:
        made.append((number, threading.current_thread().name))

    calls = [disk.do(partial(note, number)) for number in range(20)]
    await calls[-1]
    assert made == [(number, "raft-disk-test") for number in range(20)]


async def test_what_a_call_raises_is_raised_to_who_awaits_it_and_the_next_is_made(
    disk: DiskThread,
) -> None:
    def fail() -> None:
        raise OSError("no space left")

    failing = disk.do(fail)
    following = disk.do(lambda: None)
    with pytest.raises(OSError, match="no space left"):
        await failing
    await following


async def test_a_call_that_nobody_awaits_any_more_is_made_all_the_same(disk: DiskThread) -> None:
    begun, may_end = threading.Event(), threading.Event()
    made: list[str] = []

    def call() -> None:
        begun.set()
        may_end.wait(10)
        made.append("whole")

    waiting = disk.do(call)
    await asyncio.to_thread(begun.wait, 10)
    waiting.cancel()
    may_end.set()
    await disk.do(lambda: None)
    assert made == ["whole"]


async def test_close_waits_for_what_was_given_before() -> None:
    disk = DiskThread("raft-disk-test")
    made: list[int] = []
    for number in range(3):
        disk.do(partial(made.append, number))
    await asyncio.to_thread(disk.close)
    assert made == [0, 1, 2]
