"""From what a live measurement saw to its row. Pure.

One ``Phase`` is one stream on the decode node, of one kind:

* *alone*: nothing else asks.
* *held*: requests come one after another whose blocks the decode node holds already: it answers
  them by itself, and nothing moves.
* *busy*: the same requests, but every one moves all its blocks.

*held* tells what the requests cost the stream without their transfers.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median
from typing import Any

from pdd.replication.percentiles import percentile

GB = 1e9
ITL_RATIO_MAX = 1.3
"""The goal for a stream's p99 beside transfers, over that of one left alone."""

GB_PER_S_GOAL = 1.5 * 0.88
"""The goal for a transfer between live engines: 1.5 x what NIXL reached there."""


class Kind(StrEnum):
    """See the module."""

    ALONE = "alone"
    HELD = "held"
    BUSY = "busy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Transfers into the decode node that ended between two readings of its counters."""

    transfers: int
    moving_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """What one stream and the requests beside it saw.

    ``gaps_s``: of the stream, from the first of these requests on. ``sizes``: bytes that each
    request moved. ``lane_bytes``: sent meanwhile, by lane. ``cpu_s``: of both transfer threads.
    """

    kind: Kind
    gaps_s: tuple[float, ...]
    sizes: tuple[int, ...] = ()
    readings: tuple[Reading, ...] = ()
    lane_bytes: tuple[tuple[str, int], ...] = ()
    cpu_s: float = 0.0
    texts_ok: bool = True


def gaps_s(times_s: Sequence[float], *, after_s: float = -math.inf) -> tuple[float, ...]:
    """Gaps between events, of those that end after ``after_s``."""
    return tuple(later - sooner for sooner, later in itertools.pairwise(times_s) if later > after_s)


def rates_gb_per_s(phases: Sequence[Phase]) -> list[float]:
    """Of every reading: whole transfers' bytes over the time that their blocks moved.

    A phase's transfers are equally large, else the sizes could not be told apart.
    """
    rates = []
    for phase in phases:
        if len(set(phase.sizes)) == 1:
            rates += [
                reading.transfers * phase.sizes[0] / GB / reading.moving_s
                for reading in phase.readings
                if reading.moving_s > 0
            ]
    return rates


def live_row(phases: Sequence[Phase], *, transport: str, block_bytes: int) -> dict[str, Any]:
    """The row of one transport. Figures that nothing was measured for are None."""
    busy = [phase for phase in phases if phase.kind is Kind.BUSY]
    rates = rates_gb_per_s(busy)
    sizes = [size for phase in busy for size in phase.sizes]
    cpu_s = sum(phase.cpu_s for phase in busy)
    lanes: dict[str, int] = {}
    for phase in busy:
        for lane, size in phase.lane_bytes:
            lanes[lane] = lanes.get(lane, 0) + size
    itl = {
        f"itl_p{percent}_ms_{kind}": _milliseconds(phases, kind, percent)
        for percent in (50, 99)
        for kind in Kind
    }
    alone, held, beside = (itl[f"itl_p99_ms_{kind}"] for kind in Kind)
    return {
        "case": "e",
        "transport": transport,
        "lane": "+".join(sorted(lane for lane, size in lanes.items() if size)) or None,
        "blocks": round(median(sizes) / block_bytes) if sizes else 0,
        "transfers": len(sizes),
        "gb_per_s": _rounded(median(rates) if rates else None),
        "gb_per_s_min": _rounded(min(rates, default=None)),
        "gb_per_s_max": _rounded(max(rates, default=None)),
        **itl,
        "itl_p99_ratio": _rounded(beside / alone if alone and beside else None),
        "itl_p99_ratio_held": _rounded(beside / held if held and beside else None),
        "cpu_s_per_gb": _rounded(cpu_s / (sum(sizes) / GB) if sum(sizes) else None),
        "texts_ok": all(phase.texts_ok for phase in phases) and bool(sizes),
    }


def describe(row: dict[str, Any]) -> str:
    """The row for people."""
    return (
        f"live engines, case {row['case']}, {row['transport']} ({row['lane']}): "
        f"{row['transfers']} transfers of {row['blocks']} blocks at {row['gb_per_s']} GB/s "
        f"({row['gb_per_s_min']} to {row['gb_per_s_max']}; goal {GB_PER_S_GOAL:.2f}), "
        f"{row['cpu_s_per_gb']} CPU s/GB; a stream beside them: ITL p50 "
        f"{row['itl_p50_ms_alone']} -> {row['itl_p50_ms_busy']} ms, p99 "
        f"{row['itl_p99_ms_alone']} -> {row['itl_p99_ms_busy']} ms "
        f"({row['itl_p99_ratio']} x, goal {ITL_RATIO_MAX}; {row['itl_p99_ratio_held']} x the "
        f"{row['itl_p99_ms_held']} ms beside requests that move nothing); texts "
        f"{'as undisturbed' if row['texts_ok'] else 'DIFFER'}"
    )


def _milliseconds(phases: Sequence[Phase], kind: Kind, percent: int) -> float | None:
    found = [gap for phase in phases if phase.kind is kind for gap in phase.gaps_s]
    return _rounded(percentile(found, percent) * 1e3 if found else None)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
