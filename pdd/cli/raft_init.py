"""``pdd raft init``: begin the log of a scheduler of a new group."""

import os
from pathlib import Path

import click


@click.command()
@click.option(
    "--config",
    "file",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="The scheduler's TOML file, with [raft].",
)
def init(file: Path) -> None:
    """Make the empty log of a scheduler that is to be one of several.

    Once for each of them, when the group is new, as the daemon's user. A scheduler of a group never
    does this by itself: one whose disk was lost must not start empty ('pdd raft replace').
    """
    from pdd.config.load import load_config
    from pdd.core.errors import ConfigError
    from pdd.core.identity import Role
    from pdd.daemon.replica_plan import begin_log_of

    config = load_config(file, environment=os.environ, flags=()).config
    if config.node.role is not Role.SCHEDULER or not config.raft.replicas:
        raise ConfigError(
            f"{file}: names no group (raft.replicas); a scheduler that rules alone needs no init"
        )
    folder = begin_log_of(config)
    click.echo(f"{config.node.name}: log begun in {folder}")
