"""Goodput over time, by phase and in all, of runs with other roles under the same load. Pure.

A request is good if it met TTFT and TPOT (``goodput.all_slos``); it counts at the time at which it
was due. Failed, rejected and unfinished ones (which had not ended ten seconds after the load) are
not good, and are counted.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from pdd.bench.goodput import Objectives, all_slos
from pdd.bench.percentiles import Latencies
from pdd.bench.roles_load import Phase
from pdd.bench.samples import Outcome, Samples

BIN_S = 2.0


def figures(samples: Samples, objectives: Objectives, phases: Sequence[Phase]) -> dict[str, Any]:
    """Of one run."""
    latencies = Latencies(samples)
    good = all_slos(samples, latencies, objectives)
    load_s = phases[-1].begin_s + phases[-1].duration_s
    unfinished = samples.errors.count("unfinished")
    well = samples.outcome == int(Outcome.OK)
    return {
        "sent": samples.count,
        "completed": int(well.sum()),
        "unfinished": unfinished,
        "failed": int((samples.outcome == int(Outcome.FAILED)).sum()) - unfinished,
        "rejected": int((samples.outcome == int(Outcome.REJECTED)).sum()),
        "good": int(good.sum()),
        "good_fraction": _fraction(good),
        "goodput_per_s": round(float(good.sum()) / load_s, 3),
        "phases": [
            {
                "heavy": phase.heavy.value,
                "begin_s": phase.begin_s,
                "duration_s": phase.duration_s,
                "rate_per_s": round(phase.rate_per_s, 3),
                **_of(good, _between(samples, phase.begin_s, phase.duration_s)),
            }
            for phase in phases
        ],
        "timeline": [
            {"at_s": begin_s, **_of(good, _between(samples, begin_s, BIN_S))}
            for begin_s in (float(at) for at in np.arange(0.0, load_s, BIN_S))
        ],
        "percentiles": latencies.summaries(),
    }


def summary_of(runs: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """By variant, over all seeds."""
    variants = dict.fromkeys(run["variant"] for run in runs)
    result = {}
    for variant in variants:
        mine = [run for run in runs if run["variant"] == variant]
        fractions = [run["good"] / run["sent"] for run in mine if run["sent"]]
        goodputs = [run["goodput_per_s"] for run in mine]
        result[variant] = {
            "seeds": [run["seed"] for run in mine],
            "good_fraction": round(float(np.mean(fractions)), 4) if fractions else None,
            "good_fraction_least": round(min(fractions), 4) if fractions else None,
            "goodput_per_s": round(float(np.mean(goodputs)), 3),
            "unfinished": sum(run["unfinished"] for run in mine),
            "failed": sum(run["failed"] for run in mine),
            "switches": [sum(one["stage"] == "done" for one in run["switches"]) for run in mine],
        }
    return result


def _between(samples: Samples, begin_s: float, duration_s: float) -> Any:
    return (samples.due_s >= begin_s) & (samples.due_s < begin_s + duration_s)


def _of(good: Any, among: Any) -> dict[str, Any]:
    return {
        "sent": int(among.sum()),
        "good": int(good[among].sum()),
        "good_fraction": _fraction(good[among]),
    }


def _fraction(mask: Any) -> float | None:
    return round(float(mask.mean()), 4) if len(mask) else None
