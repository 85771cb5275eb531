"""Options of commands that talk to a cluster with certificates.

The variables are not settings of the configuration ($PDD_TLS__CA is): they name the operator's own
certificate, and must not end up in a daemon that is started from the same shell.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    import ssl

    from pdd.tls.security import Security

_Command = TypeVar("_Command", bound=Callable[..., Any])

_FILES = (
    ("ca", "The authority that signed the other side's certificate (ca.crt)."),
    ("certificate", "Your certificate ('pdd certs issue NAME --role client')."),
    ("key", "Its private key."),
)


def tls_options(function: _Command) -> _Command:
    """Add ``--ca``, ``--certificate`` and ``--key``, all None when not given."""
    for name, text in reversed(_FILES):
        function = click.option(
            f"--{name}",
            type=click.Path(dir_okay=False, path_type=Path),
            metavar="FILE",
            envvar=f"PDD_{name.upper()}",
            help=f"{text} Default: $PDD_{name.upper()}.",
        )(function)
    return function


def client_security(
    ca: Path | None, certificate: Path | None, key: Path | None
) -> "Security | None":
    """For gRPC; None: no certificates, hence loopback only.

    Raises:
        UsageError: not all of them, or none.
        ConfigError: a file is not what it should be.
    """
    if ca is None and certificate is None and key is None:
        return None
    if ca is None or certificate is None or key is None:
        raise click.UsageError("--ca, --certificate and --key belong together; give all or none.")
    from pdd.tls.paths import TlsPaths
    from pdd.tls.security import TlsSecurity

    return TlsSecurity(TlsPaths(ca=ca, certificate=certificate, key=key))


def https_context(
    ca: Path | None, certificate: Path | None, key: Path | None
) -> "ssl.SSLContext | None":
    """For https; None: the authorities that this machine trusts, and no certificate.

    ``ca`` alone will do; ``certificate`` and ``key`` are for servers that ask for them.

    Raises:
        UsageError: one of certificate and key is missing.
        ConfigError: a file is not what it should be.
    """
    if ca is None and certificate is None and key is None:
        return None
    if (certificate is None) != (key is None):
        raise click.UsageError("--certificate and --key belong together; give both or none.")
    from pdd.tls.public import client_context

    return client_context(ca=ca, certificate=certificate, key=key)
