"""``pdd raft replace``: give a dead replica a new log, with the whole group stopped."""

from pathlib import Path

import click

from pdd.cli.options import output_option
from pdd.cli.output import print_json

_SURVIVORS_MIN = 2
"""Of a group of three. A group of one has nobody to copy from."""


@click.command()
@click.argument("replica")
@click.option(
    "--survivor",
    "survivors",
    multiple=True,
    required=True,
    metavar="NAME=FOLDER",
    help="Another replica's log folder, or a copy of it. Give every one of them.",
)
@click.option(
    "--directory",
    required=True,
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Where the new log goes; it must not exist.",
)
@click.option("--cell", default="pdd", show_default=True, metavar="ID", help="The group's id.")
@output_option
def replace(
    replica: str, survivors: tuple[str, ...], directory: Path, cell: str, output: str
) -> None:
    """Build a new log for REPLICA, whose disk is lost, from all other replicas' logs.

    \b
    1. Stop every scheduler of the group.
    2. Bring the others' log folders (STATE_DIR/raft) to one machine; copies will do.
    3. pdd raft replace scheduler-2 --survivor scheduler-0=FOLDER \\
           --survivor scheduler-1=FOLDER --directory NEW
    4. Move what is left of the old STATE_DIR/raft on REPLICA's machine away, and NEW there
       instead, for the daemon's user alone.
    5. Start every scheduler.

    Of a cluster of 'pdd up', 1. is 'pdd down', 5. is 'pdd up' with the same options, and the
    STATE_DIR of scheduler-0 is the folder scheduler-0 in that of --state-dir.

    Never start a replica with an empty folder instead: it would forget its votes and what it
    acknowledged, and could lose what the others rely on. A folder that is only damaged is replaced
    in the same way.
    """
    from pdd.raft.values import NodeId
    from pdd.replication.offline import replace_replica

    done = replace_replica(
        NodeId(replica),
        directory=directory.absolute(),
        survivors={NodeId(name): folder for name, folder in _parse(replica, survivors).items()},
        cluster_id=cell,
    )
    if output == "json":
        print_json(
            {
                "replica": replica,
                "directory": str(done.directory),
                "copied_from": done.copied_from,
                "term": done.term,
                "last_index": done.last_index,
            }
        )
        return
    click.echo(
        f"{replica}: new log in {done.directory}, copied from {done.copied_from} up to entry "
        f"{done.last_index}, term {done.term}; put it into place, then start every scheduler"
    )


def _parse(replica: str, survivors: tuple[str, ...]) -> dict[str, Path]:
    folders: dict[str, Path] = {}
    for text in survivors:
        name, separator, folder = text.partition("=")
        if not (name and separator and folder):
            raise click.UsageError(f"--survivor {text!r} is not NAME=FOLDER")
        if name in folders or name == replica:
            raise click.UsageError(f"{name!r} is named twice")
        folders[name] = Path(folder)
    if len(folders) < _SURVIVORS_MIN:
        raise click.UsageError(
            f"--survivor: {len(folders)} given, at least {_SURVIVORS_MIN} are needed: with one of "
            "them missing, what was acknowledged could be lost. The log of a single scheduler has "
            "no copy: restore its folder, or move it away and start with nothing agreed on."
        )
    return folders
