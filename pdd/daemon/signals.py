"""SIGTERM and SIGINT as an event on the loop."""

import asyncio
import signal


def stop_on_signals() -> asyncio.Event:
    """Set when the daemon is asked to stop. Further signals change nothing: stopping is bounded."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, stop.set)
    return stop


async def first_of(stop: asyncio.Event, *work: "asyncio.Task[object]") -> None:
    """Wait for the stop signal or for the first of ``work`` to end."""
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({stopped, *work}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()
