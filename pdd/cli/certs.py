"""``pdd certs``: the certificates of a cluster."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from pdd.cli.options import output_option
from pdd.cli.output import print_json, say

_AUTHORITY = "ca"

_Command = TypeVar("_Command", bound=Callable[..., Any])

_dir_option = click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    default="certs",
    show_default=True,
    help="Folder of the authority and of what it issues.",
)
_force_option = click.option("--force", is_flag=True, help="Replace files that are there.")


def _days_option(default: int, limit: int) -> Callable[[_Command], _Command]:
    return click.option(
        "--days",
        type=click.IntRange(1, limit),
        default=default,
        show_default=True,
        help="How long it is valid.",
    )


@click.group()
def certs() -> None:
    """Make and show the certificates by which nodes know each other.

    \b
    pdd certs init --cluster prod
    pdd certs issue decode-0 --role decode --host 10.0.0.7
    pdd certs issue anna --role client
    """


@certs.command()
@_dir_option
@click.option("--cluster", default="pdd", show_default=True, help="Name of the cluster.")
@_days_option(3650, 36_500)
@_force_option
def init(directory: Path, cluster: str, days: int, force: bool) -> None:
    """Make a cluster's authority: ca.crt, which every host gets, and ca.key, which none does.

    Whoever has ca.key can join the cluster: keep the folder off the nodes. With --force every
    certificate of the former authority is void.
    """
    from pdd.tls.authority import make_authority
    from pdd.tls.files import write_pair
    from pdd.tls.material import wall_clock

    issued = make_authority(cluster, now=wall_clock(), days=days)
    for path in write_pair(directory, _AUTHORITY, issued, force=force):
        click.echo(path)
    say(f"authority of cluster {cluster!r}; keep {directory / 'ca.key'} off the nodes")


@certs.command()
@click.argument("name")
@click.option(
    "--role",
    required=True,
    type=click.Choice(["scheduler", "prefill", "decode", "client"]),
    help="What its holder is. A client asks, and neither serves nor joins.",
)
@click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="HOST",
    help="DNS name or IP address under which others dial it. Several times for several.",
)
@_dir_option
@_days_option(365, 3650)
@_force_option
def issue(
    name: str, role: str, hosts: tuple[str, ...], directory: Path, days: int, force: bool
) -> None:
    """Issue NAME.crt and NAME.key. NAME of a daemon is its node.name.

    To renew one, issue it again with --force and copy both files over the old ones: the daemon
    takes them without a restart.
    """
    from pdd.tls.authority import issue as sign
    from pdd.tls.files import read_pair, write_pair
    from pdd.tls.material import wall_clock

    if name == _AUTHORITY:
        raise click.UsageError("'ca' is the authority's own name here; give another one.")
    issued = sign(
        read_pair(directory, _AUTHORITY),
        name=name,
        role=role,
        hosts=hosts,
        now=wall_clock(),
        days=days,
    )
    for path in write_pair(directory, name, issued, force=force):
        click.echo(path)


@certs.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@output_option
def show(file: Path, output: str) -> None:
    """Show whose certificate FILE is, for which hosts, and until when."""
    from pdd.tls.facts import read_facts
    from pdd.tls.material import wall_clock

    facts, now = read_facts(file), wall_clock()
    if output == "json":
        identity = facts.identity
        print_json(
            {
                "identity": str(identity) if identity else None,
                "cluster": identity.cluster if identity else facts.authority_of,
                "role": identity.role.value if identity else None,
                "name": identity.name if identity else None,
                "is_authority": facts.is_authority,
                "hosts": list(facts.hosts),
                "valid_from": facts.valid_from.isoformat(),
                "expires": facts.expires.isoformat(),
                "days_left": (facts.expires - now).days,
                "fault": facts.fault_at(now),
                "serial": facts.serial,
            }
        )
        return
    if facts.is_authority:
        whose = (
            f"authority of cluster {facts.authority_of!r}" if facts.authority_of else "authority"
        )
    else:
        whose = str(facts.identity) if facts.identity else "no pdd:// identity"
    fault = facts.fault_at(now)
    for title, text in (
        ("identity", whose),
        ("hosts", ", ".join(facts.hosts)),
        ("valid from", f"{facts.valid_from:%Y-%m-%d %H:%M} UTC"),
        ("expires", f"{facts.expires:%Y-%m-%d %H:%M} UTC ({(facts.expires - now).days} days left)"),
        ("fault", fault or ""),
        ("serial", facts.serial),
    ):
        if text:
            click.echo(f"{title:<10} {text}")
