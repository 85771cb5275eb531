"""``pdd doctor``: is this machine fit, and how are the nodes?"""

import os
from pathlib import Path

import click

from pdd.cli.options import output_option, resolve_state_dir, set_option, state_dir_option
from pdd.cli.output import print_json
from pdd.cli.scheduler import check_address
from pdd.cli.tls import client_security, tls_options


@click.command()
@click.option(
    "--config",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Check what this node's file asks for. Without it: the defaults of a node.",
)
@click.option(
    "--scheduler", metavar="HOST:PORT", callback=check_address, help="Whose nodes to look at."
)
@state_dir_option
@tls_options
@set_option
@output_option
def doctor(
    file: Path | None,
    scheduler: str | None,
    state_dir: Path | None,
    sets: tuple[str, ...],
    output: str,
    **tls: Path | None,
) -> int:
    """Check this machine and, where a scheduler answers, its nodes; say what to do next.

    One line per check: ok, warning (works, and could be better) or fault (does not work). Exit
    code 1 if there is any fault. Changes nothing, and loads UCX in a child process only.
    """
    from dataclasses import asdict

    from pdd.config.sources import parse_set
    from pdd.daemon.doctor.check import Level
    from pdd.daemon.doctor.run import diagnose

    if scheduler is not None and state_dir is not None:
        raise click.UsageError("--scheduler and --state-dir name a cluster each; give one.")
    is_named = scheduler is not None or state_dir is not None
    if state_dir is not None or (scheduler is None and file is None):
        scheduler = _local_scheduler(state_dir)
    checks = []
    for check in diagnose(
        file,
        environment=os.environ,
        flags=[parse_set(text) for text in sets],
        scheduler=scheduler,
        is_named=is_named,
        security=client_security(**tls),
    ):
        checks.append(check)
        if output != "json":
            advice = f"; next: {check.advice}" if check.advice else ""
            click.echo(f"{check.level:<8} {check.name}: {check.text}{advice}")
    fault_count = sum(check.level is Level.FAULT for check in checks)
    if output == "json":
        warning_count = sum(check.level is Level.WARNING for check in checks)
        print_json(
            {
                "checks": [asdict(check) for check in checks],
                "fault_count": fault_count,
                "warning_count": warning_count,
            }
        )
    return 1 if fault_count else 0


def _local_scheduler(state_dir: Path | None) -> str | None:
    """The scheduler of the cluster that ``pdd up`` runs there; None if none was named and none
    runs.

    Raises:
        NodeUnavailable: a folder was named and no cluster runs there.
    """
    from pdd.cli.local import scheduler_address
    from pdd.core.errors import NodeUnavailable

    try:
        return scheduler_address(resolve_state_dir(state_dir))
    except NodeUnavailable:
        if state_dir is not None:
            raise
        return None
