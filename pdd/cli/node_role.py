"""``pdd node role``: which duty each node has, and another one by hand."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pdd.cli.counted import counted
from pdd.cli.node_drain import message_option, warn_of_last
from pdd.cli.options import output_option, state_dir_option
from pdd.cli.output import print_json, print_table, say
from pdd.cli.scheduler import FoundScheduler, find_scheduler, pick_name, scheduler_option
from pdd.cli.tls import tls_options
from pdd.core.identity import Role

if TYPE_CHECKING:
    from pdd.daemon.cluster_admin import ClusterAdmin
    from pdd.rpc.v1 import cluster_pb2

_POLL_S = 0.25
_TELL_EVERY_S = 5.0
_SWITCHES_SHOWN = 10


@click.command()
@click.argument("name", required=False)
@click.argument("role", required=False, type=click.Choice(["prefill", "decode", "auto"]))
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
@output_option
def role(
    name: str | None,
    role: str | None,
    message: str,
    deadline_s: float,
    no_wait: bool,
    scheduler: str | None,
    state_dir: Path | None,
    output: str,
    **tls: Path | None,
) -> None:
    """Give a node another duty; without NAME, show which duty each node has.

    \b
    pdd node role                     duties, load of both pools, latest switches
    pdd node role decode-1 prefill    it finishes what it has, then computes prompts
    pdd node role decode-1 auto       as the controller decides; without one ([roles] mode),
                                      as its configuration says

    The engine is not restarted and keeps its prefix cache. A role that is set holds, over restarts
    of the node, until it is given back with auto; the controller leaves the node alone. A node that
    still runs old work after [roles] switch_deadline_s keeps its role for now and is asked again
    later. The last decode node stays one. NAME: a node's name, or a prefix of only one. Exit code 1
    if it has not changed when the watching ends.
    """
    if name is not None and role is None:
        raise click.UsageError("Name a role too: prefill, decode or auto.")
    with find_scheduler(scheduler, state_dir, tls) as found:
        if name is None or role is None:
            _show(found, output)
            return
        before = {one.node: one.role for one in found.admin.roles().nodes}
        node = pick_name(name, list(before))
        if role == Role.DECODE and before[node] == Role.PREFILL:
            warn_of_last(found, node, back=f"pdd node role {node} prefill")
        begun = found.admin.set_role(node, role, message=message)
        now = begun.role
        if not now.role:
            click.echo(f"{node} left to auto; it is not here at the moment")
            return
        if now.waits_for:
            raise click.ClickException(f"{node} stays {now.role} for now: {now.waits_for}")
        if not now.next_role:
            how = "" if begun.is_changed else "already "
            click.echo(f"{node} {how}{now.role}" + (", left to auto" if role == "auto" else ""))
            return
        if no_wait:
            click.echo(f"{node} {_left(now)}")
            return
        click.echo(_watch(found.admin, node, deadline_s))


def _watch(admin: "ClusterAdmin", node: str, deadline_s: float) -> str:
    began_s = tell_s = time.monotonic()
    hint = "       (Ctrl-C stops watching, not the change)"
    target = ""
    while True:
        now = next(one for one in admin.roles().nodes if one.node == node)
        target = now.next_role or target
        now_s = time.monotonic()
        if not now.next_role:
            if target and now.role != target:
                raise click.ClickException(
                    f"{node} stays {now.role}: {now.waits_for or now.reason}"
                )
            return f"{node} {now.role} after {now_s - began_s:.1f} s"
        if now_s - began_s >= deadline_s:
            raise click.ClickException(
                f"{node} has not changed after {deadline_s:g} s: {_left(now)}; it goes on"
            )
        if now_s >= tell_s:
            say(f"{node} {_left(now)}{hint}")
            tell_s, hint = now_s + _TELL_EVERY_S, ""
        time.sleep(_POLL_S)


def _left(now: "cluster_pb2.NodeRole") -> str:
    return f"changes to {now.next_role}: {counted(now.held_request_count, 'request')} to finish"


def _show(found: FoundScheduler, output: str) -> None:
    roles = found.admin.roles()
    if output == "json":
        print_json(found.staleness.mark(_document(roles)))
        return
    click.echo(f"controller {roles.mode}" + (f": {roles.idle_reason}" if roles.idle_reason else ""))
    click.echo()
    print_table(
        ("ROLE", "NODES", "LOAD", "PRESSURE", "WANTED"),
        [
            (
                pool.role,
                pool.node_count,
                f"{pool.load_nodes:.2f}",
                f"{pool.pressure:.2f}",
                pool.wanted_count,
            )
            for pool in roles.pools
        ],
    )
    click.echo()
    print_table(
        ("NODE", "ROLE", "CONFIGURED", "BY", "HOLDS", "WHY"),
        [
            (
                node.node,
                f"{node.role} > {node.next_role}" if node.next_role else node.role,
                f"{node.configured_role} (pinned)" if node.is_pinned else node.configured_role,
                node.decided_by,
                node.held_request_count,
                node.waits_for or node.reason or "-",
            )
            for node in roles.nodes
        ],
    )
    if roles.switches:
        click.echo()
        print_table(
            ("AGO", "NODE", "SWITCH", "BY", "STAGE", "TOOK", "WHY"),
            [
                (
                    f"{switch.age_s:.0f} s",
                    switch.node,
                    f"{switch.source} > {switch.target}",
                    switch.by,
                    switch.stage,
                    f"{switch.duration_s:.1f} s",
                    switch.reason,
                )
                for switch in list(roles.switches)[-_SWITCHES_SHOWN:]
            ],
        )


def _document(roles: "cluster_pb2.GetRolesResponse") -> dict[str, Any]:
    return {
        "mode": roles.mode,
        "idle_reason": roles.idle_reason,
        "pools": [_fields(pool) for pool in roles.pools],
        "nodes": [_fields(node) for node in roles.nodes],
        "switches": [_fields(switch) for switch in roles.switches],
    }


def _fields(message: Any) -> dict[str, Any]:
    return {field.name: getattr(message, field.name) for field in message.DESCRIPTOR.fields}
