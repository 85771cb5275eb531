"""``pdd raft``: the log in which schedulers agree on members, cordons and the like."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from pdd.cli.options import output_option, state_dir_option
from pdd.cli.output import print_json, print_table, say
from pdd.cli.raft_init import init
from pdd.cli.raft_replace import replace
from pdd.cli.scheduler import find_scheduler, scheduler_option
from pdd.cli.tls import tls_options

if TYPE_CHECKING:
    from pdd.rpc.v1.cluster_pb2 import ReplicaInfo

_COLUMNS = ("NAME", "ROLE", "TERM", "COMMIT", "APPLIED", "LAST", "SNAPSHOT", "STATE", "PAUSE")
_HASH_SHOWN_CHARS = 12
_NOBODY_LEADS = (
    "no replica leads. If more than half of them answer, they elect one within some seconds: ask "
    "again. Else start the schedulers of those that do not; one whose disk is lost needs 'pdd raft "
    "replace'"
)


@click.group()
def raft() -> None:
    """The log in which schedulers agree: who is a member, who is cordoned."""


@raft.command()
@scheduler_option
@state_dir_option
@tls_options
@output_option
def status(scheduler: str | None, state_dir: Path | None, output: str, **tls: Path | None) -> None:
    """Show every replica of the log as it sees itself.

    STATE: hash of the state at APPLIED, equal on any two replicas at equal APPLIED. PAUSE: longest
    time for which a replica's loop stood still since its start; near 1 s it looks dead to the
    others. Exit code 1 if nobody leads.
    """
    with find_scheduler(scheduler, state_dir, tls) as found:
        rows = [_row(info) for info in found.admin.replicas()]
    if output == "json":
        print_json(rows)
    else:
        print_table(_COLUMNS, [_cells(row) for row in rows])
        for row in rows:
            if row["fault"]:
                say(f"{row['name']} at {row['address']} does not answer: {row['fault']}")
    if not any(row["role"] == "leader" for row in rows):
        raise click.ClickException(_NOBODY_LEADS)


@raft.command()
@click.argument("replica", required=False)
@scheduler_option
@state_dir_option
@tls_options
def snapshot(
    replica: str | None, scheduler: str | None, state_dir: Path | None, **tls: Path | None
) -> None:
    """Write the state to disk now and shorten the log. REPLICA: one; default: each in turn."""
    with find_scheduler(scheduler, state_dir, tls) as found:
        names = [replica] if replica else [info.name for info in found.admin.replicas()]
        for name in names:
            click.echo(f"{name}: snapshot up to entry {found.admin.take_snapshot(name)}")


@raft.command()
@click.argument("replica")
@scheduler_option
@state_dir_option
@tls_options
def transfer(
    replica: str, scheduler: str | None, state_dir: Path | None, **tls: Path | None
) -> None:
    """Let REPLICA lead, for example before the leader's host is serviced."""
    with find_scheduler(scheduler, state_dir, tls) as found:
        former = found.admin.transfer(replica)
        say(f"{former} hands over to {replica}; see 'pdd raft status'")


raft.add_command(init)
raft.add_command(replace)


def _row(info: "ReplicaInfo") -> dict[str, object]:
    status = info.status
    return {
        "name": info.name,
        "address": info.address,
        "fault": info.fault,
        "role": status.role,
        "term": status.term,
        "leader": status.leader,
        "commit_index": status.commit_index,
        "applied_index": status.applied_index,
        "last_index": status.last_index,
        "snapshot_index": status.snapshot_index,
        "state_hash": status.state_hash.hex(),
        "longest_pause_ms": status.longest_pause_us / 1000,
        "dropped_message_count": status.dropped_message_count,
    }


def _cells(row: dict[str, object]) -> tuple[object, ...]:
    if row["fault"]:
        return (row["name"], "no answer", *["-"] * (len(_COLUMNS) - 2))
    return (
        row["name"],
        row["role"],
        row["term"],
        row["commit_index"],
        row["applied_index"],
        row["last_index"],
        row["snapshot_index"],
        str(row["state_hash"])[:_HASH_SHOWN_CHARS],
        f"{row['longest_pause_ms']:.0f} ms",
    )
