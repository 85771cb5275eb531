"""``pdd node cordon|uncordon|drain``: take a node out of a cluster by hand, and give it back."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pdd.cli.counted import counted
from pdd.cli.options import state_dir_option
from pdd.cli.output import say
from pdd.cli.scheduler import FoundScheduler, find_scheduler, scheduler_option
from pdd.cli.tls import tls_options
from pdd.core.identity import NodeState, Role

if TYPE_CHECKING:
    from pdd.daemon.cluster_admin import ClusterAdmin
    from pdd.daemon.supervisor_nodes import NodeRow
    from pdd.rpc.v1 import cluster_pb2

_POLL_S = 0.25
_TELL_EVERY_S = 5.0

message_option = click.option(
    "-m", "--message", default="", metavar="TEXT", help="Why; shown in 'pdd node list'."
)


@click.command()
@click.argument("name")
@message_option
@scheduler_option
@state_dir_option
@tls_options
def cordon(
    name: str, message: str, scheduler: str | None, state_dir: Path | None, **tls: Path | None
) -> None:
    """Give a node nothing new; it finishes what it has.

    NAME: its name, or a prefix of only one. It stays cordoned over restarts of everything,
    until 'pdd node uncordon'.
    """
    with find_scheduler(scheduler, state_dir, tls) as found:
        node = found.pick(name)
        warn_of_last(found, node, back=f"pdd node uncordon {node}")
        changed = found.admin.cordon(node, message=message, is_drain=False).is_changed
        click.echo(f"{node} {'cordoned' if changed else 'already cordoned'}")


@click.command()
@click.argument("name")
@scheduler_option
@state_dir_option
@tls_options
def uncordon(name: str, scheduler: str | None, state_dir: Path | None, **tls: Path | None) -> None:
    """Give a cordoned or drained node work again. NAME: its name, or a prefix of only one."""
    with find_scheduler(scheduler, state_dir, tls) as found:
        node = found.pick(name)
        changed = found.admin.uncordon(node)
        click.echo(f"{node} {'uncordoned' if changed else 'was not cordoned'}")


@click.command()
@click.argument("name")
@message_option
@click.option(
    "--deadline-s",
    type=click.FloatRange(min=0, min_open=True),
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to watch.",
)
@click.option("--no-wait", is_flag=True, help="Begin, and do not watch.")
@scheduler_option
@state_dir_option
@tls_options
def drain(
    name: str,
    message: str,
    deadline_s: float,
    no_wait: bool,
    scheduler: str | None,
    state_dir: Path | None,
    **tls: Path | None,
) -> None:
    """Cordon a node and watch until it holds nothing.

    NAME: its name, or a prefix of only one. Its requests finish where they are. At the deadline, or
    with Ctrl-C, only the watching ends: the node stays cordoned and goes on finishing. Exit code 1
    if it still holds requests then.
    """
    with find_scheduler(scheduler, state_dir, tls) as found:
        node = found.pick(name)
        warn_of_last(found, node, back=f"pdd node uncordon {node}")
        begun = found.admin.cordon(node, message=message, is_drain=True)
        if begun.state.is_drained:
            click.echo(
                f"{node} already drained" if not begun.is_changed else _done(node, begun.state)
            )
            return
        say(f"{node} {'cordoned' if begun.is_changed else 'already draining'}")
        if no_wait:
            click.echo(f"{node} draining: {_left(begun.state)}")
            return
        click.echo(_watch(found.admin, node, deadline_s))


def warn_of_last(found: FoundScheduler, node: str, *, back: str) -> None:
    """Say so, on stderr, when a role has nobody left without this node."""
    if text := last_of_its_role(node, found.nodes(), back=back):
        say(f"warning: {text}")


def last_of_its_role(node: str, rows: "Sequence[NodeRow]", *, back: str) -> str:
    """What stops with the last node that takes work of its role; empty while another does.

    ``back``: the command that undoes it. It is done all the same: an operator may mean it.
    """
    working = [row for row in rows if row.state in (NodeState.READY, NodeState.DEGRADED)]
    role = next((row.role for row in working if row.name == node), "")
    if not role or any(row.role == role for row in working if row.name != node):
        return ""
    effect = {
        Role.DECODE: "new requests get 503",
        Role.PREFILL: "decode nodes compute prompts themselves, which their streams feel,",
    }[Role(role)]
    return (
        f"{node} is the last {role} node that takes work: {effect} until another joins or '{back}'"
    )


def _watch(admin: "ClusterAdmin", node: str, deadline_s: float) -> str:
    end_s = time.monotonic() + deadline_s
    tell_s = time.monotonic()
    hint = "       (Ctrl-C stops watching, not the drain)"
    while True:
        state = admin.drain_state(node)
        if state.is_drained:
            return _done(node, state)
        if not state.is_draining:
            raise click.ClickException(f"{node} was uncordoned before it was drained")
        now_s = time.monotonic()
        if now_s >= end_s:
            raise click.ClickException(
                f"{node} is not drained after {deadline_s:g} s: {_left(state)}; it stays cordoned"
            )
        if now_s >= tell_s:
            say(f"{_left(state)}{hint}")
            tell_s, hint = now_s + _TELL_EVERY_S, ""
        time.sleep(_POLL_S)


def _left(state: "cluster_pb2.DrainState") -> str:
    where = " (it is lost)" if state.is_lost else ""
    return f"{counted(state.held_request_count, 'request')} running{where}"


def _done(node: str, state: "cluster_pb2.DrainState") -> str:
    began = counted(state.began_request_count, "request")
    return f"{node} drained in {state.drain_s:.1f} s: it had {began}"
