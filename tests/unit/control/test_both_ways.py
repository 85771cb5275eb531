"""What ends a stream of two directions, and what is made of it."""

import asyncio

import pytest

from pdd.control.both_ways import first_end


async def never() -> None:
    await asyncio.Event().wait()


async def broken(error: BaseException) -> None:
    raise error


async def test_the_first_way_to_end_ends_all() -> None:
    others: list[asyncio.Task[None] | None] = []

    async def other() -> None:
        others.append(asyncio.current_task())
        await never()

    assert await first_end(asyncio.sleep(0), other(), faults=()) is None
    (task,) = others
    assert task is not None
    await asyncio.wait({task})
    assert task.cancelled()


async def test_a_fault_is_told_and_a_bug_is_raised() -> None:
    fault = TimeoutError("silent")
    assert await first_end(broken(fault), never(), faults=(TimeoutError,)) is fault
    with pytest.raises(KeyError):
        await first_end(broken(KeyError("a bug")), never(), faults=(TimeoutError,))


async def test_a_way_that_grpc_cancels_ends_the_stream_and_not_whoever_waits_for_it() -> None:
    """A read that takes too long cancels its call; the write that hangs in it then raises
    CancelledError, though nobody has cancelled its task."""
    assert await first_end(broken(asyncio.CancelledError()), never(), faults=()) is None
    fault = TimeoutError("silent")
    ways = (broken(asyncio.CancelledError()), broken(fault))
    assert await first_end(*ways, faults=(TimeoutError,)) is fault


async def test_whoever_waits_can_be_cancelled() -> None:
    waiting = asyncio.create_task(first_end(never(), never(), faults=()))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait({waiting})
    assert waiting.cancelled()
