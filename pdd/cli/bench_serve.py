"""``pdd bench serve``: load on any OpenAI endpoint, and what its clients saw."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pdd.cli.options import output_option
from pdd.cli.output import print_json, print_table, say

if TYPE_CHECKING:
    from pdd.bench.generator import Progress
    from pdd.bench.serve import ServeOptions, Watch

_PRESETS = ("chat-replies",)
_KEY_VARIABLE = "OPENAI_API_KEY"
_DURATION_S = 60.0


def add_to(group: click.Group) -> None:
    """Register the command under ``pdd bench``."""
    group.add_command(serve)


@click.command("serve")
@click.option(
    "--url",
    default="http://127.0.0.1:8000",
    show_default=True,
    help="Endpoint, with or without /v1.",
)
@click.option("--model", default="", help="Default: the first that /v1/models lists.")
@click.option(
    "--endpoint", type=click.Choice(["chat", "completions"]), default="chat", show_default=True
)
@click.option(
    "--api-key-env",
    default=_KEY_VARIABLE,
    show_default=True,
    metavar="NAME",
    help="Environment variable with the API key; without it none is sent.",
)
@click.option(
    "--rate",
    type=click.FloatRange(min=0, min_open=True),
    metavar="REQUESTS/S",
    help="Open loop at this average rate. Default: 1.",
)
@click.option(
    "--arrivals",
    type=click.Choice(["poisson", "bursts", "constant"]),
    default="poisson",
    show_default=True,
    help="Rhythm of the open loop.",
)
@click.option(
    "--burst-size",
    type=click.IntRange(2, 100_000),
    default=16,
    show_default=True,
    help="Requests per burst, with --arrivals bursts.",
)
@click.option(
    "--trace",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Open loop from a trace file: Mooncake's JSON lines or Azure's CSV.",
)
@click.option(
    "--trace-speed",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    show_default=True,
    help="Factor on the trace's rate.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(1, 65_536),
    metavar="CLIENTS",
    help="Closed loop: clients that ask again when they are answered.",
)
@click.option(
    "--duration",
    type=click.FloatRange(min=0, min_open=True, max=86_400),
    metavar="SECONDS",
    help="No request begins later. Default: 60, without --requests and --trace.",
)
@click.option("--requests", type=click.IntRange(1, 5_000_000), help="At most so many requests.")
@click.option(
    "--preset",
    type=click.Choice(_PRESETS),
    help="chat-replies: 2,210 tokens in, of which 1,800 are one of 20 personas; 30 out; one "
    "persona has half of all requests.",
)
@click.option("--input-tokens", type=click.IntRange(1, 1 << 22), help="Default: 512.")
@click.option("--output-tokens", type=click.IntRange(1, 1 << 22), help="Default: 128.")
@click.option(
    "--shared-tokens", type=click.IntRange(0, 1 << 22), help="Of the input, shared. Default: 0."
)
@click.option(
    "--personas", type=click.IntRange(1, 1 << 20), help="Different shared beginnings. Default: 1."
)
@click.option(
    "--hot-fraction",
    type=click.FloatRange(0, 1),
    help="Share of requests that one persona has; the others share the rest evenly. Default: 0.",
)
@click.option(
    "--fixed-output/--free-output",
    default=True,
    show_default=True,
    help="Ask for exactly --output-tokens (min_tokens; vLLM, SGLang, pdd), or let answers end.",
)
@click.option("--temperature", type=click.FloatRange(0, 2), default=0.0, show_default=True)
@click.option("--extra-body", metavar="JSON", help="Object merged into every request's body.")
@click.option("--slo-ttft-ms", type=click.FloatRange(min=0), default=150.0, show_default=True)
@click.option("--slo-tpot-ms", type=click.FloatRange(min=0), default=30.0, show_default=True)
@click.option(
    "--slo-gap-ms",
    type=click.FloatRange(min=0),
    default=50.0,
    show_default=True,
    help="For the mean of a request's worst tenth of gaps.",
)
@click.option("--slo-e2e-ms", type=click.FloatRange(min=0), help="Default: none.")
@click.option("--seed", type=click.IntRange(0, 1 << 31), default=1, show_default=True)
@click.option(
    "--processes",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="Generator processes.",
)
@click.option(
    "--connections",
    type=click.IntRange(1, 65_536),
    default=4096,
    show_default=True,
    help="Open at the same time; requests beyond wait, and their clock runs.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="For one request; then it has failed.",
)
@click.option(
    "--grace",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="For open requests after the last has begun; then they are unfinished.",
)
@click.option(
    "--picture",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Draw latencies over time, distributions and stages: .png, .svg or .pdf.",
)
@click.option("--no-ceiling", is_flag=True, help="Do not measure the generator itself first.")
@output_option
def serve(output: str, **given: Any) -> int:
    """Load an OpenAI endpoint and measure TTFT, ITL, TPOT, E2E and goodput.

    Arrival times and prompts follow from the seed alone. In an open loop (default) requests leave
    when they are due, and their clocks start then, however slow the server is. Percentiles are
    exact. Rejected and failed requests are in the denominator of every goodput.

    The JSON document's keys are described in pdd/bench/report.py. Ctrl-C ends the load and prints
    what there is (exit code 130). Exit code 1 when not one request was completed.
    """
    options = _options(given, environment=os.environ)
    from pdd.bench.serve import run_serve

    document, interrupted = run_serve(options, say=say, watch=_watch)
    for warning in document["generator"]["warnings"]:
        say(f"warning: {warning}")
    if output == "json":
        print_json(document)
    else:
        _print(document)
    if interrupted:
        return 130
    if not document["completed"]:
        say("no request was completed: see the errors; --input-tokens, --output-tokens set lengths")
        return 1
    return 0


def _options(given: Mapping[str, Any], *, environment: Mapping[str, str]) -> "ServeOptions":
    """Raises UsageError for options that contradict each other."""
    from pdd.bench.arrivals import ArrivalKind, Arrivals
    from pdd.bench.goodput import Objectives
    from pdd.bench.serve import ServeOptions
    from pdd.bench.target import BodyOptions, Endpoint, parse_url

    loops = [f"--{name}" for name in ("rate", "trace", "concurrency") if given[name] is not None]
    if "--rate" in loops and len(loops) > 1:
        raise click.UsageError(f"{' and '.join(loops)} cannot be combined: choose one load.")
    arrivals = None
    if given["trace"] is None and given["concurrency"] is None:
        kind = ArrivalKind(given["arrivals"])
        arrivals = Arrivals(
            kind=kind,
            rate_per_s=given["rate"] or 1.0,
            burst_size=given["burst_size"] if kind is ArrivalKind.BURSTS else 1,
        )
    duration_s = given["duration"]
    if duration_s is None and given["trace"] is None:
        # With a number of requests alone, an open loop takes as long as they take.
        wanted = given["requests"]
        duration_s = _DURATION_S
        if wanted is not None:
            duration_s = None if arrivals is None else 10 * wanted / arrivals.rate_per_s + 60
    key = environment.get(given["api_key_env"], "")
    return ServeOptions(
        target=parse_url(
            given["url"], headers=(("Authorization", f"Bearer {key}"),) if key else ()
        ),
        body=BodyOptions(
            endpoint=Endpoint(given["endpoint"]),
            model=given["model"],
            fixed_output=given["fixed_output"],
            temperature=given["temperature"],
            extra=_extra(given["extra_body"]),
        ),
        shape=_shape(given),
        arrivals=arrivals,
        trace=given["trace"],
        trace_speed=given["trace_speed"],
        clients=given["concurrency"],
        duration_s=duration_s,
        request_count=given["requests"],
        seed=given["seed"],
        process_count=min(given["processes"], given["concurrency"] or given["processes"]),
        connections_max=given["connections"],
        timeout_s=given["timeout"],
        grace_s=given["grace"],
        objectives=Objectives(
            ttft_s=given["slo_ttft_ms"] / 1e3,
            tpot_s=given["slo_tpot_ms"] / 1e3,
            gap_s=given["slo_gap_ms"] / 1e3,
            e2e_s=None if given["slo_e2e_ms"] is None else given["slo_e2e_ms"] / 1e3,
        ),
        picture=given["picture"],
        with_ceiling=not given["no_ceiling"],
    )


def _shape(given: Mapping[str, Any]) -> Any:
    """The preset, with what was said beside it."""
    import dataclasses

    from pdd.bench.workload import CHAT_REPLIES, Shape

    shape = CHAT_REPLIES if given["preset"] else Shape(input_tokens=512, output_tokens=128)
    names = {
        "input_tokens": "input_tokens",
        "output_tokens": "output_tokens",
        "shared_tokens": "shared_tokens",
        "personas": "persona_count",
        "hot_fraction": "hot_fraction",
    }
    said = {field: given[name] for name, field in names.items() if given[name] is not None}
    shape = dataclasses.replace(shape, **said)
    if shape.shared_tokens > shape.input_tokens:
        raise click.UsageError(
            f"--shared-tokens {shape.shared_tokens} is more than the {shape.input_tokens} input "
            "tokens that it is part of."
        )
    return shape


def _extra(text: str | None) -> dict[str, object]:
    if text is None:
        return {}
    try:
        extra = json.loads(text)
    except ValueError as error:
        raise click.UsageError(f"--extra-body is no JSON: {error}") from error
    if not isinstance(extra, dict):
        raise click.UsageError('--extra-body must be a JSON object, for example {"top_p": 0.9}.')
    return extra


@contextmanager
def _watch(span_s: float | None, total: int | None) -> "Iterator[Watch]":
    """A bar on stderr while the load runs; one line at its end where stderr is no terminal."""
    import time

    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    began_s = time.monotonic()
    with Bar(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("starting", total=span_s or total)

        def show(now: "Progress") -> None:
            ended = now.done + now.rejected + now.failed
            text = f"{now.sent} sent, {now.open} open, {now.done} done, {now.tokens} tokens"
            if now.rejected or now.failed:
                text += f", {now.rejected} rejected, {now.failed} failed"
            completed = time.monotonic() - began_s if span_s is not None else ended
            bar.update(task, description=text, completed=completed)

        yield show


def _print(document: Mapping[str, Any]) -> None:
    rows = [
        (name.removesuffix("_ms").upper(), *(_cell(row[key]) for key in _PERCENTILE_KEYS))
        for name, row in document["percentiles"].items()
    ]
    if document["stages_ms"] is not None:
        rows += [
            (f"stage {name}", *(_cell(row[key]) for key in _PERCENTILE_KEYS))
            for name, row in document["stages_ms"].items()
        ]
    print_table(("MS", "N", "MEAN", "P50", "P90", "P95", "P99", "P99.9", "MAX"), rows)
    click.echo()
    objectives = document["goodput"]["objectives_ms"]
    said = ", ".join(f"{name} {value:g} ms" for name, value in objectives.items() if value)
    print_table(
        ("GOODPUT", "GOOD", "OF", "SHARE", "PER S"),
        [
            (name, row["good"], row["of"], _cell(row["fraction"]), _cell(row["per_s"]))
            for name, row in document["goodput"].items()
            if name != "objectives_ms"
        ],
    )
    click.echo(f"({said})\n")
    click.echo(
        f"{document['sent']} sent in {document['duration_s']:g} s: {document['completed']} "
        f"completed, {document['rejected']} rejected, {document['failed']} failed; "
        f"{document['tokens_per_s'] or 0:,.1f} tokens/s"
    )
    for name, row in document["errors"].items():
        click.echo(f"  {name}: {row['count']}  {row['example']}")
    generator = document["generator"]
    if document["interrupted"]:
        click.echo(f"interrupted: {generator['cut_off']} requests were cut off and are not counted")
    click.echo(
        f"generator: {generator['cpu_us_per_token'] or 0:g} us of CPU per token, p99 "
        f"{generator['lateness_ms']['p99'] or 0:g} ms late, ceiling "
        f"{generator['ceiling_tokens_per_s'] or 'not measured'} tokens/s"
    )


_PERCENTILE_KEYS = ("count", "mean", "p50", "p90", "p95", "p99", "p99_9", "max")


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:,.2f}" if isinstance(value, float) else str(value)
