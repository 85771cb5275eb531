"""A load whose mix shifts: long prompts and short outputs for a while, then the other way. Pure.

How much is asked for follows from the modelled times of the synthetic engine, so that the numbers
of nodes that each phase needs are known beforehand: ``load_nodes`` of the heavy duty.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pdd.bench.arrivals import ArrivalKind, Arrivals, arrival_times_s
from pdd.bench.workload import PlannedRequest, Shape, requests_of_shape
from pdd.core.errors import ConfigError
from pdd.core.identity import Role
from pdd.timing.roofline import Roofline, work_of


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineShape:
    """What the engines of the measurement are like."""

    cost: Roofline
    chunk_tokens: int
    sequence_count_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A part of the load. ``heavy``: the duty that it is heavy for."""

    heavy: Role
    begin_s: float
    duration_s: float
    shape: Shape
    rate_per_s: float


SHAPES = {
    Role.PREFILL: Shape(input_tokens=1500, output_tokens=8),
    Role.DECODE: Shape(input_tokens=120, output_tokens=60),
}


def prompt_s(engine: EngineShape, tokens: int) -> float:
    """A prompt alone on a prefill node."""
    starts = range(0, tokens, engine.chunk_tokens)
    return sum(
        engine.cost.step_s(work_of([(start, min(start + engine.chunk_tokens, tokens))]))
        for start in starts
    )


def output_s(engine: EngineShape, shape: Shape) -> float:
    """What an output takes of a full decode node: its share of the steps."""
    context = shape.input_tokens + shape.output_tokens // 2
    batch = [(context, context + 1)] * engine.sequence_count_max
    return shape.output_tokens * engine.cost.step_s(work_of(batch)) / engine.sequence_count_max


def phases_of(
    heavies: Sequence[Role], *, duration_s: float, load_nodes: float, engine: EngineShape
) -> list[Phase]:
    """One after another; each asks for ``load_nodes`` of its heavy duty."""
    phases = []
    for index, heavy in enumerate(heavies):
        shape = SHAPES[heavy]
        busy_s = (
            prompt_s(engine, shape.input_tokens)
            if heavy is Role.PREFILL
            else output_s(engine, shape)
        )
        phases.append(
            Phase(
                heavy=heavy,
                begin_s=index * duration_s,
                duration_s=duration_s,
                shape=shape,
                rate_per_s=load_nodes / busy_s,
            )
        )
    return phases


def shifting_load(phases: Sequence[Phase], *, seed: int) -> list[PlannedRequest]:
    """Poisson arrivals of every phase.

    Raises:
        ConfigError: there would be no request at all, or too many.
    """
    rng = random.Random(seed)  # noqa: S311  # a load, no secret
    planned: list[PlannedRequest] = []
    for phase in phases:
        arrivals = Arrivals(kind=ArrivalKind.POISSON, rate_per_s=phase.rate_per_s)
        times_s = arrival_times_s(
            arrivals, duration_s=phase.duration_s, request_count=None, rng=rng
        )
        begun = [phase.begin_s + time_s for time_s in times_s]
        planned += requests_of_shape(phase.shape, begun, rng=rng)
    if not planned:
        raise ConfigError("the load has no request; raise --phase-s or --load")
    return [replace(request, index=index) for index, request in enumerate(planned)]
