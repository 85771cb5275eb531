"""``pdd bench serve`` from its checked options to its report."""

import asyncio
import random
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pdd.bench.arrivals import Arrivals, arrival_times_s
from pdd.bench.ceiling import Ceiling, measure_ceiling
from pdd.bench.generator import ClosedLoop, GeneratorSpec, Progress
from pdd.bench.goodput import Objectives
from pdd.bench.picture import check_picture, draw
from pdd.bench.probe import calibrate, find_model
from pdd.bench.prompts import Calibration
from pdd.bench.report import report
from pdd.bench.target import BodyOptions, Target
from pdd.bench.traces import TraceRequest, parse_trace
from pdd.bench.workers import Load, run_load
from pdd.bench.workload import PlannedRequest, Shape, requests_of_shape, requests_of_trace
from pdd.core.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """Exactly one of ``arrivals``, ``trace`` and ``clients`` is set; ``body.model`` may be empty.

    ``trace_speed``: 2 replays it in half the time.
    """

    target: Target
    body: BodyOptions
    shape: Shape
    arrivals: Arrivals | None = None
    trace: Path | None = None
    trace_speed: float = 1.0
    clients: int | None = None
    duration_s: float | None = None
    request_count: int | None = None
    seed: int
    process_count: int
    connections_max: int
    timeout_s: float
    grace_s: float
    objectives: Objectives
    picture: Path | None = None
    with_ceiling: bool = True


Watch = Callable[[Progress], None]
"""Shows progress while it is open."""


def run_serve(
    options: ServeOptions,
    *,
    say: Callable[[str], None],
    watch: Callable[[float | None, int | None], AbstractContextManager[Watch]],
) -> tuple[dict[str, Any], bool]:
    """Measure; the report, and whether Ctrl-C ended it early.

    Args:
        watch: opens a display for a run of so many seconds and requests, where these are known.
    Raises:
        PddError: nothing could be measured, or the picture cannot be drawn.
    """
    if options.picture is not None:
        check_picture(options.picture)
    trace = None if options.trace is None else read_trace(options.trace)
    body = options.body
    if not body.model:
        model = asyncio.run(find_model(options.target))
        body = BodyOptions(**{**_fields(body), "model": model})
    calibration = asyncio.run(calibrate(options.target, body, seed=options.seed))
    _say_calibration(calibration, say)
    ceiling = _ceiling(options, say)
    planned = plan(options, trace, overhead_tokens=calibration.overhead_tokens)
    spec = GeneratorSpec(
        target=options.target,
        body=body,
        calibration=calibration,
        seed=options.seed,
        planned=planned,
        closed=_closed(options, trace),
        request_count=options.request_count,
        duration_s=options.duration_s,
        timeout_s=options.timeout_s,
        grace_s=options.grace_s,
        connections_max=options.connections_max,
    )
    total = len(planned) or options.request_count
    span_s = planned[-1].due_s if planned and options.clients is None else options.duration_s
    say(f"seed {options.seed}, {options.process_count} generator process(es), {describe(options)}")
    with watch(span_s, total) as show:
        load = run_load(
            spec,
            process_count=options.process_count,
            on_progress=show,
            on_begin=lambda: say("the load begins; Ctrl-C ends it and prints what there is"),
        )
    document = report(
        load,
        described=_described(options, body, calibration),
        objectives=options.objectives,
        ceiling=ceiling,
    )
    if options.picture is not None:
        draw(options.picture, load.samples, document, title=_title(options, body, load))
        say(f"picture: {options.picture}")
    return document, load.interrupted


def read_trace(path: Path) -> list[TraceRequest]:
    """Raises ConfigError, naming file and line."""
    try:
        with path.open(encoding="utf-8") as lines:
            return parse_trace(lines, name=str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--trace {path}: {error}") from error


def plan(
    options: ServeOptions, trace: list[TraceRequest] | None, *, overhead_tokens: float
) -> list[PlannedRequest]:
    """Every request of an open loop or of a trace; none for a closed loop, which makes its own.

    Raises:
        ConfigError: there would be none, or too many.
    """
    rng = random.Random(options.seed)  # noqa: S311  # a load, no secret
    if trace is not None:
        return requests_of_trace(
            trace,
            speed=options.trace_speed,
            duration_s=None if options.clients else options.duration_s,
            request_count=options.request_count,
            rng=rng,
            overhead_tokens=overhead_tokens,
        )
    if options.arrivals is None:
        return []
    assert options.duration_s is not None
    times_s = arrival_times_s(
        options.arrivals,
        duration_s=options.duration_s,
        request_count=options.request_count,
        rng=rng,
    )
    if not times_s:
        raise ConfigError(
            f"{options.arrivals.rate_per_s:g} requests/s give no request within "
            f"{options.duration_s:g} s; raise --rate or --duration"
        )
    return requests_of_shape(options.shape, times_s, rng=rng, overhead_tokens=overhead_tokens)


def describe(options: ServeOptions) -> str:
    """The load in a few words."""
    if options.clients is not None:
        what = f"closed loop of {options.clients} clients"
    elif options.trace is not None:
        what = f"trace {options.trace.name} at {options.trace_speed:g}x"
    else:
        assert options.arrivals is not None
        what = f"{options.arrivals.kind.value} arrivals, {options.arrivals.rate_per_s:g}/s"
        if options.arrivals.burst_size > 1:
            what += f" in bursts of {options.arrivals.burst_size}"
    return what


def _closed(options: ServeOptions, trace: list[TraceRequest] | None) -> ClosedLoop | None:
    if options.clients is None:
        return None
    return ClosedLoop(clients=options.clients, shape=options.shape if trace is None else None)


def _ceiling(options: ServeOptions, say: Callable[[str], None]) -> Ceiling | None:
    if not options.with_ceiling:
        return None
    began_s = time.monotonic()
    ceiling = measure_ceiling(process_count=options.process_count)
    say(
        f"generator ceiling: {ceiling.tokens_per_s:,.0f} tokens/s, "
        f"{ceiling.cpu_us_per_token:g} us of CPU per token "
        f"(measured in {time.monotonic() - began_s:.1f} s)"
    )
    return ceiling


def _say_calibration(calibration: Calibration, say: Callable[[str], None]) -> None:
    if calibration.measured:
        say(
            f"the server counts {calibration.tokens_per_word:.2f} tokens per word and "
            f"{calibration.overhead_tokens:.0f} per prompt"
        )
    else:
        say("the server gives no usage: lengths of prompts are estimated, tokens are events")


def _fields(body: BodyOptions) -> dict[str, Any]:
    return {name: getattr(body, name) for name in BodyOptions.__slots__}


def _described(
    options: ServeOptions, body: BodyOptions, calibration: Calibration
) -> dict[str, Any]:
    return {
        "url": options.target.url,
        "model": body.model,
        "endpoint": body.endpoint.value,
        "mode": "closed" if options.clients is not None else "open",
        "clients": options.clients,
        "arrivals": None if options.arrivals is None else asdict(options.arrivals),
        "trace": None if options.trace is None else options.trace.name,
        "trace_speed": options.trace_speed,
        "shape": None if options.trace is not None else asdict(options.shape),
        "duration_s": options.duration_s,
        "requests": options.request_count,
        "seed": options.seed,
        "timeout_s": options.timeout_s,
        "calibration": asdict(calibration),
    }


def _title(options: ServeOptions, body: BodyOptions, load: Load) -> str:
    return (
        f"{body.model} at {options.target.url}: {describe(options)}, {load.samples.count} requests "
        f"in {load.duration_s:.1f} s, seed {options.seed}"
    )
