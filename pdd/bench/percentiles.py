"""Exact percentiles of everything that was measured: no histogram, no sketch. Pure.

Nearest rank: the smallest value that ``percent`` of the sample does not exceed. A percentile of a
sample is therefore always a value that was seen.
"""

import math
from typing import Any

import numpy as np

from pdd.bench.samples import STAGES, Floats, Ints, Outcome, Samples

PERCENTS = (50.0, 90.0, 95.0, 99.0, 99.9)
Summary = dict[str, float | int | None]


def percentile(ascending: Floats, percent: float) -> float:
    """Of a sorted sample that is not empty."""
    rank = math.ceil(len(ascending) * percent / 100)
    return float(ascending[max(rank, 1) - 1])


def summary(values: Floats, *, factor: float = 1e3, digits: int = 3) -> Summary:
    """Count, mean, percentiles and maximum, times ``factor`` (seconds to ms). Nulls if empty."""
    ascending = np.sort(values)
    names = {percent: f"p{percent:g}".replace(".", "_") for percent in PERCENTS}
    if not len(ascending):
        return {"count": 0, "mean": None, **dict.fromkeys(names.values()), "max": None}

    def scaled(value: float) -> float:
        return round(value * factor, digits)

    return {
        "count": len(ascending),
        "mean": scaled(float(ascending.mean())),
        **{name: scaled(percentile(ascending, percent)) for percent, name in names.items()},
        "max": scaled(float(ascending[-1])),
    }


class Latencies:
    """Seconds of every request that ended well.

    * ``ttft_s``: its start to its first token; ``e2e_s``: its start to its last byte.
    * ``itl_s``: every gap between two events with text, of all requests; ``gap_owner``: whose.
    * ``tpot_s``: per request, first to last event with text over (tokens - 1); ``tpot_owner``.
      Where the server gives no usage, an event counts as a token.

    All ``*_owner`` and ``rows`` are positions in the samples.
    """

    def __init__(self, samples: Samples) -> None:
        well = samples.outcome == int(Outcome.OK)
        counts = samples.event_counts
        self.rows: Ints = np.flatnonzero(well & (counts > 0))
        first = samples.events[samples.event_starts[self.rows]]
        last = samples.events[samples.event_starts[self.rows + 1] - 1]
        start = samples.start_s[self.rows]
        self.ttft_s: Floats = first - start
        self.e2e_s: Floats = samples.end_s[self.rows] - start
        tokens = samples.output_tokens[self.rows]
        several = (tokens > 1) & (counts[self.rows] > 1)
        self.tpot_owner: Ints = self.rows[several]
        self.tpot_s: Floats = (last - first)[several] / (tokens[several] - 1)
        gaps = np.diff(samples.events)
        owner = np.repeat(np.arange(samples.count), counts)
        inside = (owner[1:] == owner[:-1]) & well[owner[1:]] if len(owner) else np.zeros(0, bool)
        self.itl_s: Floats = gaps[inside] if len(owner) else np.zeros(0)
        self.gap_owner: Ints = owner[1:][inside] if len(owner) else np.zeros(0, np.int64)

    def summaries(self) -> dict[str, Summary]:
        """In milliseconds."""
        return {
            "ttft_ms": summary(self.ttft_s),
            "itl_ms": summary(self.itl_s),
            "tpot_ms": summary(self.tpot_s),
            "e2e_ms": summary(self.e2e_s),
        }


def stage_summaries(samples: Samples) -> dict[str, Summary] | None:
    """Milliseconds per stage, from the server's own usage; None if it tells none."""
    told = samples.stages_ms[~np.isnan(samples.stages_ms).any(axis=1)]
    if not len(told):
        return None
    return {name: summary(told[:, at], factor=1.0) for at, name in enumerate(STAGES)}


def per_persona(samples: Samples, latencies: Latencies) -> list[dict[str, Any]] | None:
    """Requests and TTFT of the hot persona and of all others; None without personas."""
    personas = samples.persona
    if not (personas >= 0).any():
        return None
    rows = []
    for name, mask in (("hot", personas == 0), ("others", personas > 0)):
        ttft = latencies.ttft_s[mask[latencies.rows]]
        rows.append({"persona": name, "requests": int(mask.sum()), "ttft_ms": summary(ttft)})
    return rows
