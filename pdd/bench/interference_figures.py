"""What prompts that arrive do to streams that run: figures of one run, and of several. Pure.

A *gap* is the time between two tokens of one stream, as its client saw them. p99 hides whole
stalls, for it depends on how many tokens are decoded between two prompts; the longest gap and the
count of gaps above 250 ms do not. A gap above 250 ms that is open at a run's end counts with its
length so far.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median
from typing import Any

from pdd.replication.percentiles import percentile

LONG_GAP_S = 0.25


class Case(StrEnum):
    """Who serves, and whether prompts arrive."""

    DISAGGREGATED = "disaggregated"
    COLOCATED = "colocated"
    UNLOADED = "unloaded"  # disaggregated, and nothing arrives


@dataclass(frozen=True, slots=True)
class Gap:
    """``at_s``: its end, since the run began."""

    at_s: float
    length_s: float


@dataclass(slots=True, kw_only=True)
class Run:
    """One run. ``arrivals``: when each prompt came, since the run began, and its time to the first
    token; unloaded, of prompts that came one after another with nothing beside them."""

    case: Case
    duration_s: float
    gaps: list[Gap] = field(default_factory=list)
    token_count: int = 0
    arrivals: list[tuple[float, float]] = field(default_factory=list)

    def figures(self) -> dict[str, float | int | None]:
        """Milliseconds to three digits; None where nothing was seen."""
        lengths = [gap.length_s for gap in self.gaps]
        ttft_s = [ttft for _, ttft in self.arrivals]
        return {
            "gap_max_ms": _ms(max(lengths, default=None)),
            "gaps_over_250ms": sum(length > LONG_GAP_S for length in lengths),
            "itl_p50_ms": _ms(percentile(lengths, 50) if lengths else None),
            "itl_p99_ms": _ms(percentile(lengths, 99) if lengths else None),
            "decode_tokens_per_s": round(self.token_count / self.duration_s, 2),
            "ttft_p50_s": round(median(ttft_s), 4) if ttft_s else None,
        }


def interference_document(runs: Sequence[Run], *, spec: dict[str, Any]) -> dict[str, Any]:
    """Per case the median of each figure over its runs, thus of the longest gaps too."""
    document: dict[str, Any] = {}
    for case in Case:
        rows = [run.figures() for run in runs if run.case is case]
        document[case.value] = {
            name: _median([row[name] for row in rows]) for name in (rows[0] if rows else ())
        }
    document["runs"] = [{"case": run.case.value, **run.figures()} for run in runs]
    document["spec"] = spec
    return document


def _median(values: Sequence[float | int | None]) -> float | int | None:
    known = [value for value in values if value is not None]
    return round(median(known), 4) if known else None


def _ms(value_s: float | None) -> float | None:
    return None if value_s is None else round(value_s * 1e3, 3)
