"""The directions of one stream, side by side, until the first of them ends."""

import asyncio
from collections.abc import Coroutine
from typing import Any


async def first_end(
    *ways: Coroutine[Any, Any, Any], faults: tuple[type[Exception], ...]
) -> Exception | None:
    """Run all until one ends, then cancel the others. Returns what broke it; None: it just ended.

    ``faults``: what may break a stream. Anything else that one of them raises is raised.
    """
    tasks = [asyncio.create_task(way) for way in ways]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        fault = None
        for task in done:
            if (error := task.exception()) is not None:
                if not isinstance(error, faults):
                    raise error
                fault = error
        return fault
    finally:
        for task in tasks:
            task.cancel()
