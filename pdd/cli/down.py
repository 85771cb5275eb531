"""``pdd down``: stop a cluster that ``pdd up`` started."""

from pathlib import Path

import click

from pdd.cli.options import resolve_state_dir, state_dir_option


@click.command()
@state_dir_option
def down(state_dir: Path | None) -> None:
    """Stop the cluster of a state folder and wait until it is gone.

    Says "not running" when there is none; that is no error.
    """
    from pdd.daemon.supervisor_down import stop_cluster

    click.echo(stop_cluster(resolve_state_dir(state_dir)))
