"""Messages waiting to go out on one stream. Order is kept; what can share a message does."""

import asyncio
from collections import deque
from typing import Generic, TypeVar

MessageT = TypeVar("MessageT")

OUTBOX_LENGTH_MAX = 20_000


class OutboxOverflow(Exception):
    """The other end has not read for so long that the stream is given up."""


class Outbox(Generic[MessageT]):
    """Single reader, any number of writers on one event loop.

    Bounded: at ``OUTBOX_LENGTH_MAX`` waiting messages ``wait_overflow`` raises OutboxOverflow,
    which ends the stream; both ends then treat the other as lost and their requests are planned
    anew. (``take`` cannot tell: its caller is stuck in a write at that moment.)
    """

    def __init__(self) -> None:
        self._messages: deque[MessageT] = deque()
        self._filled = asyncio.Event()
        self._overflown = asyncio.Event()

    def put(self, message: MessageT) -> None:
        """Queue a message; never blocks."""
        if len(self._messages) >= OUTBOX_LENGTH_MAX:
            self._overflown.set()
        else:
            self._messages.append(message)
        self._filled.set()

    async def take(self) -> list[MessageT]:
        """All that is queued; waits for the first. One loop turn's messages come together."""
        await self._filled.wait()
        taken = list(self._messages)
        self._messages.clear()
        self._filled.clear()
        return taken

    async def wait_overflow(self) -> None:
        """Raises OutboxOverflow when the bound was reached; messages are missing from then on."""
        await self._overflown.wait()
        raise OutboxOverflow(f"{OUTBOX_LENGTH_MAX} messages wait for a peer that does not read")
