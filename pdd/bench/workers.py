"""Starts the generator's processes, begins them together, gathers what they saw.

A run in progress is ended by ``LoadRun.stop`` (Ctrl-C) and then still gives its samples.
"""

import multiprocessing
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Self

import numpy as np

from pdd.bench.generator import GeneratorSpec, Progress
from pdd.bench.percentiles import Summary, summary
from pdd.bench.samples import Samples, merge
from pdd.bench.worker import Begin, Broken, Ready, Result, Stop, run_worker
from pdd.core.errors import PddError

_START_TIMEOUT_S = 30.0
_BEGIN_IN_S = 0.05
_STOP_TIMEOUT_S = 10.0
_UNSTAMPED_FRACTION_MAX = 0.01
KERNEL, READ = "kernel", "read"


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorReport:
    """What the generator itself cost, and how exact it was.

    ``lateness``: how long after they were due requests left (open loop). ``loop_lag``: how long its
    event loop kept a timer waiting. ``arrival_clock``: who says when bytes came, ``kernel`` or
    ``read``: the loop as it reads them, which cannot be better than its lag; ``kernel`` has
    ``unstamped_reads`` that are the loop's, 1 % of ``reads`` at most. ``clock_steps``: how often
    this machine's time was set meanwhile (see ``arrival_clock``).
    """

    processes: int
    cpu_s: float
    busiest_cpu_fraction: float
    cpu_us_per_token: float | None
    lateness_ms: Summary
    loop_lag_ms: Summary
    waited_for_connection: int
    cut_off: int
    arrival_clock: str
    reads: int
    unstamped_reads: int
    clock_steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A run's samples. ``interrupted``: it was stopped before its end. ``origin_s``: what all its
    offsets count from, on CLOCK_MONOTONIC."""

    samples: Samples
    origin_s: float
    generator: GeneratorReport
    interrupted: bool

    @property
    def duration_s(self) -> float:
        """From the load's start to the last answer's end."""
        return float(self.samples.end_s.max()) if self.samples.count else 0.0


def clock_of(*, reads: int, unstamped_reads: int) -> str:
    """Who said when bytes came. Where none came, nobody has seen that the kernel would."""
    if reads and unstamped_reads <= _UNSTAMPED_FRACTION_MAX * reads:
        return KERNEL
    return READ


def run_load(
    spec: GeneratorSpec,
    *,
    process_count: int,
    on_progress: Callable[[Progress], None] = lambda _: None,
    on_begin: Callable[[], None] = lambda: None,
    interrupt: threading.Event | None = None,
) -> Load:
    """Run it to its end. Ctrl-C stops it and gives what there is.

    Args:
        on_progress: called about twice a second with the sums of all processes.
        on_begin: called when every process is ready, just before the load begins.
        interrupt: stops it, too; instead of Ctrl-C where this is not the main thread.
    Raises:
        PddError: a process could not work, or died.
    """
    with LoadRun(spec, process_count=process_count) as run:
        run.wait_ready()
        with _stop_on_ctrl_c(interrupt or threading.Event()) as interrupt:
            on_begin()
            run.begin()
            is_stopped = False
            while not run.finished:
                on_progress(run.poll(timeout_s=0.5))
                if interrupt.is_set() and not is_stopped:
                    is_stopped = True
                    run.stop()
        return run.load(interrupted=is_stopped)


@contextmanager
def _stop_on_ctrl_c(interrupt: threading.Event) -> Iterator[threading.Event]:
    """Ctrl-C only sets the event: an exception could cut a message in two. A second one raises.

    Outside of the main thread there are no signals to wait for.
    """
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        if interrupt.is_set():
            raise KeyboardInterrupt
        interrupt.set()

    before = signal.signal(signal.SIGINT, on_signal)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, before)


class LoadRun:
    """The processes of one run, as a context: none of them outlives it."""

    def __init__(self, spec: GeneratorSpec, *, process_count: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._processes: list[BaseProcess] = []
        self._pipes: list[Connection[object, object]] = []
        self._orders: list[Connection[object, object]] = []
        self._progress = [Progress()] * process_count
        self._results: list[Result | None] = [None] * process_count
        self._stop_by_s: float | None = None
        self._origin_s = 0.0
        for index in range(process_count):
            from_process, outbox = context.Pipe(duplex=False)
            inbox, to_process = context.Pipe(duplex=False)
            process = context.Process(
                target=run_worker,
                args=(spec.share(index, process_count), inbox, outbox),
                name=f"load generator {index}",
                daemon=True,
            )
            process.start()
            inbox.close()
            outbox.close()
            self._processes.append(process)
            self._pipes.append(from_process)
            self._orders.append(to_process)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in (*self._orders, *self._pipes):
            pipe.close()  # which ends a process that still runs
        for process in self._processes:
            process.join(timeout=2.0)
            if process.is_alive():
                process.kill()
                process.join()

    @property
    def finished(self) -> bool:
        return all(result is not None for result in self._results)

    def wait_ready(self) -> None:
        """Until every process could begin."""
        deadline_s = time.monotonic() + _START_TIMEOUT_S
        for index, pipe in enumerate(self._pipes):
            if not pipe.poll(max(0.0, deadline_s - time.monotonic())):
                raise PddError(
                    f"load generator {index} did not start within {_START_TIMEOUT_S:g} s; the "
                    "machine is too busy"
                )
            message = self._receive(index)
            assert isinstance(message, Ready), message

    def begin(self) -> None:
        """Begin in a moment, all at once."""
        self._origin_s = time.monotonic() + _BEGIN_IN_S
        for order in self._orders:
            order.send(Begin(self._origin_s))

    def poll(self, *, timeout_s: float) -> Progress:
        """Take news, waiting at most ``timeout_s``; the sums of all processes."""
        waiting = [
            pipe for pipe, result in zip(self._pipes, self._results, strict=True) if not result
        ]
        for pipe in wait(waiting, timeout=timeout_s):
            index = self._pipes.index(pipe)  # type: ignore[arg-type]  # one of ours
            message = self._receive(index)
            if isinstance(message, Result):
                self._results[index] = message
            elif isinstance(message, Progress):
                self._progress[index] = message
        if self._stop_by_s is not None and time.monotonic() > self._stop_by_s:
            raise PddError(f"a load generator did not stop within {_STOP_TIMEOUT_S:g} s")
        return Progress(
            **{
                field.name: sum(getattr(one, field.name) for one in self._progress)
                for field in fields(Progress)
            }
        )

    def stop(self) -> None:
        """Send nothing more; what is open is dropped. ``poll`` goes on until all have told."""
        self._stop_by_s = time.monotonic() + _STOP_TIMEOUT_S
        for order, result in zip(self._orders, self._results, strict=True):
            if result is None:
                order.send(Stop())

    def load(self, *, interrupted: bool) -> Load:
        """What all of them saw; call it when they have finished."""
        results = [result for result in self._results if result is not None]
        samples = merge([result.samples for result in results])
        cpu_s = sum(result.cpu_s for result in results)
        events = len(samples.events)
        reads = sum(result.read_count for result in results)
        unstamped = sum(result.unstamped_count for result in results)
        return Load(
            samples=samples,
            origin_s=self._origin_s,
            interrupted=interrupted,
            generator=GeneratorReport(
                processes=len(results),
                cpu_s=round(cpu_s, 3),
                busiest_cpu_fraction=round(
                    max(result.cpu_s / max(result.wall_s, 1e-9) for result in results), 3
                ),
                cpu_us_per_token=round(cpu_s / events * 1e6, 2) if events else None,
                lateness_ms=summary(np.concatenate([one.lateness_s for one in results])),
                loop_lag_ms=summary(np.concatenate([one.loop_lag_s for one in results])),
                waited_for_connection=sum(result.waited_count for result in results),
                cut_off=sum(result.cut_off_count for result in results),
                arrival_clock=clock_of(reads=reads, unstamped_reads=unstamped),
                reads=reads,
                unstamped_reads=unstamped,
                clock_steps=sum(result.clock_step_count for result in results),
            ),
        )

    def _receive(self, index: int) -> object:
        try:
            message = self._pipes[index].recv()
        except (EOFError, ConnectionError) as error:
            self._processes[index].join(timeout=2.0)
            code = self._processes[index].exitcode
            raise PddError(f"load generator {index} died with exit code {code}") from error
        if isinstance(message, Broken):
            raise PddError(f"load generator: {message.text}")
        return message
