"""Where the raft benchmark and drill keep their logs: on a real disk, unlike many a /tmp."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click

directory_option = click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Put the replicas' files below DIR. Default: ~/.local/state/pdd.",
)


@contextlib.contextmanager
def scratch_directory(purpose: str, parent: Path | None) -> Iterator[Path]:
    """A new directory; removed on success, kept (and named by the error) on failure."""
    if parent is None:
        from pdd.config.load import user_state_dir

        parent = user_state_dir(os.environ)
    parent.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(prefix=f"{purpose}-", dir=parent.absolute()))
    yield place
    shutil.rmtree(place)
