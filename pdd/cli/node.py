"""``pdd node``: the nodes of a cluster."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from pdd.cli.node_drain import cordon, drain, uncordon
from pdd.cli.node_role import role
from pdd.cli.options import output_option, state_dir_option
from pdd.cli.output import print_json, print_table
from pdd.cli.scheduler import find_scheduler, pick_name, scheduler_option
from pdd.cli.tls import tls_options

if TYPE_CHECKING:
    from pdd.daemon.supervisor_nodes import BlocksRow, LinkRow, NodeRow

_COLUMNS = (
    "NAME",
    "ROLE",
    "STATE",
    "BLOCKS",
    "FREE",
    "RUNNING",
    "WAITING",
    "TRANSPORT",
    "ADDRESS",
    "PID",
)
_LINK_COLUMNS = ("FROM", "TRANSPORT", "RECEIVED", "SPEED", "LANES")


@click.group()
def node() -> None:
    """Look at the nodes of a cluster, take one out, give it back."""


@node.command("list")
@scheduler_option
@state_dir_option
@tls_options
@output_option
def list_command(
    scheduler: str | None, state_dir: Path | None, output: str, **tls: Path | None
) -> None:
    """List the nodes that joined, by name.

    ROLE is what a node does; 'decode > prefill' finishes what it has before it changes.
    TRANSPORT is what a node's blocks from its peers come over; 'pdd node show' tells more.
    """
    from dataclasses import asdict

    with find_scheduler(scheduler, state_dir, tls) as found:
        rows = found.nodes()
    if output == "json":
        print_json([found.staleness.mark(asdict(row)) for row in rows])
        return
    print_table(
        _COLUMNS,
        [
            (
                row.name,
                f"{row.role} > {row.next_role}" if row.next_role else row.role,
                state_cell(row.state, row.state_reason),
                row.block_count,
                row.free_block_count,
                row.running_sequence_count,
                row.waiting_sequence_count,
                ",".join(dict.fromkeys(link.transport or "none" for link in row.links)) or "-",
                row.address,
                row.pid,
            )
            for row in rows
        ],
    )


@node.command()
@click.argument("name")
@scheduler_option
@state_dir_option
@tls_options
@output_option
def show(
    name: str, scheduler: str | None, state_dir: Path | None, output: str, **tls: Path | None
) -> None:
    """Show one node and its connections to its peers. NAME: its name, or a prefix of only one."""
    from dataclasses import asdict

    with find_scheduler(scheduler, state_dir, tls) as found:
        by_name = {row.name: row for row in found.nodes()}
    row = by_name[pick_name(name, list(by_name))]
    if output == "json":
        print_json(found.staleness.mark(asdict(row)))
        return
    for title, text in (
        ("name", row.name),
        ("role", _role_text(row)),
        ("state", row.state),
        ("reason", row.state_reason),
        ("model", row.model),
        ("address", row.address),
        ("identity", f"{row.uuid}, boot {row.boot_epoch}, pid {row.pid}"),
        ("blocks", f"{row.free_block_count} of {row.block_count} free"),
        ("", "" if row.blocks is None else _block_cells(row.blocks)),
        (
            "sequences",
            f"{row.running_sequence_count} running, {row.waiting_sequence_count} waiting",
        ),
    ):
        if text:
            click.echo(f"{title:<10} {text}")
    if row.links:
        click.echo()
        print_table(_LINK_COLUMNS, [_link_cells(link) for link in row.links])


def state_cell(state: str, reason: str) -> str:
    """``cordoned (swap NIC)``: a reason that names the state does not say it twice."""
    reason = "" if reason == state else reason.removeprefix(f"{state}: ")
    return f"{state} ({reason})" if reason else state


def _block_cells(blocks: "BlocksRow") -> str:
    states = ("free", "cached", "active", "leased", "quarantined")
    text = ", ".join(f"{getattr(blocks, state)} {state}" for state in states)
    return text + "".join(
        f", {count} {what.upper()}"
        for what, count in (("lost", blocks.lost), ("in two states", blocks.doubled))
        if count
    )


def _role_text(row: "NodeRow") -> str:
    """What it does, what it will do, and who says so where that is not its configuration."""
    text = f"{row.role}, changing to {row.next_role}" if row.next_role else row.role
    if row.role_reason:
        text += f" ({row.role_decided_by}: {row.role_reason})"
    elif row.role_decided_by not in ("", "configuration"):
        text += f" ({row.role_decided_by})"
    return text


def _link_cells(link: "LinkRow") -> tuple[str, str, str, str, str]:
    if link.refused_reason:
        return link.peer, "refused", "-", "-", link.refused_reason
    speed = f"{link.bytes_per_s / 1e9:.2f} GB/s" if link.bytes_per_s else "-"
    received = f"{link.received_bytes / 1e6:.1f} MB"
    return link.peer, link.transport or "none", received, speed, " ".join(link.lanes)


for _command in (cordon, uncordon, drain, role):
    node.add_command(_command)
