"""Three ways to say how many requests were served well enough. Pure.

All divide by *every* request that was sent: rejected, failed and unfinished ones are in the
denominator. Rates are per second of the run.

* ``all_slos``: TTFT, TPOT (and E2E, if one is given) of the request meet their objectives.
* ``worst_gaps``: TTFT meets its objective, and so does the mean of the worst tenth of the request's
  gaps (at least one gap). A mean over all gaps hides a stall; this one does not.
* ``token_deadlines``: token i (from 0) is due at start + TTFT + i x TPOT. A request is good if no
  token was late; tokens early enough make up for a later pause, as a reader feels it.
  ``tokens_on_time`` is the fraction of tokens that were in time, out of those of good and bad
  requests alike; tokens that never came are late.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from pdd.bench.percentiles import Latencies
from pdd.bench.samples import Outcome, Samples


@dataclass(frozen=True, slots=True, kw_only=True)
class Objectives:
    """What a request must keep. ``e2e_s``: None for none."""

    ttft_s: float = 0.150
    tpot_s: float = 0.030
    gap_s: float = 0.050
    e2e_s: float | None = None


def goodputs(
    samples: Samples, latencies: Latencies, objectives: Objectives, *, duration_s: float
) -> dict[str, Any]:
    """The three, with the objectives they were measured against."""
    good = {
        "all_slos": all_slos(samples, latencies, objectives),
        "worst_gaps": _worst_gaps(samples, latencies, objectives),
    }
    on_time, tokens_on_time = _deadlines(samples, latencies, objectives)
    good["token_deadlines"] = on_time
    sent = samples.count
    result: dict[str, Any] = {
        name: {
            "good": int(mask.sum()),
            "of": sent,
            "fraction": round(float(mask.sum()) / sent, 5) if sent else None,
            "per_s": round(float(mask.sum()) / duration_s, 4) if duration_s > 0 else None,
        }
        for name, mask in good.items()
    }
    result["token_deadlines"]["tokens_on_time"] = tokens_on_time
    result["objectives_ms"] = {
        "ttft": _ms(objectives.ttft_s),
        "tpot": _ms(objectives.tpot_s),
        "gap": _ms(objectives.gap_s),
        "e2e": None if objectives.e2e_s is None else _ms(objectives.e2e_s),
    }
    return result


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 6)


def all_slos(samples: Samples, latencies: Latencies, objectives: Objectives) -> Any:
    """For each request whether it met them all, as a mask."""
    good = _ttft_met(samples, latencies, objectives)
    good[latencies.tpot_owner[latencies.tpot_s > objectives.tpot_s]] = False
    if objectives.e2e_s is not None:
        good[latencies.rows[latencies.e2e_s > objectives.e2e_s]] = False
    return good


def _worst_gaps(samples: Samples, latencies: Latencies, objectives: Objectives) -> Any:
    good = _ttft_met(samples, latencies, objectives)
    if not len(latencies.gap_owner):
        return good
    owners, begins = np.unique(latencies.gap_owner, return_index=True)
    ends = np.append(begins[1:], len(latencies.gap_owner))
    for owner, begin, end in zip(owners, begins, ends, strict=True):
        worst = math.ceil((end - begin) / 10)
        gaps = np.sort(latencies.itl_s[begin:end])
        if float(gaps[-worst:].mean()) > objectives.gap_s:
            good[owner] = False
    return good


def _deadlines(
    samples: Samples, latencies: Latencies, objectives: Objectives
) -> tuple[Any, float | None]:
    """Events stand for tokens; where an event carries several, all came with it."""
    good = np.zeros(samples.count, bool)
    in_time = wanted = 0
    start_s, well = samples.start_s, samples.outcome == int(Outcome.OK)
    for row in range(samples.count):
        events = samples.events[samples.event_starts[row] : samples.event_starts[row + 1]]
        tokens = max(int(samples.output_tokens[row]), len(events), 1)
        wanted += tokens
        if not len(events):
            continue
        # Spread the tokens over the events: with one each, token i is event i.
        event_of = np.arange(tokens) * len(events) // tokens
        due = start_s[row] + objectives.ttft_s + objectives.tpot_s * np.arange(tokens)
        met = events[event_of] <= due
        in_time += int(met.sum())
        good[row] = bool(well[row]) and bool(met.all())
    return good, round(in_time / wanted, 5) if wanted else None


def _ttft_met(samples: Samples, latencies: Latencies, objectives: Objectives) -> Any:
    good = np.zeros(samples.count, bool)
    good[latencies.rows] = latencies.ttft_s <= objectives.ttft_s
    return good
