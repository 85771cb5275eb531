"""How fast the generator is when the server costs nothing.

The server (``ceiling_server``) runs in a process of its own and writes one event per packet. Two
figures come out: tokens per second that really passed, for which generator and server share this
machine, and tokens per second at one busy core of each generator process, from its CPU time. The
smaller one is the ceiling; a load near it measures the generator.
"""

import asyncio
import multiprocessing
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection

import uvloop

from pdd.bench.ceiling_server import CeilingServer
from pdd.bench.generator import ClosedLoop, GeneratorSpec
from pdd.bench.prompts import UNMEASURED
from pdd.bench.target import BodyOptions, Endpoint, Target
from pdd.bench.workers import run_load
from pdd.bench.workload import Shape
from pdd.core.errors import PddError

_START_TIMEOUT_S = 20.0
_TOKENS_PER_STREAM = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """See the module. ``cpu_us_per_token``: of the generator."""

    tokens_per_s: float
    reached_tokens_per_s: float
    cpu_us_per_token: float


def measure_ceiling(*, process_count: int, streams: int = 64, seconds: float = 1.5) -> Ceiling:
    """Run the generator against a server that costs next to nothing. Takes a second longer.

    Raises:
        PddError: it could not be measured.
    """
    with ceiling_server() as port:
        spec = GeneratorSpec(
            target=Target(host="127.0.0.1", port=port),
            body=BodyOptions(endpoint=Endpoint.COMPLETIONS, model="nothing"),
            calibration=UNMEASURED,
            seed=1,
            closed=ClosedLoop(
                clients=streams, shape=Shape(input_tokens=16, output_tokens=_TOKENS_PER_STREAM)
            ),
            duration_s=seconds,
            grace_s=10.0,
        )
        load = run_load(spec, process_count=process_count)
    events = len(load.samples.events)
    if load.interrupted:
        raise KeyboardInterrupt
    if not events or load.generator.cpu_us_per_token is None:
        raise PddError(f"the generator got no token out of its own server: {load.samples.details}")
    reached = events / load.duration_s
    by_cpu = process_count * 1e6 / load.generator.cpu_us_per_token
    return Ceiling(
        tokens_per_s=round(min(reached, by_cpu)),
        reached_tokens_per_s=round(reached),
        cpu_us_per_token=load.generator.cpu_us_per_token,
    )


@contextmanager
def ceiling_server() -> Iterator[int]:
    """The server's port, for as long as the context lasts."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs,), name="ceiling server", daemon=True)
    process.start()
    theirs.close()
    try:
        if not ours.poll(_START_TIMEOUT_S):
            raise PddError(f"the ceiling's server did not start within {_START_TIMEOUT_S:g} s")
        yield int(ours.recv())
    finally:
        ours.close()
        process.join(timeout=2.0)
        if process.is_alive():
            process.kill()
            process.join()


def _serve(pipe: "Connection[object, object]") -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    uvloop.run(_serve_until_gone(pipe))


async def _serve_until_gone(pipe: "Connection[object, object]") -> None:
    server, gone = CeilingServer(), asyncio.Event()
    await server.start()
    pipe.send(server.port)
    # The pipe becomes readable only when its other end is closed.
    asyncio.get_running_loop().add_reader(pipe.fileno(), gone.set)
    await gone.wait()
    asyncio.get_running_loop().remove_reader(pipe.fileno())
    await server.stop()
