"""``pdd bench gateway``: what the scheduler process costs per token and per request."""

import os
from collections.abc import Mapping
from typing import Any

import click

from pdd.cli.options import output_option
from pdd.cli.output import print_json, print_table, say

_PHASES = ("streams", "fast", "requests")
_ROWS = (
    ("tokens_per_s", "tokens/s through one scheduler process"),
    ("limited_by", "limited by"),
    ("tokens_delivered", "tokens delivered"),
    ("tokens_lost", "tokens lost (or wrong)"),
    ("tokens_doubled", "tokens doubled (or wrong)"),
    ("added_itl_p99_ms", "added ITL p99, ms"),
    ("scheduler_cpu_us_per_token", "scheduler CPU per token, us"),
    ("scheduler_cores", "scheduler CPU, cores"),
    ("node_cpu_us_per_token", "nodes' CPU per token, us"),
    ("scheduler_rss_mib_per_stream", "scheduler memory per stream, MiB"),
    ("ceiling_tokens_per_s", "most tokens/s"),
    ("fast_limited_by", "limited by"),
    ("scheduler_cpu_us_per_token_fast", "scheduler CPU per token then, us"),
    ("requests_per_s_1tok", "1-token answers/s"),
    ("scheduler_cpu_us_per_request_1tok", "scheduler CPU per 1-token answer, us"),
    ("requests_per_s_2k", "1-token answers/s, prompts of 2,000 tokens"),
    ("scheduler_cpu_us_per_request_2k", "scheduler CPU per such answer, us"),
    ("rss_requests", "requests for the next figure"),
    ("rss_growth_fraction", "scheduler memory after them, against after a tenth"),
    ("generator_ceiling_tokens_per_s", "generator's own ceiling, tokens/s"),
    ("failed", "requests failed"),
    ("rejected", "requests rejected"),
)


def add_to(group: click.Group) -> None:
    """Register the command under ``pdd bench``."""
    group.add_command(gateway)


@click.command("gateway")
@click.option("--streams", type=click.IntRange(1, 10_000), default=500, show_default=True)
@click.option(
    "--rate",
    type=click.FloatRange(0.1, 1000),
    default=24.0,
    show_default=True,
    help="Tokens per stream and second.",
)
@click.option(
    "--duration", type=click.FloatRange(1, 3600), default=60.0, show_default=True, metavar="SECONDS"
)
@click.option(
    "--fast-rate",
    type=click.FloatRange(0.1, 1000),
    default=100.0,
    show_default=True,
    help="Tokens per stream and second of the phase 'fast'.",
)
@click.option(
    "--fast-duration",
    type=click.FloatRange(1, 3600),
    default=5.0,
    show_default=True,
    metavar="SECONDS",
    help="Of the phase 'fast', if the machine keeps up.",
)
@click.option(
    "--requests-duration",
    type=click.FloatRange(0.5, 3600),
    default=5.0,
    show_default=True,
    metavar="SECONDS",
    help="Of each load of the phase 'requests'.",
)
@click.option(
    "--clients",
    type=click.IntRange(1, 10_000),
    default=64,
    show_default=True,
    help="Closed loop of the phase 'requests'.",
)
@click.option(
    "--memory-requests",
    type=click.IntRange(0, 10_000_000),
    default=100_000,
    show_default=True,
    help="Compare memory after so many requests with that after a tenth. 0: do not.",
)
@click.option("--prefill", type=click.IntRange(1, 64), default=1, show_default=True)
@click.option("--decode", type=click.IntRange(1, 64), default=1, show_default=True)
@click.option(
    "--divide-cores/--share-cores",
    default=True,
    show_default=True,
    help="The scheduler has a core for itself, if there are two.",
)
@click.option(
    "--processes",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="Generator processes.",
)
@click.option("--seed", type=click.IntRange(0, 1 << 31), default=1, show_default=True)
@click.option(
    "--only", "phases", multiple=True, type=click.Choice(_PHASES), help="Only these phases."
)
@click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="SECTION.KEY=VALUE",
    help="Override the clusters' configuration.",
)
@output_option
def gateway(
    output: str,
    sets: tuple[str, ...],
    phases: tuple[str, ...],
    prefill: int,
    decode: int,
    **given: Any,
) -> int:
    """Measure the scheduler process on a synthetic cluster.

    Starts clusters as 'pdd up --engine synthetic' does and sends them many streams at a fixed
    rhythm, then faster than this machine can, then 1-token requests. Every token is checked. CPU is
    that of the scheduler's whole process tree, with metrics, usage and logging on. How each figure
    is defined: pdd/bench/gateway.py and gateway_figures.py. Takes some minutes; --duration,
    --memory-requests and --only make it shorter. Exit code 1 if a token was lost, doubled or wrong.
    """
    from pdd.bench.gateway import GatewayBench, GatewayOptions
    from pdd.config.sources import parse_set

    flags = [parse_set(text) for text in sets]
    options = GatewayOptions(
        streams=given["streams"],
        rate_per_s=given["rate"],
        duration_s=given["duration"],
        fast_rate_per_s=given["fast_rate"],
        fast_duration_s=given["fast_duration"],
        requests_duration_s=given["requests_duration"],
        clients=given["clients"],
        memory_requests=given["memory_requests"],
        prefill_count=prefill,
        decode_count=decode,
        divide_cores=given["divide_cores"],
        process_count=given["processes"],
        seed=given["seed"],
        phases=tuple(name for name in _PHASES if not phases or name in phases),
        settings={flag.name: flag.text for flag in flags},
    )
    say(
        f"load average before the run: {os.getloadavg()[0]:.2f} on {os.cpu_count()} CPUs; "
        f"seed {options.seed}"
    )
    bench = GatewayBench(options, say=say, environment=os.environ)
    interrupted = bench.run()
    for warning in bench.document["warnings"]:
        say(f"warning: {warning}")
    if output == "json":
        print_json(bench.document)
    else:
        rows = [(name, bench.document.get(key)) for key, name in _ROWS]
        print_table(
            ("", "VALUE"), [(name, value) for name, value in rows if value not in (None, "")]
        )
        for name, error in bench.document["errors"].items():
            click.echo(f"  {name}: {error['count']}  {error['example']}")
    if interrupted:
        return 130
    return _verdict(bench.document)


def _verdict(document: Mapping[str, Any]) -> int:
    """1 if any answer was wrong: then the figures are of something that does not work."""
    wrong = {
        key: document.get(key)
        for phase in ("", "fast_")
        for key in (f"{phase}tokens_lost", f"{phase}tokens_doubled")
        if document.get(key)
    }
    if wrong:
        say(f"error: answers differ from what the engine must say: {wrong}")
    return 1 if wrong else 0
