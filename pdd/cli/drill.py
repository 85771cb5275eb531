"""``pdd drill``: break parts of pdd on purpose, and check what they promise."""

import click

from pdd.cli import drill_raft, drill_schedulers


@click.group()
def drill() -> None:
    """Break parts of pdd on purpose, and check what they promise."""


drill_raft.add_to(drill)
drill_schedulers.add_to(drill)
