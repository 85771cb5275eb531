"""The directions of one stream, side by side, until the first of them ends."""

import asyncio
from collections.abc import Coroutine
from typing import Any


async def first_end(
    *ways: Coroutine[Any, Any, Any], faults: tuple[type[Exception], ...]
) -> Exception | None:
    """Run all until one ends, then cancel the others. Returns what broke it; None: it just ended.

    ``faults``: what may break a stream. Anything else that one of them raises is raised, save
    CancelledError: nobody has cancelled it yet, so it is gRPC's word for a call that was. (A read
    cancels its call when it takes too long; a write that hangs then raises that.) Raised here it
    would pass for the end of whoever waits, and a stream would never be opened again.
    """
    tasks = [asyncio.create_task(way) for way in ways]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        fault = None
        for task in done:
            if task.cancelled():
                continue
            if (error := task.exception()) is not None:
                if not isinstance(error, faults):
                    raise error
                fault = error
        return fault
    finally:
        for task in tasks:
            task.cancel()
