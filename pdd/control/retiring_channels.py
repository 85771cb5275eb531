"""gRPC channels that carry their last calls, after new certificates or at a bound."""

import asyncio

import grpc.aio


class RetiringChannels:
    """Each closes when its calls are over, after its grace at the latest: so many seconds of new
    channels are the bound of what is here."""

    def __init__(self, *, grace_s: float) -> None:
        self._grace_s = grace_s
        self._closing: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._closing)

    def add(self, channel: grpc.aio.Channel) -> None:
        """No new call is made on it."""
        task = asyncio.create_task(channel.close(grace=self._grace_s))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def wait_closed(self) -> None:
        """At the end of the process."""
        if closing := list(self._closing):
            await asyncio.wait(closing)
