"""One thread for blocking calls to the disk, one after the other, in the order they were given.

A commit waits for one such call on each replica, so what handing it over costs is part of every
commit: an executor's futures and locks take twice the CPU of a queue and one call back (175 and 110
us with a sync of 57 us, on a busy machine).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue

_Job = tuple[asyncio.Future[None], Callable[[], None]]


class DiskThread:
    """Bound: its callers', who wait. Make it and use it in one loop."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def do(self, call: Callable[[], None]) -> asyncio.Future[None]:
        """``call`` in the thread; what it raises is raised to who awaits this. It is made even if
        nobody does any more: the disk must not be left in the middle of something."""
        done: asyncio.Future[None] = self._loop.create_future()
        self._jobs.put((done, call))
        return done

    def close(self) -> None:
        """Waits for the call under way and those before this. Not in the loop's thread: the call's
        end is told there."""
        self._jobs.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            done, call = job
            error: BaseException | None = None
            try:
                call()
            except BaseException as raised:  # raised again where it is awaited
                error = raised
            self._tell(done, error)

    def _tell(self, done: asyncio.Future[None], error: BaseException | None) -> None:
        try:
            self._loop.call_soon_threadsafe(_settle, done, error)
        except RuntimeError:
            return  # the loop is closed: nobody waits


def _settle(done: asyncio.Future[None], error: BaseException | None) -> None:
    if done.done():
        return  # cancelled
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)
