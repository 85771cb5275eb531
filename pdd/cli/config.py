"""``pdd config``: check a configuration, show what is in force and why, or change it."""

import os
from pathlib import Path

import click

from pdd.cli import config_override
from pdd.cli.options import output_option, set_option
from pdd.cli.output import print_json, print_table

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.group()
def config() -> None:
    """Check or show a configuration, or change keys of a running cluster's."""


@config.command()
@click.argument("file", type=_FILE)
@set_option
def check(file: Path, sets: tuple[str, ...]) -> None:
    """Name every fault of FILE, the environment and the flags at once. Exit code 2 if any.

    A model must be named; whether its folder is there and complete is asked when a daemon starts.
    """
    from pdd.config.load import load_config
    from pdd.config.sources import parse_set
    from pdd.daemon.served_model import model_folder

    loaded = load_config(file, environment=os.environ, flags=[parse_set(text) for text in sets])
    model_folder(loaded.config.engine)
    node = loaded.config.node
    click.echo(f"{file}: valid, {node.role} {node.name}")


@config.command()
@click.argument("file", type=_FILE, required=False)
@set_option
@output_option
def show(file: Path | None, sets: tuple[str, ...], output: str) -> None:
    """Show every effective value and where it came from.

    Without FILE: defaults, environment and flags, for a node named "node-0".
    """
    from pdd.config.load import load_config
    from pdd.config.show import rows
    from pdd.config.sources import Setting, parse_set

    presets = []
    if file is None:
        origin = "placeholder"
        presets = [
            Setting(section="node", key="name", value="node-0", origin=origin),
            Setting(section="node", key="role", value="decode", origin=origin),
        ]
    loaded = load_config(
        file,
        environment=os.environ,
        flags=[parse_set(text) for text in sets],
        presets=presets,
    )
    found = list(rows(loaded))
    if output == "json":
        print_json({row.name: {"value": row.value, "origin": row.origin} for row in found})
    else:
        from pdd.config.toml_text import value_text

        print_table(
            ["KEY", "VALUE", "ORIGIN"],
            [(row.name, value_text(row.value), row.origin) for row in found],
        )


@config.command()
def example() -> None:
    """Print a file with every key, its default and its meaning."""
    from pdd.config.show import example_file

    click.echo(example_file(), nl=False)


config_override.add_to(config)
