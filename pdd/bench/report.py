"""The result of ``pdd bench serve`` as one JSON document. Pure.

Version 1; keys are only ever added::

    schema_version   1
    load             what was asked for: url, model, endpoint, mode, seed and the rest
    duration_s       start of the load to the end of the last answer
    interrupted      Ctrl-C ended it early; requests cut off are in generator.cut_off, nowhere else
    sent             requests; the denominator of every goodput
    completed        ended well
    rejected         HTTP 429 or 503
    failed           everything else that did not end well
    errors           {class: {"count", "example"}}, with the rejected ones. Classes: http_STATUS,
                     connect, disconnected, timeout, unfinished, error_event, bad_event, bad_http,
                     bad_json, no_done, no_tokens
    requests_per_s   completed
    tokens_per_s     output tokens of completed requests
    tokens           {"input", "cached", "output", "input_mean", "output_mean", "events"}
    percentiles      {"ttft_ms", "itl_ms", "tpot_ms", "e2e_ms"}: each {"count", "mean", "p50",
                     "p90", "p95", "p99", "p99_9", "max"}; exact; null where nothing was measured
    goodput          {"all_slos", "worst_gaps", "token_deadlines"}: each {"good", "of", "fraction",
                     "per_s"}; and the objectives_ms. Defined in ``goodput``
    stages_ms        {"queue", "prefill", "transfer", "decode"}, as percentiles; null unless the
                     server's usage has them
    personas         hot persona against the others; null without personas
    generator        what the generator cost and how late it was; who told when bytes came
                     (arrival_clock: kernel, or read); ceiling_tokens_per_s; warnings
"""

from dataclasses import asdict
from typing import Any

import numpy as np

from pdd.bench.ceiling import Ceiling
from pdd.bench.goodput import Objectives, goodputs
from pdd.bench.percentiles import Latencies, per_persona, stage_summaries
from pdd.bench.samples import Outcome, Samples
from pdd.bench.workers import KERNEL, GeneratorReport, Load

SCHEMA_VERSION = 1
_LATE_MS = 5.0
_BUSY_FRACTION = 0.8
_NEAR_CEILING = 0.5


def report(
    load: Load, *, described: dict[str, Any], objectives: Objectives, ceiling: Ceiling | None
) -> dict[str, Any]:
    """See the module.

    Args:
        described: goes into ``load`` as it is.
        ceiling: None: it was not measured.
    """
    samples, duration_s = load.samples, load.duration_s
    latencies = Latencies(samples)
    well = samples.outcome == int(Outcome.OK)
    completed = int(well.sum())
    output = int(samples.output_tokens[well].sum())
    return {
        "schema_version": SCHEMA_VERSION,
        "load": described,
        "duration_s": round(duration_s, 3),
        "interrupted": load.interrupted,
        "sent": samples.count,
        "completed": completed,
        "rejected": int((samples.outcome == int(Outcome.REJECTED)).sum()),
        "failed": int((samples.outcome == int(Outcome.FAILED)).sum()),
        "errors": _errors(samples),
        "requests_per_s": _per_s(completed, duration_s),
        "tokens_per_s": _per_s(output, duration_s),
        "tokens": {
            "input": int(samples.prompt_tokens[well].sum()),
            "cached": int(samples.cached_tokens[well].sum()),
            "output": output,
            "input_mean": _mean(samples.prompt_tokens[well]),
            "output_mean": _mean(samples.output_tokens[well]),
            "events": len(samples.events),
        },
        "percentiles": latencies.summaries(),
        "goodput": goodputs(samples, latencies, objectives, duration_s=duration_s),
        "stages_ms": stage_summaries(samples),
        "personas": per_persona(samples, latencies),
        "generator": {
            **asdict(load.generator),
            "ceiling_tokens_per_s": None if ceiling is None else ceiling.tokens_per_s,
            "ceiling_cpu_us_per_token": None if ceiling is None else ceiling.cpu_us_per_token,
            "warnings": warnings(
                load.generator, ceiling, events_per_s=len(samples.events) / max(duration_s, 1e-9)
            ),
        },
    }


def warnings(
    generator: GeneratorReport, ceiling: Ceiling | None, *, events_per_s: float
) -> list[str]:
    """Why the figures may be those of the generator rather than of the server."""
    said = []
    late_ms = generator.lateness_ms["p99"]
    if late_ms is not None and late_ms > _LATE_MS:
        said.append(
            f"1 % of the requests left {late_ms:g} ms late or later: latencies contain that; "
            "the machine is busy, or add --processes"
        )
    lag_ms = generator.loop_lag_ms["p99"]
    reads_late = lag_ms is not None and lag_ms > _LATE_MS
    if reads_late and generator.reads and generator.arrival_clock != KERNEL:
        said.append(
            f"the generator's loop stood still for {lag_ms:g} ms or longer in 1 % of its turns, "
            f"and the kernel told no time for {generator.unstamped_reads:,} of "
            f"{generator.reads:,} reads: gaps between tokens are no more exact than that"
        )
    if generator.clock_steps:
        said.append(
            f"this machine's time of day was set {generator.clock_steps} times: tokens that came "
            "within 20 ms of that have wrong times"
        )
    if generator.busiest_cpu_fraction > _BUSY_FRACTION:
        said.append(
            f"a generator process used {generator.busiest_cpu_fraction:.0%} of a core: it is the "
            "bottleneck; add --processes"
        )
    if ceiling is not None and events_per_s > _NEAR_CEILING * ceiling.tokens_per_s:
        said.append(
            f"{events_per_s:,.0f} events/s are more than half of the generator's ceiling of "
            f"{ceiling.tokens_per_s:,.0f}; add --processes"
        )
    if generator.waited_for_connection:
        said.append(
            f"{generator.waited_for_connection} requests waited for a free connection of the "
            "generator; raise --connections"
        )
    return said


def _errors(samples: Samples) -> dict[str, dict[str, Any]]:
    """Most frequent first."""
    names, counts = np.unique([one for one in samples.errors if one], return_counts=True)
    order = sorted(zip(names, counts, strict=True), key=lambda pair: (-pair[1], pair[0]))
    return {
        str(name): {"count": int(count), "example": samples.details.get(str(name), "")}
        for name, count in order
    }


def _per_s(count: int, duration_s: float) -> float | None:
    return round(count / duration_s, 3) if duration_s > 0 else None


def _mean(values: Any) -> float | None:
    return round(float(values.mean()), 1) if len(values) else None
