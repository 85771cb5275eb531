"""``pdd bench transfer``: how fast KV blocks move between two processes of this machine."""

import dataclasses
import json

import click

from pdd.cli.output import say

_DEFAULT_PROMPTS = (2048, 8192)
_BLOCK_TOKENS = 128


def add_to(group: click.Group) -> None:
    """Register the command under ``pdd bench``."""
    group.add_command(transfer)


@click.command()
@click.option("--blocks", type=click.IntRange(1, 100_000), help="Blocks to move, instead of cases.")
@click.option(
    "--block-bytes",
    type=click.IntRange(4096, 1 << 30),
    default=2_949_120,
    show_default=True,
    help="Bytes of one block, with --blocks.",
)
@click.option(
    "--layout",
    type=click.Choice(["block", "layer"]),
    default="block",
    show_default=True,
    help="One stretch per block, or 30 strided segments, with --blocks.",
)
@click.option(
    "--transport",
    type=click.Choice(["auto", "tcp", "shm"]),
    default="auto",
    show_default=True,
    help="auto measures tcp and shm.",
)
@click.option(
    "--chunks",
    type=click.IntRange(1, 1000),
    default=1,
    show_default=True,
    help="Announce the blocks in that many parts.",
)
@click.option("--case", "cases", multiple=True, help="Only this case (a, b, d, e); repeatable.")
@click.option("--repetitions", type=click.IntRange(1, 100), default=5, show_default=True)
@click.option("--no-digest", is_flag=True, help="Move the blocks without digests.")
@click.option("--no-exposed", is_flag=True, help="Leave out the chunked prompts.")
@click.option("--no-cancels", is_flag=True, help="Leave out how soon a cancel is obeyed.")
@click.option(
    "--live",
    is_flag=True,
    help="Between two vLLM engines with the default model instead, beside a running stream.",
)
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table")
def transfer(
    blocks: int | None,
    block_bytes: int,
    layout: str,
    transport: str,
    chunks: int,
    cases: tuple[str, ...],
    repetitions: int,
    no_digest: bool,
    no_exposed: bool,
    no_cancels: bool,
    live: bool,
    output: str,
) -> None:
    """Move KV blocks between two processes and verify every byte.

    Prints medians and spread of GB/s and CPU seconds per GB (both processes), beside a one-thread
    memcpy of the same blocks and UCX's own ucx_perftest. Then the exposed part of prompts that
    arrive in chunks of 512 tokens.

    With --live: starts a prefill and a decode engine, moves prompts of 3,000 tokens between them
    while the decode engine streams, and prints how fast the blocks moved and what the stream
    noticed. Takes about three minutes per transport.
    """
    if live:
        _measure_live(transport, output)
        return
    from pdd.transfer import benchmark
    from pdd.transfer.benchmark_pair import Case
    from pdd.transfer.benchmark_perftest import perftest

    chosen = list(benchmark.CASES)
    if blocks is not None and cases:
        raise click.UsageError(
            "--case names what to move, and so do --blocks and its shape; give one."
        )
    if blocks is not None:
        layers = 1 if layout == "block" else 30
        chosen = [
            Case(
                name="custom",
                block_count=blocks,
                layer_count=layers,
                segment_bytes=block_bytes // layers,
            )
        ]
    elif cases:
        known = {case.name for case in chosen}
        unknown = sorted(set(cases) - known)
        if unknown:
            raise click.BadParameter(
                f"{unknown[0]!r} is none of {', '.join(sorted(known))}", param_hint="--case"
            )
        chosen = [case for case in chosen if case.name in cases]
    lanes = ["tcp", "shm"] if transport == "auto" else [transport]
    ceiling = perftest()
    rows = []
    for case in chosen:
        for lane in lanes:
            click.echo(f"case {case.name}, {lane} ...", err=True)
            row = benchmark.measure(
                case,
                transport=lane,
                digest=not no_digest,
                repetitions=repetitions,
                chunk_count=min(chunks, case.block_count),
                perftest_gb_per_s=ceiling,
            )
            rows.append(row)
    exposed = []
    if not no_exposed and blocks is None:
        for lane in lanes:
            for prompt_tokens in _DEFAULT_PROMPTS:
                click.echo(f"prompt of {prompt_tokens} tokens, {lane} ...", err=True)
                whole = next(case for case in benchmark.CASES if case.name == "e")
                prompt = dataclasses.replace(whole, block_count=prompt_tokens // _BLOCK_TOKENS)
                exposed.append(
                    benchmark.measure_exposed(
                        prompt,
                        transport=lane,
                        prompt_tokens=prompt_tokens,
                        block_tokens=_BLOCK_TOKENS,
                    )
                )
    cancels = []
    if not no_cancels:
        for lane in lanes:
            click.echo(f"cancels, {lane} ...", err=True)
            cancels.append(benchmark.measure_cancel(chosen[0], transport=lane))
    if output == "json":
        click.echo(json.dumps({"rows": rows, "exposed": exposed, "cancel": cancels}))
        return
    for line in _table(rows):
        click.echo(line)
    for part in exposed:
        click.echo(
            f"prompt {part['prompt_tokens']:>6} tokens in chunks of {part['chunk_tokens']}, "
            f"{part['transport']}: exposed {part['exposed_ms']} ms, last chunk alone "
            f"{part['last_chunk_ms']} ms, whole transfer {part['whole_ms']} ms"
        )
    for part in cancels:
        click.echo(
            f"{part['cancels']} cancels while case {part['case']} moves over {part['transport']}: "
            f"p50 {part['p50_ms']} ms, p99 {part['p99_ms']} ms, longest {part['max_ms']} ms"
        )


def _measure_live(transport: str, output: str) -> None:
    context = click.get_current_context()
    others = [
        name
        for name in context.params
        if name not in ("live", "transport", "output")
        and context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
    ]
    if others:
        option = next(o.opts[0] for o in context.command.params if o.name == others[0])
        raise click.UsageError(f"{option} cannot be combined with --live.")
    if transport == "shm":
        raise click.UsageError("--live measures --transport tcp, or auto: shared memory, then tcp.")
    from pdd.bench.live import LiveSpec, measure_live
    from pdd.bench.live_figures import describe

    transports = ("auto", "tcp") if transport == "auto" else (transport,)
    rows = measure_live(LiveSpec(transports=transports), report=say)
    if output == "json":
        click.echo(json.dumps({"live": rows}))
        return
    for row in rows:
        click.echo(describe(row))


def _table(rows: list[dict[str, object]]) -> list[str]:
    """The rows for people."""
    names = (
        "case",
        "layout",
        "transport",
        "gb_per_s",
        "gb_per_s_min",
        "gb_per_s_max",
        "cpu_s_per_gb",
        "checksums_ok",
        "memcpy_gb_per_s",
        "perftest_gb_per_s",
    )
    cells = [list(names)] + [[str(row[name]) for name in names] for row in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(names))]
    return ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) for line in cells]
