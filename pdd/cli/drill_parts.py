"""What the drills' commands share."""

import click

from pdd.core.errors import PddError


class DrillFailedError(PddError):
    """Something was promised and not kept."""


seed_option = click.option(
    "--seed",
    type=click.IntRange(0, 2**31 - 1),
    help="Repeats the choices of an earlier drill. Default: drawn, and printed.",
)
