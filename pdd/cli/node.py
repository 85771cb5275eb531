"""``pdd node``: the nodes of a cluster."""

from pathlib import Path

import click

from pdd.cli.options import output_option, resolve_state_dir, state_dir_option
from pdd.cli.output import print_json, print_table

_COLUMNS = ("NAME", "ROLE", "STATE", "BLOCKS", "FREE", "RUNNING", "WAITING", "ADDRESS", "PID")


@click.group()
def node() -> None:
    """Look at the nodes of a cluster."""


@node.command("list")
@click.option("--scheduler", metavar="HOST:PORT", help="gRPC address of a scheduler.")
@state_dir_option
@output_option
def list_command(scheduler: str | None, state_dir: Path | None, output: str) -> None:
    """List the nodes that joined, by name."""
    from dataclasses import asdict

    from pdd.daemon.supervisor_nodes import list_nodes

    if scheduler is not None and state_dir is not None:
        raise click.UsageError("--scheduler and --state-dir name a cluster each; give one.")
    if scheduler is None:
        from pdd.cli.local import running_cluster

        scheduler = running_cluster(resolve_state_dir(state_dir)).grpc
    rows = list_nodes(scheduler, timeout_s=5.0)
    if output == "json":
        print_json([asdict(row) for row in rows])
        return
    print_table(
        _COLUMNS,
        [
            (
                row.name,
                row.role,
                f"{row.state} ({row.state_reason})" if row.state_reason else row.state,
                row.block_count,
                row.free_block_count,
                row.running_sequence_count,
                row.waiting_sequence_count,
                row.address,
                row.pid,
            )
            for row in rows
        ],
    )
