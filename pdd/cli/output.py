"""Print results: tables for people, JSON for programs."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

import click


def print_json(value: Any) -> None:
    """One JSON document on stdout."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A plain table on stdout, as wide as its content when stdout is not a terminal."""
    import sys

    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, no_wrap=True, overflow="ignore")
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    # A pipe has no width; cutting columns there would lose data.
    Console(width=None if sys.stdout.isatty() else 10_000, highlight=False).print(table)


def say(text: str) -> None:
    """One line of progress, on stderr."""
    click.echo(text, err=True)
