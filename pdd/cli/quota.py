"""``pdd quota set|unset|list``: how many requests a tenant may have at a time."""

from pathlib import Path

import click

from pdd.cli.counted import counted
from pdd.cli.options import output_option, state_dir_option
from pdd.cli.output import print_json, print_table
from pdd.cli.scheduler import find_scheduler, scheduler_option
from pdd.cli.tls import tls_options

_REQUESTS_MAX = 1_000_000
"""More than any cluster holds; the message to the scheduler has room for it."""


@click.group()
def quota() -> None:
    """Limit tenants of a running cluster (the header x-pdd-tenant names one)."""


@quota.command(name="set")
@click.argument("tenant")
@click.option(
    "--requests",
    type=click.IntRange(min=0, max=_REQUESTS_MAX),
    required=True,
    metavar="N",
    help="Requests at a time over all schedulers, waiting ones too; one more gets HTTP 429.",
)
@scheduler_option
@state_dir_option
@tls_options
def set_quota(
    tenant: str, requests: int, scheduler: str | None, state_dir: Path | None, **tls: Path | None
) -> None:
    """Give a tenant a limit, over restarts of everything. What it has already goes on."""
    with find_scheduler(scheduler, state_dir, tls) as found:
        changed = found.admin.set_quota(tenant, requests)
    may = "may now" if changed else "may already"
    click.echo(f"tenant {tenant} {may} have {counted(requests, 'request')}")


@quota.command()
@click.argument("tenant")
@scheduler_option
@state_dir_option
@tls_options
def unset(tenant: str, scheduler: str | None, state_dir: Path | None, **tls: Path | None) -> None:
    """Take a tenant's limit away."""
    with find_scheduler(scheduler, state_dir, tls) as found:
        changed = found.admin.set_quota(tenant, None)
    click.echo(f"tenant {tenant} {'has no limit now' if changed else 'had no limit'}")


@quota.command(name="list")
@scheduler_option
@state_dir_option
@tls_options
@output_option
def list_quotas(
    scheduler: str | None, state_dir: Path | None, output: str, **tls: Path | None
) -> None:
    """Show all limits. Tenants that are not named have none."""
    with find_scheduler(scheduler, state_dir, tls) as found:
        rows = found.admin.quotas()
    if output == "json":
        print_json({row.tenant: {"requests_max": row.requests_max} for row in rows})
        return
    print_table(("TENANT", "REQUESTS"), [(row.tenant, str(row.requests_max)) for row in rows])
