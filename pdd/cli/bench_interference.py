"""``pdd bench interference``: what arriving prompts do to running streams."""

import os
from pathlib import Path
from typing import Any

import click

from pdd.cli.options import output_option
from pdd.cli.output import print_json, print_table, say

_ROWS = (
    ("gap_max_ms", "longest gap, ms"),
    ("gaps_over_250ms", "gaps above 250 ms"),
    ("itl_p50_ms", "ITL p50, ms"),
    ("itl_p99_ms", "ITL p99, ms"),
    ("decode_tokens_per_s", "tokens/s of the streams"),
    ("ttft_p50_s", "TTFT p50 of arriving prompts, s"),
)
_CASES = ("disaggregated", "colocated", "unloaded")


def add_to(group: click.Group) -> None:
    """Register the command under ``pdd bench``."""
    group.add_command(interference)


@click.command("interference")
@click.option(
    "--engine", type=click.Choice(["vllm", "synthetic"]), default="vllm", show_default=True
)
@click.option("--model", metavar="MODEL", help="As of 'pdd up'.")
@click.option("--runs", type=click.IntRange(1, 100), default=5, show_default=True)
@click.option(
    "--duration",
    "duration_s",
    type=click.FloatRange(11, 3600),
    default=36.0,
    show_default=True,
    metavar="SECONDS",
    help="Of each loaded run; prompts arrive from 4 s after its begin to 6 s before its end.",
)
@click.option(
    "--unloaded",
    "unloaded_s",
    type=click.FloatRange(1, 3600),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="Of the streams of each run in which nothing arrives.",
)
@click.option(
    "--every",
    "every_s",
    type=click.FloatRange(0.1, 3600),
    default=8.0,
    show_default=True,
    metavar="SECONDS",
    help="Between two prompts.",
)
@click.option("--streams", type=click.IntRange(1, 1000), default=4, show_default=True)
@click.option(
    "--cores",
    type=click.IntRange(1, 1024),
    default=2,
    show_default=True,
    help="Of each cluster: half of them for each of the two nodes, all for the co-located one.",
)
@click.option(
    "--colocated-chunk",
    type=click.IntRange(16, 65_536),
    default=256,
    show_default=True,
    help="Most tokens in one step of the co-located node: small ones spare its streams.",
)
@click.option("--seed", type=click.IntRange(0, 1 << 31), default=11, show_default=True)
@click.option(
    "--set", "settings", multiple=True, metavar="SECTION.KEY=VALUE", help="For both clusters."
)
@click.option("--plot", type=click.Path(path_type=Path), metavar="FILE", help="PNG, SVG or PDF.")
@output_option
def interference(output: str, plot: Path | None, **given: Any) -> None:
    """Measure what prompts of 1,000 to 2,000 tokens that arrive do to streams that run.

    Starts two clusters as 'pdd up' does, one disaggregated, one co-located (--prefill 0, a small
    chunk), and measures them in turn on the same cores. Figures are medians over the runs, that of
    the longest gap too. 'unloaded' is the disaggregated one while nothing arrives; its TTFT is that
    of a prompt of 1,024 tokens alone. What a run is: pdd/bench/interference.py. Takes some 9
    minutes, and 10 GiB of memory with the default model.
    """
    from pdd.bench.interference import InterferenceSpec, measure_interference
    from pdd.bench.interference_picture import draw_interference
    from pdd.bench.picture import check_picture

    if plot is not None:
        check_picture(plot)
    spec = InterferenceSpec(**given)
    say(
        f"load average before the run: {os.getloadavg()[0]:.2f} on {os.cpu_count()} CPUs; "
        f"seed {spec.seed}"
    )
    measured = measure_interference(spec, report=say)
    if plot is not None:
        title = f"{spec.streams} streams, a prompt of 1-2k tokens every {spec.every_s:g} s"
        draw_interference(plot, measured.runs, title=f"{title}; {spec.engine}, {spec.cores} cores")
        say(f"wrote {plot}")
    if output == "json":
        print_json(measured.document)
        return
    print_table(
        ("", *(case.upper() for case in _CASES)),
        [(name, *(measured.document[case].get(key) for case in _CASES)) for key, name in _ROWS],
    )
