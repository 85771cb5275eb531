"""What [tls] and [public_tls] make of a daemon: its security towards members and clients."""

from datetime import datetime, timedelta

import grpc
import structlog

from pdd.config.sections import Config
from pdd.config.tls_files import member_paths, public_paths
from pdd.config.types import HostPort
from pdd.core.errors import PddError
from pdd.tls.material import wall_clock
from pdd.tls.public import PublicTls
from pdd.tls.security import PLAIN, Security, TlsSecurity

log = structlog.get_logger(__name__)

_SOON = timedelta(days=14)


def make_security(config: Config) -> Security:
    """For everything between schedulers and nodes. Raises ConfigError."""
    paths = member_paths(config)
    return PLAIN if paths is None else TlsSecurity(paths)


def member_security(config: Config) -> Security:
    """The same for a daemon that starts, whose log tells it."""
    security = make_security(config)
    if isinstance(security, TlsSecurity):
        expires = security.material().facts.expires
        log.info("tls_ready", identity=str(security.identity), expires=expires.isoformat())
        _warn_if_soon(config.tls.certificate, expires)
    return security


def public_tls(config: Config) -> PublicTls | None:
    """For clients; None: plain. Raises ConfigError."""
    paths = public_paths(config)
    if paths is None:
        return None
    public = PublicTls(paths)
    _warn_if_soon(str(paths.certificate), public.material().facts.expires)
    return public


def bind_members(server: grpc.aio.Server, listen: HostPort, security: Security) -> HostPort:
    """Listen for members; the address with the port that it got.

    Raises:
        PddError: it is taken or not this machine's.
    """
    try:
        return HostPort(listen.host, security.bind(server, str(listen)))
    except RuntimeError as error:
        raise PddError(f"grpc.listen: cannot bind {listen}: {error}") from error


def bind_public(server: grpc.aio.Server, listen: HostPort, public: PublicTls | None) -> HostPort:
    """Listen for clients, with or without TLS. Raises PddError likewise."""
    bind = PLAIN.bind if public is None else public.bind
    try:
        return HostPort(listen.host, bind(server, str(listen)))
    except RuntimeError as error:
        raise PddError(f"grpc.public_listen: cannot bind {listen}: {error}") from error


def _warn_if_soon(certificate: str, expires: datetime) -> None:
    if expires - wall_clock() < _SOON:
        log.warning(
            "certificate_expires_soon",
            certificate=certificate,
            expires=expires.isoformat(),
            advice="issue it anew with 'pdd certs issue NAME --force'; no restart is needed",
        )
