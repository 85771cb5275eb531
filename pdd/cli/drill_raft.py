"""``pdd drill raft``: kill and stop replica processes under load, then check every promise."""

from dataclasses import asdict
from pathlib import Path

import click

from pdd.cli.drill_parts import DrillFailedError, seed_option
from pdd.cli.options import output_option
from pdd.cli.output import print_json, print_table, say
from pdd.cli.raft_directory import directory_option, scratch_directory


def add_to(group: click.Group) -> None:
    """Register the command under ``pdd drill``."""
    group.add_command(raft)


@click.command()
@click.option(
    "--rounds",
    type=click.IntRange(1, 10_000),
    default=20,
    show_default=True,
    help="Faults to inject, one a round, each kind in turn.",
)
@seed_option
@directory_option
@output_option
def raft(rounds: int, seed: int | None, directory: Path | None, output: str) -> None:
    """Kill and stop three replicas under load, and check what clients were told.

    The leader, a follower, two and all of them; during a snapshot, and while a follower lags;
    every other round beside soft entries, as the schedulers' table of requests makes them.
    Exit code 1 when an acknowledged write is gone, states differ, a term had two leaders or the
    history is not linearizable; the group's directory is kept then.
    """
    import asyncio
    import random

    from pdd.replication.drill.run import run_drill

    if seed is None:
        seed = random.randrange(2**31)  # noqa: S311 -- repeatable by its number, guards nothing
    say(f"seed {seed}")
    with scratch_directory("drill-raft", directory) as place:
        result = asyncio.run(run_drill(place, rounds=rounds, seed=seed, say=say))
        report = asdict(result.report)
        if output == "json":
            print_json(report)
        else:
            print_table(("WHAT", "RESULT"), report.items())
        say(result.soft.told())
        say(f"leaders killed in the middle of writing a snapshot: {result.snapshots_hit}")
        if result.faults:
            raise DrillFailedError(
                f"{len(result.faults)} promises broken (seed {seed}); files: {place}\n"
                + "\n".join(f"  {fault}" for fault in result.faults[:20])
            )
