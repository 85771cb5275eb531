"""``pdd drill``: break parts of pdd on purpose, and check what they promise."""

import click

from pdd.cli import drill_raft


@click.group()
def drill() -> None:
    """Break parts of pdd on purpose, and check what they promise."""


drill_raft.add_to(drill)
