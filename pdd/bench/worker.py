"""What runs in one generator process. ``workers`` starts it and talks to it over two pipes.

::

    parent                          process
      <------------------- Ready      host looked up, nothing sent
      Begin(origin_s) ------------>   load begins at that time of the shared monotonic clock
      <---------------- Progress ...  twice a second
      Stop ----------------------->   Ctrl-C: drop what is open
      <------------------- Result     or Broken(text) at any time

The process ends when its inbox does: nobody is left to tell. Two pipes, because the event loop
makes what it watches non-blocking, and a result does not fit into a pipe's buffer.
"""

import asyncio
import gc
import resource
import signal
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection

import numpy as np
import uvloop

from pdd.bench.generator import Generator, GeneratorSpec
from pdd.bench.samples import Floats, Samples, columns

_PROGRESS_S = 0.5


@dataclass(frozen=True, slots=True)
class Ready:
    """Waits for Begin."""


@dataclass(frozen=True, slots=True)
class Begin:
    """``origin_s``: on CLOCK_MONOTONIC, which all processes of a machine share."""

    origin_s: float


@dataclass(frozen=True, slots=True)
class Stop:
    """End early."""


@dataclass(frozen=True, slots=True)
class Broken:
    """It could not work."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a process saw, and what it cost.

    ``cpu_s``: CPU of this process from the load's start to its end, ``wall_s``: that time.
    ``*_count`` of reads and clock steps: see ``arrival_clock``.
    """

    samples: Samples
    lateness_s: Floats
    loop_lag_s: Floats
    cpu_s: float
    wall_s: float
    cut_off_count: int
    waited_count: int
    read_count: int
    unstamped_count: int
    clock_step_count: int


def run_worker(
    spec: GeneratorSpec,
    inbox: "Connection[object, object]",
    outbox: "Connection[object, object]",
) -> None:
    """The process's main function."""
    # Ctrl-C reaches the whole group of processes; the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        uvloop.run(_work(spec, inbox, outbox))
    except (BrokenPipeError, EOFError, ConnectionError):
        return  # the parent is gone
    finally:
        inbox.close()
        outbox.close()


async def _work(
    spec: GeneratorSpec,
    inbox: "Connection[object, object]",
    outbox: "Connection[object, object]",
) -> None:
    loop = asyncio.get_running_loop()
    generator = Generator(spec, clock=time.monotonic)
    try:
        await generator.prepare()
    except OSError as error:
        outbox.send(Broken(f"{spec.target.host}: {error}"))
        return
    begun: asyncio.Future[float] = loop.create_future()

    def on_message() -> None:
        try:
            message = inbox.recv()
        except (EOFError, OSError):
            loop.remove_reader(inbox.fileno())
            message = Stop()
        if isinstance(message, Begin):
            begun.set_result(message.origin_s)
        elif not begun.done():
            begun.cancel()
        else:
            generator.stop()

    loop.add_reader(inbox.fileno(), on_message)
    outbox.send(Ready())
    try:
        origin_s = await begun
    except asyncio.CancelledError:
        if begun.cancelled():
            return  # stopped before it began
        raise
    ticker = loop.create_task(_tell(generator, outbox))
    # Nothing here makes cycles in numbers that matter; a collection would be a pause.
    gc.collect()
    gc.freeze()
    gc.disable()
    cpu_before_s, began_s = time.process_time(), time.monotonic()
    try:
        await generator.run(origin_s=origin_s)
    finally:
        ticker.cancel()
        gc.enable()
    cpu_s = time.process_time() - cpu_before_s
    wall_s = time.monotonic() - began_s
    loop.remove_reader(inbox.fileno())
    outbox.send(generator.progress)
    outbox.send(
        Result(
            samples=columns(generator.samples),
            lateness_s=np.array(generator.lateness_s),
            loop_lag_s=np.array(generator.loop_lag_s),
            cpu_s=cpu_s,
            wall_s=wall_s,
            cut_off_count=generator.cut_off_count,
            waited_count=generator.waited_count,
            read_count=generator.arrivals.read_count,
            unstamped_count=generator.arrivals.unstamped_count,
            clock_step_count=generator.arrivals.step_count,
        )
    )


async def _tell(generator: Generator, outbox: "Connection[object, object]") -> None:
    while True:
        await asyncio.sleep(_PROGRESS_S)
        outbox.send(generator.progress)
