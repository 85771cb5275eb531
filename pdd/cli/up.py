"""``pdd up``: a whole cluster on this machine."""

import os
from pathlib import Path

import click

from pdd.cli.options import (
    collect_flags,
    engine_options,
    output_option,
    resolve_state_dir,
    set_option,
    state_dir_option,
)

_NODES_AT_MOST = 64
_GROUP_SIZES = (1, 3, 5)


@click.command()
@click.option("--detach", is_flag=True, help="Return when the cluster is ready; it runs on.")
@click.option(
    "--engine",
    type=click.Choice(["vllm", "synthetic"]),
    default="vllm",
    show_default=True,
    help="What computes tokens.",
)
@click.option(
    "--model",
    metavar="MODEL",
    help="Hugging Face folder or hub id. Default: SmolLM2-135M-Instruct, which is included; with "
    "--engine synthetic a tokenizer of English words that is made on the spot.",
)
@click.option(
    "--schedulers",
    type=click.IntRange(1, 5),
    default=1,
    show_default=True,
    help="1, 3 or 5. All take requests, one at a time gives places; 3 outlive the loss of one.",
)
@click.option(
    "--prefill",
    type=click.IntRange(0, _NODES_AT_MOST),
    default=1,
    show_default=True,
    help="Prefill nodes. 0: decode nodes do both (co-located).",
)
@click.option(
    "--decode",
    type=click.IntRange(1, _NODES_AT_MOST),
    default=1,
    show_default=True,
    help="Decode nodes.",
)
@click.option(
    "--http-port",
    type=click.IntRange(0, 65535),
    default=8000,
    show_default=True,
    help="Port of the OpenAI-compatible endpoint, on loopback; further schedulers take the next "
    "ones. 0: any free ones.",
)
@click.option(
    "--grpc-port",
    type=click.IntRange(0, 65535),
    default=0,
    show_default=True,
    help="Port of the scheduler's gRPC server, on loopback, likewise. 0: any free ones.",
)
@state_dir_option
@click.option(
    "--threads-per-node",
    type=click.IntRange(1, 1024),
    default=1,
    show_default=True,
    help="Cores for each node's engine, dealt out from those this process may use.",
)
@click.option(
    "--start-timeout",
    type=click.FloatRange(1, 86_400),
    default=600,
    show_default=True,
    metavar="SECONDS",
    help="How long one daemon may take to become ready.",
)
@engine_options
@set_option
@output_option
def up(
    detach: bool,
    engine: str,
    model: str | None,
    schedulers: int,
    prefill: int,
    decode: int,
    http_port: int,
    grpc_port: int,
    state_dir: Path | None,
    threads_per_node: int,
    start_timeout: float,
    sets: tuple[str, ...],
    output: str,
    **engine_flags: str | bool | None,
) -> int:
    """Start schedulers and nodes on this machine, and watch them until Ctrl-C.

    Progress goes to stderr. When the cluster is ready its endpoint goes to stdout. A daemon that
    dies is started again. Ctrl-C, SIGTERM or 'pdd down' ends everything within 10 s.
    """
    if schedulers not in _GROUP_SIZES:
        raise click.UsageError(f"--schedulers {schedulers}: a group has 1, 3 or 5 of them.")
    if http_port and http_port == grpc_port:
        raise click.UsageError(f"--http-port and --grpc-port are both {http_port}.")
    from pdd.cli.up_run import UpRequest, run_up

    return run_up(
        UpRequest(
            state_dir=resolve_state_dir(state_dir),
            engine=engine,
            model=model,
            prefill_count=prefill,
            decode_count=decode,
            http_port=http_port,
            grpc_port=grpc_port,
            scheduler_count=schedulers,
            threads_per_node=threads_per_node,
            start_timeout_s=start_timeout,
            flags=tuple(collect_flags(sets, engine_flags)),
            is_detached=detach,
            as_json=output == "json",
        ),
        environment=os.environ,
    )


@click.command(hidden=True)
def supervise() -> int:
    """The background half of 'pdd up --detach': reads its task from stdin."""
    from pdd.cli.up_detached import supervise_from_stdin

    return supervise_from_stdin()
