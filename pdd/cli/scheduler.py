"""The scheduler that a command talks to, and the nodes that it knows."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pdd.cli.options import resolve_state_dir
from pdd.cli.staleness import Staleness
from pdd.cli.tls import client_security

if TYPE_CHECKING:
    from pdd.daemon.cluster_admin import ClusterAdmin
    from pdd.daemon.supervisor_nodes import NodeRow
    from pdd.tls.security import Security


def check_address(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> str | None:
    """Callback of an option HOST:PORT. Raises BadParameter: it is not written so."""
    del context, parameter
    if value is not None:
        from pdd.config.types import HostPort

        try:
            HostPort.parse(value)
        except ValueError as error:
            raise click.BadParameter(f"{error} (got {value!r})") from error
    return value


scheduler_option = click.option(
    "--scheduler",
    metavar="HOST:PORT",
    callback=check_address,
    help="gRPC address of a scheduler.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundScheduler:
    """A scheduler that answers to ``admin``. ``staleness``: of all that was read from it."""

    address: str
    security: "Security | None"
    admin: "ClusterAdmin"
    staleness: Staleness

    def pick(self, name: str) -> str:
        """The whole name of the one node that ``name`` is, or is a prefix of."""
        return pick_name(name, [row.name for row in self.nodes()])

    def nodes(self) -> "list[NodeRow]":
        """Every node that it knows."""
        from pdd.daemon.supervisor_nodes import list_nodes

        return list_nodes(self.address, timeout_s=5.0, security=self.security, stale=self.staleness)


@contextmanager
def find_scheduler(
    scheduler: str | None, state_dir: Path | None, tls: Mapping[str, Path | None]
) -> Iterator[FoundScheduler]:
    """The one at an address, or the one of ``pdd up``, which speaks without TLS."""
    from pdd.daemon.cluster_admin import cluster_admin

    if scheduler is not None and state_dir is not None:
        raise click.UsageError("--scheduler and --state-dir name a cluster each; give one.")
    security = None
    if scheduler is None:
        from pdd.cli.local import scheduler_address

        scheduler = scheduler_address(resolve_state_dir(state_dir))
    else:
        security = client_security(**tls)
    staleness = Staleness()
    with cluster_admin(scheduler, security=security, stale=staleness) as admin:
        yield FoundScheduler(address=scheduler, security=security, admin=admin, staleness=staleness)


def pick_name(name: str, names: list[str]) -> str:
    """Raises ClickException if it is not exactly one."""
    matches = [one for one in names if one.startswith(name)]
    if name in matches:
        return name
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise click.ClickException(f"{name!r} matches {len(matches)} nodes: {', '.join(matches)}")
    raise click.ClickException(f"no node {name!r}; there are {', '.join(names) or 'none'}")
