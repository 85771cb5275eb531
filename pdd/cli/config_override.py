"""``pdd config set|unset|overrides``: change keys of the configuration while a cluster runs."""

from pathlib import Path

import click

from pdd.cli.options import output_option, state_dir_option
from pdd.cli.output import print_json, print_table
from pdd.cli.scheduler import find_scheduler, scheduler_option
from pdd.cli.tls import tls_options


def add_to(group: click.Group) -> None:
    """Register the commands under ``pdd config``."""
    group.add_command(set_override)
    group.add_command(unset_override)
    group.add_command(list_overrides)


@click.command(name="set")
@click.argument("name", metavar="SECTION.KEY")
@click.argument("value")
@scheduler_option
@state_dir_option
@tls_options
def set_override(
    name: str, value: str, scheduler: str | None, state_dir: Path | None, **tls: Path | None
) -> None:
    """Give a key another value at every scheduler of a running cluster.

    For keys of [scheduler.policy], [scheduler.path] and [scheduler.queue], and
    scheduler.queue_limit_requests; VALUE is written as after --set (a table or list as JSON; before
    one that begins with - write --). It holds from the next decision on, over restarts of
    everything, above files and flags, until 'pdd config unset'.
    """
    with find_scheduler(scheduler, state_dir, tls) as found:
        changed = found.admin.set_override(name, value)
    click.echo(f"{name} is {'now' if changed else 'already'} {value}")


@click.command(name="unset")
@click.argument("name", metavar="SECTION.KEY")
@scheduler_option
@state_dir_option
@tls_options
def unset_override(
    name: str, scheduler: str | None, state_dir: Path | None, **tls: Path | None
) -> None:
    """Let each scheduler's own configuration hold again for a key."""
    with find_scheduler(scheduler, state_dir, tls) as found:
        changed = found.admin.set_override(name, None)
    if not changed:
        check_runtime_key(name)
    click.echo(f"{name} {'unset' if changed else 'was not set'}")


def check_runtime_key(name: str) -> None:
    """A key that nothing was set for may be a slip of the pen. One that an older release knew and
    this one does not can be unset all the same. Raises ClickException."""
    from pdd.config.runtime import runtime_keys
    from pdd.config.schema import unknown

    if name not in runtime_keys():
        raise click.ClickException(unknown(name, runtime_keys(), noun="key"))


@click.command(name="overrides")
@scheduler_option
@state_dir_option
@tls_options
@output_option
def list_overrides(
    scheduler: str | None, state_dir: Path | None, output: str, **tls: Path | None
) -> None:
    """Show what was set in a running cluster, and what its configuration says."""
    with find_scheduler(scheduler, state_dir, tls) as found:
        rows = found.admin.overrides()
    if output == "json":
        print_json(
            {
                row.key: found.staleness.mark(
                    {
                        "value": row.value,
                        "configured": row.configured_value or None,
                        "fault": row.fault or None,
                    }
                )
                for row in rows
            }
        )
        return
    print_table(
        ("KEY", "VALUE", "CONFIGURED", "NOT USED BECAUSE"),
        [(row.key, row.value, row.configured_value, row.fault) for row in rows],
    )
