"""Where plain connections are allowed: on this machine."""

import ipaddress
from collections.abc import Iterable

from pdd.core.errors import ConfigError


def is_loopback(host: str) -> bool:
    """Names are not resolved: what ``localhost`` means may change while the process runs."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_of(address: str) -> str:
    """The host of ``host:port`` or ``[ipv6]:port``."""
    return address.rpartition(":")[0].strip("[]")


def refuse_plain_beyond_loopback(
    addresses: Iterable[str], *, key: str, is_localhost_taken: bool = True
) -> None:
    """Raises: ConfigError, for the first ``host:port`` whose host is no loopback address.

    Args:
        is_localhost_taken: the name that everybody writes is believed. Not among replicas, whose
            addresses are kept for longer than what a name means.
    """
    for address in addresses:
        host = host_of(address)
        if not is_loopback(host) and not (is_localhost_taken and host == "localhost"):
            raise ConfigError(plain_fault(key, address))


def plain_fault(key: str, address: str) -> str:
    """What to tell whoever wants a plain connection beyond this machine."""
    return (
        f"{key}: {address} is not a loopback address, and without [tls] plain TCP is used on "
        "loopback only: anybody on that network could read and join; make certificates "
        "('pdd certs init', 'pdd certs issue') and name them in [tls] (for a command: "
        "--ca, --certificate and --key), or use 127.0.0.1 or [::1]"
    )
