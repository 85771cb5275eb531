"""Messages waiting to go out on one stream. Order is kept; what can share a message does."""

import asyncio
from collections import deque
from collections.abc import Collection, Iterable
from typing import Generic, TypeVar

from pdd.control.versions import BATCH_BYTES_MAX
from pdd.rpc.v1 import cluster_pb2

MessageT = TypeVar("MessageT")
StreamMessageT = TypeVar("StreamMessageT", cluster_pb2.NodeMessage, cluster_pb2.SchedulerMessage)

OUTBOX_LENGTH_MAX = 100_000
"""Eight seconds of 12,000 tokens/s, and some tens of megabytes. A peer that stands still for two (a
machine that is too full, a cold start beside it) is no lost peer: to plan its requests anew would
be more work still, just when there is too much."""


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
        self._emptied = asyncio.Event()
        self._emptied.set()
        self._is_closed = False

    def put(self, message: MessageT) -> None:
        """Queue a message; never blocks."""
        if len(self._messages) >= OUTBOX_LENGTH_MAX:
            self._overflown.set()
        else:
            self._messages.append(message)
            if not self._is_closed:
                self._emptied.clear()
        self._filled.set()

    async def take(self) -> list[MessageT]:
        """All that is queued; waits for the first. One loop turn's messages come together."""
        await self._filled.wait()
        taken = list(self._messages)
        self._messages.clear()
        self._filled.clear()
        self._emptied.set()
        return taken

    async def wait_empty(self) -> None:
        """Until all that was put was taken; at once after ``close``."""
        await self._emptied.wait()

    def close(self) -> None:
        """Nobody takes any more."""
        self._is_closed = True
        self._emptied.set()

    async def wait_overflow(self) -> None:
        """Raises OutboxOverflow when the bound was reached; messages are missing from then on."""
        await self._overflown.wait()
        raise OutboxOverflow(f"{OUTBOX_LENGTH_MAX} messages wait for a peer that does not read")


def coalesce(messages: Iterable[StreamMessageT], *, kinds: Collection[str]) -> list[StreamMessageT]:
    """Neighbours of one kind become one message of bounded size; the order of kinds is kept.

    ``kinds``: members of the oneof ``message`` that are lists, so that merging appends.
    """
    messages = list(messages)
    if len(messages) == 1:
        return messages  # to ask for its size costs as much as to send it
    merged: list[StreamMessageT] = []
    room_bytes = 0
    for message in messages:
        kind = message.WhichOneof("message")
        size_bytes = message.ByteSize()
        fits = bool(merged) and size_bytes <= room_bytes and kind in kinds
        if fits and merged[-1].WhichOneof("message") == kind:
            merged[-1].MergeFrom(message)
        else:
            merged.append(message)
            room_bytes = BATCH_BYTES_MAX
        room_bytes -= size_bytes
    return merged
