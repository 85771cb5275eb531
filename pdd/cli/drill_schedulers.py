"""``pdd drill schedulers``: break a group of schedulers under load, check what clients got."""

from pathlib import Path

import click

from pdd.cli.drill_parts import DrillFailedError, seed_option
from pdd.cli.options import output_option
from pdd.cli.output import print_json, print_table, say
from pdd.cli.raft_directory import directory_option, scratch_directory

_FAULTS_SHOWN = 20


def add_to(group: click.Group) -> None:
    """Register the command under ``pdd drill``."""
    group.add_command(schedulers)


@click.command()
@click.option(
    "--rounds",
    type=click.IntRange(1, 10_000),
    default=21,
    show_default=True,
    help="Faults to inject, one a round, each kind in turn; some 20 s each.",
)
@seed_option
@directory_option
@output_option
def schedulers(rounds: int, seed: int | None, directory: Path | None, output: str) -> None:
    """Break a group of three schedulers under streaming load; check every client's text.

    The leader is killed, stopped, frozen with its replica, cut off from the others, killed
    together with a node, and restarted properly; a follower is killed. What was broken comes back
    in each round. Starts a cluster of its own (synthetic engine, loopback) and touches no other.

    Exit code 1 when a request did not end exactly once with the text of an undisturbed run, or a
    node did not get its blocks back; the cluster's files are kept then.
    """
    import asyncio
    import random

    from pdd.drill.run import run_drill

    if seed is None:
        seed = random.randrange(2**31)  # noqa: S311 -- repeatable by its number, guards nothing
    say(f"seed {seed}")
    with scratch_directory("drill-schedulers", directory) as place:
        result = asyncio.run(run_drill(place, rounds=rounds, seed=seed, say=say))
        report = result.report()
        if output == "json":
            print_json(report)
        else:
            _print_tables(report)
        if result.faults:
            raise DrillFailedError(
                f"{len(result.faults)} promises broken (seed {seed}); files: {place}\n"
                + "\n".join(f"  {fault}" for fault in result.faults[:_FAULTS_SHOWN])
            )


def _print_tables(report: dict[str, object]) -> None:
    kinds = report["kinds"]
    assert isinstance(kinds, dict), "made so by report()"
    names = ("new_leader_ms", "placed_ms", "others_gap_ms", "went_on_ms")
    print_table(
        ("FAULT", "ROUNDS", "NEW LEADER", "PLACED AGAIN", "GAP ELSEWHERE", "ITS OWN CLIENTS"),
        [
            (kind, of_kind["rounds"], *(_cell(of_kind[name]) for name in names))
            for kind, of_kind in kinds.items()
        ],
    )
    say("milliseconds: median / longest")
    rest = [(name, value) for name, value in report.items() if name != "kinds"]
    print_table(("WHAT", "RESULT"), rest)


def _cell(summary: dict[str, float | int | None]) -> str:
    return f"{summary['p50']:.0f} / {summary['max']:.0f}" if summary["count"] else "-"
