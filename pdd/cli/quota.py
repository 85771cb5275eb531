"""``pdd quota set|unset|list``: how many requests a tenant may have at a time, how many tokens a
minute."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from pdd.cli.counted import counted
from pdd.cli.options import output_option, state_dir_option
from pdd.cli.output import print_json, print_table
from pdd.cli.scheduler import find_scheduler, scheduler_option
from pdd.cli.tls import tls_options

if TYPE_CHECKING:
    from pdd.rpc.v1 import settings_pb2

_REQUESTS_MAX = 1_000_000
"""More than any cluster holds; the message to the scheduler has room for it."""
_TOKENS_PER_MINUTE_MAX = 1_000_000_000_000
"""More than any cluster makes."""


@click.group()
def quota() -> None:
    """Limit tenants of a running cluster (the header x-pdd-tenant names one)."""


@quota.command(name="set")
@click.argument("tenant")
@click.option(
    "--requests",
    type=click.IntRange(min=0, max=_REQUESTS_MAX),
    metavar="N",
    help="Requests at a time over all schedulers, waiting ones too; one more gets HTTP 429.",
)
@click.option(
    "--tokens-per-minute",
    type=click.IntRange(min=0, max=_TOKENS_PER_MINUTE_MAX),
    metavar="N",
    help="Tokens of prompts and outputs over all schedulers; above it HTTP 429.",
)
@scheduler_option
@state_dir_option
@tls_options
def set_quota(
    tenant: str,
    requests: int | None,
    tokens_per_minute: int | None,
    scheduler: str | None,
    state_dir: Path | None,
    **tls: Path | None,
) -> None:
    """Give a tenant a limit, over restarts of everything. What it has already goes on, and a limit
    that is not named stays as it is."""
    if requests is None and tokens_per_minute is None:
        raise click.UsageError("name --requests or --tokens-per-minute, or both")
    with find_scheduler(scheduler, state_dir, tls) as found:
        changed = found.admin.set_quota(
            tenant, requests_max=requests, tokens_per_minute_max=tokens_per_minute
        )
    limits = [] if requests is None else [counted(requests, "request")]
    if tokens_per_minute is not None:
        limits.append(f"{counted(tokens_per_minute, 'token')} a minute")
    may = "may now" if changed else "may already"
    click.echo(f"tenant {tenant} {may} have {' and '.join(limits)}")


@quota.command()
@click.argument("tenant")
@scheduler_option
@state_dir_option
@tls_options
def unset(tenant: str, scheduler: str | None, state_dir: Path | None, **tls: Path | None) -> None:
    """Take a tenant's limits away."""
    with find_scheduler(scheduler, state_dir, tls) as found:
        changed = found.admin.set_quota(tenant, requests_max=None, tokens_per_minute_max=None)
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
        print_json(
            {
                row.tenant: found.staleness.mark({name: _limit(row, name) for name in _LIMITS})
                for row in rows
            }
        )
        return
    print_table(
        ("TENANT", "REQUESTS", "TOKENS/MIN"),
        [(row.tenant, *(_shown(_limit(row, name)) for name in _LIMITS)) for row in rows],
    )


_LIMITS = ("requests_max", "tokens_per_minute_max")


def _limit(row: "settings_pb2.Quota", name: str) -> int | None:
    return int(getattr(row, name)) if row.HasField(name) else None


def _shown(limit: int | None) -> str:
    return "-" if limit is None else str(limit)
