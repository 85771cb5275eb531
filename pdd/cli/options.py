"""Options that several commands share."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from pdd.config.sources import Flag

_ENGINE_FLAGS: tuple[tuple[str, str], ...] = (
    ("dtype", "TYPE"),
    ("served-model-name", "NAME"),
    ("max-model-len", "TOKENS"),
    ("max-num-seqs", "N"),
    ("max-num-batched-tokens", "TOKENS"),
    ("block-size", "TOKENS"),
    ("gpu-memory-utilization", "FRACTION"),
    ("tensor-parallel-size", "N"),
)
_ENGINE_SWITCHES = ("enable-prefix-caching", "enforce-eager")

_Command = TypeVar("_Command", bound=Callable[..., Any])

output_option = click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="How to print the result.",
)

set_option = click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="SECTION.KEY=VALUE",
    help="Override any key of the configuration. May be given several times.",
)

state_dir_option = click.option(
    "--state-dir",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Folder of the cluster. Default: $PDD_STATE_DIR, else ~/.local/state/pdd/up.",
)


def engine_options(function: _Command) -> _Command:
    """Add ``vllm serve``'s flags, under vLLM's names, in front of ``--set engine.KEY=VALUE``."""
    for flag in reversed(_ENGINE_SWITCHES):
        function = click.option(
            f"--{flag}/--no-{flag}", default=None, help=f"engine.{flag.replace('-', '_')}"
        )(function)
    for flag, metavar in reversed(_ENGINE_FLAGS):
        function = click.option(
            f"--{flag}", metavar=metavar, help=f"engine.{flag.replace('-', '_')}"
        )(function)
    return function


def collect_flags(sets: tuple[str, ...], engine: dict[str, str | bool | None]) -> "list[Flag]":
    """Turn ``--set`` and the options of ``engine_options`` into configuration flags.

    Raises:
        ConfigError: a ``--set`` is not of the form section.key=value.
    """
    from pdd.config.sources import Flag, parse_set

    flags = [parse_set(text) for text in sets]
    for key, value in engine.items():
        spelling = f"--{key.replace('_', '-')}"
        if value is not None:
            text = str(value).lower() if isinstance(value, bool) else value
            flags.append(Flag(name=f"engine.{key}", text=text, spelling=spelling))
    return flags


def resolve_state_dir(given: Path | None) -> Path:
    """The state folder of a local cluster."""
    if given is None and (variable := os.environ.get("PDD_STATE_DIR")):
        given = Path(variable)
    if given is None:
        from pdd.config.load import user_state_dir

        given = user_state_dir(os.environ) / "up"
    return given.expanduser().absolute()
