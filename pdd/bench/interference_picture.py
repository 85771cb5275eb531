"""Draws gaps over time of both clusters, and the longest gap of every run."""

from collections.abc import Sequence
from pathlib import Path
from statistics import median_low
from typing import Any

from pdd.bench.interference_figures import LONG_GAP_S, Case, Run
from pdd.core.errors import PddError

_COLOURS = {Case.DISAGGREGATED: "#1f6fb4", Case.COLOCATED: "#c0392b", Case.UNLOADED: "#7f8c8d"}


def draw_interference(path: Path, runs: Sequence[Run], *, title: str) -> None:
    """Write the picture; check with ``picture.check_picture`` before.

    Raises:
        PddError: the file cannot be written.
    """
    import matplotlib.figure

    figure = matplotlib.figure.Figure(figsize=(12, 8), layout="constrained")
    figure.suptitle(title, fontsize=11)
    axes = figure.subplots(3, 1, height_ratios=(2, 2, 1))
    top_ms = 1e3 * max((gap.length_s for run in runs for gap in run.gaps), default=1.0)
    for place, case in zip(axes, (Case.DISAGGREGATED, Case.COLOCATED), strict=False):
        _over_time(place, _typical(runs, case), case, top_ms)
    _longest(axes[2], runs)
    try:
        figure.savefig(path, dpi=120)
    except OSError as error:
        raise PddError(f"{path}: {error.strerror}; choose another file") from error


def _typical(runs: Sequence[Run], case: Case) -> Run:
    """The run whose longest gap is the median of all."""
    mine = {
        max((gap.length_s for gap in run.gaps), default=0.0): run
        for run in runs
        if run.case is case
    }
    return mine[median_low(mine)]


def _over_time(axes: Any, run: Run, case: Case, top_ms: float) -> None:
    axes.plot(
        [gap.at_s for gap in run.gaps],
        [gap.length_s * 1e3 for gap in run.gaps],
        ".",
        ms=3,
        color=_COLOURS[case],
    )
    for at_s, _ in run.arrivals:
        axes.axvline(at_s, color="#b0b8c4", lw=1)
    axes.axhline(LONG_GAP_S * 1e3, color="#e08214", lw=1, ls="--")
    axes.set(
        title=f"{case}, the median run; lines: prompts arrive",
        xlabel="s",
        ylabel="gap between tokens, ms",
        ylim=(0, top_ms * 1.05),
    )


def _longest(axes: Any, runs: Sequence[Run]) -> None:
    for offset, case in enumerate(Case):
        longest = [
            1e3 * max((gap.length_s for gap in run.gaps), default=0.0)
            for run in runs
            if run.case is case
        ]
        places = [number + (offset - 1) * 0.27 for number in range(len(longest))]
        bars = axes.bar(places, longest, 0.26, color=_COLOURS[case], label=case.value)
        axes.bar_label(bars, fmt="%.0f", fontsize=7)
    axes.set(title="Longest gap of each run", ylabel="ms", xlabel="run")
    axes.legend(fontsize=8)
