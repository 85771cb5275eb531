"""``pdd bench raft``: how fast three replicas on this machine commit, with real fsync."""

import os
from dataclasses import asdict
from pathlib import Path

import click

from pdd.cli.options import output_option
from pdd.cli.output import print_json, print_table, say
from pdd.cli.raft_directory import directory_option, scratch_directory


def add_to(group: click.Group) -> None:
    """Register the command under ``pdd bench``."""
    group.add_command(raft)


@click.command()
@click.option(
    "--seconds",
    type=click.FloatRange(0.5, 600),
    default=5.0,
    show_default=True,
    help="How long to measure each window, after one second of warm-up.",
)
@directory_option
@output_option
def raft(seconds: float, directory: Path | None, output: str) -> None:
    """Commit entries on three replicas, with 1, 16 and 64 outstanding.

    Once each answer brings the next entry, and once they come at a given rate, timed from when they
    were due.

    Three processes on loopback, each with a log of its own on the disk of --dir, and a client
    outside of them. Beside it, what a bare fdatasync takes there. Then one entry at a time beside
    soft ones: those of the sequence table, and what the block directory would be in the log.
    """
    import uvloop

    from pdd.replication.bench import run_bench
    from pdd.tls.light_io import use_light_io

    use_light_io()
    say(f"load average before the run: {os.getloadavg()[0]:.2f} on {os.cpu_count()} CPUs")
    with scratch_directory("bench-raft", directory) as place:
        # As the daemons' loops: the client's share is the same as a scheduler's then.
        report = uvloop.run(run_bench(place, seconds=seconds, say=say))
    if output == "json":
        print_json(asdict(report))
        return
    print_table(
        ("WINDOW", "ENTRIES/S", "P50 MS", "P99 MS"),
        [
            (row.window, f"{row.entries_per_s:.0f}", f"{row.p50_ms:.2f}", f"{row.p99_ms:.2f}")
            for row in report.rows
        ],
    )
    print_table(
        ("WINDOW", "OFFERED/S", "ENTRIES/S", "P50 MS", "P99 MS"),
        [
            (
                paced.window,
                paced.offered_per_s,
                f"{paced.entries_per_s:.0f}",
                f"{paced.p50_ms:.2f}",
                f"{paced.p99_ms:.2f}",
            )
            for paced in report.paced_rows
        ],
    )
    print_table(
        ("SOFT LOAD", "WANTED MB/S", "COMMITTED MB/S", "HARD P50 MS", "HARD P99 MS"),
        [
            (
                soft.load,
                f"{soft.wanted_bytes_per_s / 1e6:.2f}",
                f"{soft.soft_bytes_per_s / 1e6:.2f}",
                f"{soft.hard_p50_ms:.2f}",
                f"{soft.hard_p99_ms:.2f}",
            )
            for soft in report.soft_rows
        ],
    )
    click.echo(f"longest pause of a replica: {report.longest_pause_ms:.1f} ms")
    click.echo(f"disk fsync: p50 {report.fsync_p50_ms:.2f} ms, p99 {report.fsync_p99_ms:.2f} ms")
