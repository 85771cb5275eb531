"""Value types of configuration keys that pydantic does not have."""

import ipaddress
import re
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BeforeValidator,
    PlainSerializer,
    PlainValidator,
    StringConstraints,
)

from pdd.tls.loopback import is_loopback

_NODE_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*))*")


@dataclass(frozen=True, slots=True)
class HostPort:
    """A TCP address. Port 0 in a listen address means: the system picks one."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "HostPort":
        """Read ``host:port`` or ``[ipv6]:port``.

        Raises:
            ValueError: says what is wrong and how an address is written.
        """
        if "://" in text:
            raise ValueError("an address is written host:port, without http:// or the like")
        host, colon, port_text = text.rpartition(":")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
            if _ip_version(host) != 6:
                raise ValueError(f"'{host}' in brackets is not an IPv6 address")
        elif ":" in host:
            raise ValueError("an IPv6 address is written [address]:port")
        elif not _HOST_NAME.fullmatch(host):
            raise ValueError("an address is written host:port, for example 127.0.0.1:7070")
        if not colon or not port_text.isascii() or not port_text.isdigit():
            raise ValueError("an address is written host:port, for example 127.0.0.1:7070")
        port = int(port_text)
        if port > 65535:
            raise ValueError(f"port {port} is above 65535")
        return cls(host, port)

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return self.host == "localhost" or is_loopback(self.host)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _ip_version(host: str) -> int | None:
    try:
        return ipaddress.ip_address(host).version
    except ValueError:
        return None


def _to_host_port(value: Any) -> HostPort:
    if isinstance(value, HostPort):
        return value
    if not isinstance(value, str):
        raise ValueError("an address is a string, for example '127.0.0.1:7070'")  # noqa: TRY004 -- pydantic wants it
    return HostPort.parse(value)


def _to_optional_address(value: Any) -> HostPort | None:
    return None if value is None or value == "" else _to_host_port(value)


def _checked_node_name(name: str) -> str:
    if not _NODE_NAME.fullmatch(name):
        raise ValueError(
            "a name is 1 to 63 lower-case letters, digits and dashes, and begins with no dash, for "
            "example decode-0"
        )
    return name


def _to_host(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("a host is a string, for example '10.0.0.7'")  # noqa: TRY004 -- pydantic wants it
    if value and _ip_version(value) is None and not _HOST_NAME.fullmatch(value):
        raise ValueError("a host is a name or an IP address, without a port")
    if is_unspecified(value):
        raise ValueError(f"{value} cannot be dialled; name the address that others reach")
    return value


def _to_peer_address(value: Any) -> HostPort:
    address = _to_host_port(value)
    if address.port == 0:
        raise ValueError("port 0 cannot be connected to; name the port that the other side serves")
    return address


def _to_text(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def is_unspecified(host: str) -> bool:
    """0.0.0.0 and ::, which stand for all of a machine's addresses."""
    return _ip_version(host) is not None and ipaddress.ip_address(host).is_unspecified


ListenAddress = Annotated[HostPort, PlainValidator(_to_host_port), PlainSerializer(str)]
"""Where a server binds. Beyond loopback it needs TLS, see ``relations``."""

OptionalListenAddress = Annotated[
    HostPort | None,
    PlainValidator(_to_optional_address),
    PlainSerializer(lambda address: "" if address is None else str(address), return_type=str),
]
"""The same, or empty text (None in Python) for no server."""

HostText = Annotated[str, PlainValidator(_to_host), PlainSerializer(str)]
"""A DNS name or IP address that others dial; empty when it is not said."""

PeerAddress = Annotated[HostPort, PlainValidator(_to_peer_address), PlainSerializer(str)]
"""Where another process serves."""

GpuId = Annotated[str, BeforeValidator(_to_text), StringConstraints(min_length=1, max_length=64)]
"""Index or UUID, as in CUDA_VISIBLE_DEVICES."""

NodeNameText = Annotated[str, AfterValidator(_checked_node_name)]
"""Lower-case letters, digits and dashes: it stands in file names, metrics and unit names."""
