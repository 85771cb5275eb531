"""Who may speak as whom.

Over TLS a peer's name comes from its certificate and what it says of itself must agree. Without TLS
there is nothing to check a name against, so plain addresses are taken on loopback only, where every
caller is a process of this machine. TLS itself comes with the cluster's certificates; what it needs
here is `peer_name` and the credentials of server and channels, which `transport` builds.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping

from pdd.core.errors import ConfigError, PddError

_SUBJECT_ALTERNATIVE_NAME = "x509_subject_alternative_name"


class PeerRefusedError(PddError):
    """The certificate does not name the replica that the caller claims to be."""


def refuse_plain_beyond_loopback(addresses: Iterable[str]) -> None:
    """Raises: ConfigError, for the first ``host:port`` whose host is no loopback address."""
    for address in addresses:
        host = address.rpartition(":")[0].strip("[]")
        if not is_loopback(host):
            raise ConfigError(
                f"raft: address {address!r} is not on loopback and there is no TLS: anybody there "
                "could vote; give an address in 127.0.0.0/8 or [::1]"
            )


def is_loopback(host: str) -> bool:
    """Names are not resolved: what ``localhost`` means may change while the process runs."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def peer_name(claimed: str, auth_context: Mapping[str, Iterable[bytes]]) -> str:
    """The name under which the caller may send. Raises: PeerRefusedError.

    Args:
        auth_context: `grpc.ServicerContext.auth_context()`; without TLS it holds no names.
    """
    if _SUBJECT_ALTERNATIVE_NAME not in auth_context:
        return claimed  # plain, hence from this machine: see `refuse_plain_beyond_loopback`
    names = sorted(n.decode(errors="replace") for n in auth_context[_SUBJECT_ALTERNATIVE_NAME])
    if claimed not in names:
        raise PeerRefusedError(f"caller says it is {claimed!r}, its certificate names {names}")
    return claimed
