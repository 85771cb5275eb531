"""The requests that are being answered: counted, bounded, and told when the process stops."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from pdd.core.errors import AdmissionRejected, NodeUnavailable


class OpenRequests:
    """Tasks that answer a request.

    At ``limit`` one more is refused. ``stop`` refuses new ones, waits a while for the open ones
    and cancels the rest; those find ``stopping`` set and tell their clients so.
    """

    def __init__(self, *, limit: int) -> None:
        self._limit = limit
        self._tasks: set[asyncio.Task[object]] = set()
        self._all_ended = asyncio.Event()
        self._all_ended.set()
        self.stopping = False

    def __len__(self) -> int:
        return len(self._tasks)

    @contextmanager
    def one(self) -> Iterator[None]:
        """Count the current task in.

        Raises:
            AdmissionRejected, NodeUnavailable: there is no room, or no time left.
        """
        if self.stopping:
            raise stopping_error()
        if len(self._tasks) >= self._limit:
            raise AdmissionRejected(
                f"{len(self._tasks)} requests are running on this scheduler, which is its limit; "
                "try again in 1 s",
                retry_after_s=1.0,
            )
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._all_ended.clear()
        try:
            yield
        finally:
            self._tasks.discard(task)
            if not self._tasks:
                self._all_ended.set()

    async def stop(self, *, grace_s: float) -> None:
        """Refuse new requests and end the open ones."""
        self.stopping = True
        try:
            async with asyncio.timeout(grace_s):
                await self._all_ended.wait()
        except TimeoutError:
            for task in self._tasks:
                task.cancel("the scheduler is stopping")


def stopping_error() -> NodeUnavailable:
    """What clients are told whose request cannot be finished any more."""
    return NodeUnavailable("this scheduler is stopping; send the request to another one")
