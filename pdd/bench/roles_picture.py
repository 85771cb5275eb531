"""Draws goodput over time with every switch, and the pools of ``auto``. PNG, SVG or PDF.

matplotlib is optional, as in ``picture``.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pdd.core.errors import PddError

_SHADES = {"prefill": "#e8f0fa", "decode": "#fdf1e3"}
_COLOURS = ("#c0392b", "#7f8c8d", "#8e44ad", "#16a085", "#b7950b")
_AUTO_COLOUR = "#1f6fb4"


def draw_roles(path: Path, document: Mapping[str, Any]) -> None:
    """Two panels for each seed.

    Raises:
        PddError: the file cannot be written.
    """
    import matplotlib.figure

    seeds = list(dict.fromkeys(run["seed"] for run in document["runs"]))
    figure = matplotlib.figure.Figure(figsize=(11, 6 * len(seeds)), layout="constrained")
    load = document["load"]
    figure.suptitle(
        f"{load['node_count']} synthetic nodes; each phase asks for {load['load_nodes']:g} of its "
        f"heavy duty; good: TTFT <= {load['objectives']['ttft_s']:g} s, TPOT <= "
        f"{load['objectives']['tpot_s'] * 1e3:g} ms",
        fontsize=11,
    )
    ratios = [2, 1] * len(seeds)
    axes = figure.subplots(2 * len(seeds), 1, gridspec_kw={"height_ratios": ratios}, squeeze=False)
    for index, seed in enumerate(seeds):
        runs = [run for run in document["runs"] if run["seed"] == seed]
        _goodput(axes[2 * index][0], runs, load["phases"], seed)
        _pools(axes[2 * index + 1][0], runs, load["phases"])
    try:
        figure.savefig(path, dpi=110)
    except OSError as error:
        raise PddError(f"{path}: {error.strerror}; choose another file") from error


def _goodput(
    axes: Any, runs: list[dict[str, Any]], phases: list[dict[str, Any]], seed: int
) -> None:
    _shade(axes, phases)
    colours = iter(_COLOURS)
    for run in sorted(runs, key=lambda run: run["variant"] != "auto"):
        times = [one["at_s"] for one in run["timeline"]]
        values = [one["good"] / _width_s(times) for one in run["timeline"]]
        is_auto = run["variant"] == "auto"
        axes.step(
            times,
            values,
            where="post",
            lw=2.2 if is_auto else 1.3,
            color=_AUTO_COLOUR if is_auto else next(colours, "#34495e"),
            label=f"{'roles follow' if is_auto else run['variant']}: "
            f"{run['good_fraction'] or 0.0:.0%} good",
        )
    timeline = runs[0]["timeline"]
    times = [one["at_s"] for one in timeline]
    offered = [one["sent"] / _width_s(times) for one in timeline]
    axes.step(times, offered, where="post", lw=0.8, ls=":", color="black", label="offered")
    axes.set(ylabel="good requests/s", xlabel="s")
    axes.set_title(f"seed {seed}: goodput over time", pad=18)
    axes.legend(fontsize=8, loc="upper left")
    axes.grid(visible=True, alpha=0.3)


def _width_s(times: list[float]) -> float:
    return times[1] - times[0] if len(times) > 1 else 1.0


def _pools(axes: Any, runs: list[dict[str, Any]], phases: list[dict[str, Any]]) -> None:
    _shade(axes, phases)
    auto = next((run for run in runs if run["variant"] == "auto"), None)
    if auto is None:
        axes.set_axis_off()
        return
    end_s = phases[-1]["begin_s"] + phases[-1]["duration_s"]
    shown = [row for row in auto["pools"] if 0.0 <= row["at_s"] <= end_s]
    times = [row["at_s"] for row in shown]
    for role, colour in (("prefill", "#1f6fb4"), ("decode", "#e08214")):
        counts = [row[role]["nodes"] for row in shown]
        pressures = [row[role]["pressure"] for row in shown]
        axes.step(times, counts, where="post", lw=2, color=colour, label=f"{role} nodes")
        axes.plot(times, pressures, lw=0.9, ls="--", color=colour, label=f"{role} pressure")
    for switch in auto["switches"]:
        if switch["stage"] not in ("begun", "done", "abandoned"):
            continue
        style = {"begun": ":", "done": "-", "abandoned": "-."}[switch["stage"]]
        axes.axvline(switch["at_s"], color="#555555", lw=0.9, ls=style)
        if switch["stage"] != "begun":
            axes.annotate(
                f"{switch['node']} to {switch['target']}\n{switch['by']}, {switch['stage']}",
                (switch["at_s"], 0.98),
                xycoords=("data", "axes fraction"),
                fontsize=6,
                rotation=90,
                va="top",
                ha="right",
            )
    axes.set(xlabel="s (dotted: a switch begins, solid: it is done)", ylabel="nodes, pressure")
    axes.set_ylim(
        0, max([4.0, *(row["prefill"]["nodes"] + row["decode"]["nodes"] for row in shown)])
    )
    axes.legend(fontsize=7, loc="lower left", ncols=2)
    axes.grid(visible=True, alpha=0.3)


def _shade(axes: Any, phases: list[dict[str, Any]]) -> None:
    for phase in phases:
        end_s = phase["begin_s"] + phase["duration_s"]
        axes.axvspan(phase["begin_s"], end_s, color=_SHADES[phase["heavy"]], lw=0)
        axes.annotate(
            f"{phase['heavy']}-heavy",
            ((phase["begin_s"] + end_s) / 2, 1.0),
            xycoords=("data", "axes fraction"),
            fontsize=8,
            ha="center",
            va="bottom",
        )
    axes.set_xlim(0, phases[-1]["begin_s"] + phases[-1]["duration_s"])
