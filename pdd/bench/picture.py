"""Draws a run: latencies over time, their distributions, and the stages. PNG, SVG or PDF.

matplotlib is optional (the extra ``plot``): only whoever wants a picture loads it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pdd.bench.percentiles import Latencies
from pdd.bench.samples import Floats, Outcome, Samples
from pdd.core.errors import ConfigError, PddError

SUFFIXES = (".png", ".svg", ".pdf")
_DOTS_MAX = 20_000
_STEPS_MAX = 2_000


def check_picture(path: Path) -> None:
    """Before a run: can it be drawn afterwards?

    Raises:
        ConfigError: the name's ending or the folder is wrong.
        PddError: matplotlib is missing.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"{path}: pictures end in {', '.join(SUFFIXES)}")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"{path}: there is no folder {path.absolute().parent}")
    try:
        import matplotlib as _  # noqa: F401, ICN001
    except ImportError as error:
        raise PddError(
            "pictures need matplotlib, which is not installed: bin/pdd setup installs it with the "
            "cpu and cuda extras; elsewhere: pip install 'pdd[plot]'"
        ) from error


def draw(path: Path, samples: Samples, report: Mapping[str, Any], *, title: str) -> None:
    """Write the picture.

    Raises:
        PddError: the file cannot be written.
    """
    import matplotlib.figure

    # Without pyplot: no global state, no window system is looked for.
    figure = matplotlib.figure.Figure(figsize=(12, 8), layout="constrained")
    figure.suptitle(title, fontsize=11)
    latencies = Latencies(samples)
    axes = figure.subplots(2, 2)
    _over_time(axes[0][0], samples, latencies)
    _distribution(
        axes[0][1], {"TTFT": latencies.ttft_s, "E2E": latencies.e2e_s}, "share of requests"
    )
    _distribution(axes[1][0], {"ITL": latencies.itl_s, "TPOT": latencies.tpot_s}, "share")
    _stages(axes[1][1], report)
    try:
        figure.savefig(path, dpi=120)
    except OSError as error:
        raise PddError(f"{path}: {error.strerror}; choose another file") from error


def _over_time(axes: Any, samples: Samples, latencies: Latencies) -> None:
    due_s = samples.due_s[latencies.rows]
    step = max(1, len(due_s) // _DOTS_MAX)  # more dots than that are one blot
    axes.plot(due_s[::step], latencies.e2e_s[::step] * 1e3, ".", ms=2, color="#b0b8c4", label="E2E")
    axes.plot(
        due_s[::step], latencies.ttft_s[::step] * 1e3, ".", ms=2, color="#1f6fb4", label="TTFT"
    )
    values = np.concatenate([latencies.e2e_s, latencies.ttft_s]) * 1e3
    top = float(values.max()) if len(values) else 1.0
    for outcome, colour, name in (
        (Outcome.REJECTED, "#e08214", "rejected"),
        (Outcome.FAILED, "#c0392b", "failed"),
    ):
        at_s = samples.due_s[samples.outcome == int(outcome)]
        if len(at_s):
            axes.plot(at_s, np.full(len(at_s), top), "|", ms=8, color=colour, label=name)
    axes.set(xlabel="due at, s", ylabel="ms", title="Latency over time")
    if len(values) and values.min() > 0:
        axes.set_yscale("log")
    _finish(axes)


def _distribution(axes: Any, lines: Mapping[str, Floats], what: str) -> None:
    for name, values_s in lines.items():
        if not len(values_s):
            continue
        ascending = np.sort(values_s) * 1e3
        shares = np.arange(1, len(ascending) + 1) / len(ascending)
        step = max(1, len(ascending) // _STEPS_MAX)
        keep = np.append(np.arange(0, len(ascending) - 1, step), len(ascending) - 1)
        axes.step(ascending[keep], shares[keep], where="post", label=f"{name} (n = {len(shares)})")
        if ascending[0] > 0:
            axes.set_xscale("log")
    axes.set(xlabel="ms", ylabel=what, ylim=(0, 1.02), title=" and ".join(lines))
    _finish(axes)


def _stages(axes: Any, report: Mapping[str, Any]) -> None:
    stages = report["stages_ms"]
    if stages is None:
        axes.set_axis_off()
        axes.text(0.5, 0.5, "the server's usage tells no stages", ha="center", va="center")
        return
    names = list(stages)
    places = np.arange(len(names))
    for offset, (key, label) in enumerate((("mean", "mean"), ("p50", "p50"), ("p99", "p99"))):
        heights = [stages[name][key] for name in names]
        bars = axes.bar(places + (offset - 1) * 0.27, heights, 0.26, label=label)
        axes.bar_label(bars, fmt="%.3g", fontsize=7)
    axes.set_xticks(places, names)
    axes.set(ylabel="ms", title="Stages, as the server counts them")
    _finish(axes)


def _finish(axes: Any) -> None:
    axes.grid(visible=True, alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8)
