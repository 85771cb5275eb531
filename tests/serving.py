"""A server for commands, which run their own loops: in a thread beside the test."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any


@contextlib.contextmanager
def in_background(serve: Callable[[], AbstractAsyncContextManager[str]]) -> Iterator[str]:
    """What ``serve`` gives: an address."""
    ready = threading.Event()
    found: dict[str, Any] = {}

    async def run() -> None:
        async with serve() as address:
            found.update(address=address, stop=asyncio.Event(), loop=asyncio.get_running_loop())
            ready.set()
            await found["stop"].wait()

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    assert ready.wait(timeout=20)
    try:
        yield found["address"]
    finally:
        found["loop"].call_soon_threadsafe(found["stop"].set)
        thread.join()
