"""The requests that are being answered: counted, bounded, and told when the process stops."""

import asyncio
import contextlib
from typing import Protocol

from pdd.core.errors import AdmissionRejected, PddError, SchedulerStopping

_LAST_WORDS_S = 1.0
"""For requests that were told to stop, to tell their clients. A client that does not listen is not
waited for any longer: its connection is closed with the others."""


class Stoppable(Protocol):
    """A request that is being answered."""

    def stop(self, error: PddError) -> None:
        """End it and tell its client why. It is discarded when its client was told."""
        ...


class OpenRequests:
    """At ``limit`` one more is refused. ``stop`` refuses new ones, waits a while for the open ones
    and ends the rest."""

    def __init__(self, *, limit: int) -> None:
        self._limit = limit
        self._open: dict[Stoppable, None] = {}
        self._all_ended = asyncio.Event()
        self._all_ended.set()
        self.stopping = False

    def __len__(self) -> int:
        return len(self._open)

    def add(self, request: Stoppable) -> None:
        """Count a request in; ``discard`` must follow.

        Raises:
            AdmissionRejected, SchedulerStopping: there is no room, or no time left.
        """
        if self.stopping:
            raise stopping_error()
        if len(self._open) >= self._limit:
            raise AdmissionRejected(
                f"{len(self._open)} requests are running on this scheduler, which is its limit; "
                "try again in 1 s",
                retry_after_s=1.0,
            )
        self._open[request] = None
        self._all_ended.clear()

    def discard(self, request: Stoppable) -> None:
        """It is over. Idempotent."""
        self._open.pop(request, None)
        if not self._open:
            self._all_ended.set()

    async def stop(self, *, grace_s: float) -> None:
        """Refuse new requests and end the open ones."""
        self.stopping = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self._all_ended.wait()
        for request in list(self._open):
            request.stop(stopping_error())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_S):
                await self._all_ended.wait()


def stopping_error() -> SchedulerStopping:
    """What clients are told whose request cannot be finished any more."""
    return SchedulerStopping("this scheduler is stopping; send the request to another one")
