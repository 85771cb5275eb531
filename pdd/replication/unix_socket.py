"""A group of one speaks over a socket in a folder that only its own user may enter.

No port that any user of the machine could dial, and no certificate that must name this host: the
kernel checks who comes in. `pdd.tls.security.Security` for that.
"""

from __future__ import annotations

import grpc
import grpc.aio

from pdd.tls.identity import CertificateIdentity
from pdd.tls.security import CallContext, Options

PREFIX = "unix:"
PATH_BYTES_MAX = 107
"""Of the kernel's ``sun_path``."""


class UnixSocketSecurity:
    """Addresses are ``unix:PATH``. The folder's mode is the maker's business: 0700."""

    is_plain = False

    def bind(self, server: grpc.aio.Server, address: str) -> int:
        """Raises: RuntimeError, gRPC's."""
        return int(server.add_insecure_port(_checked(address)))

    def channel(self, address: str, *, options: Options) -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(_checked(address), options=options)

    def blocking_channel(self, address: str, *, options: Options) -> grpc.Channel:
        return grpc.insecure_channel(_checked(address), options=options)

    def version(self) -> object:
        return None

    def caller(self, context: CallContext) -> CertificateIdentity | None:
        return None


def _checked(address: str) -> str:
    path = address.removeprefix(PREFIX)
    if path == address or len(path.encode()) > PATH_BYTES_MAX:
        raise RuntimeError(
            f"{address!r} is not unix:PATH with a path of at most {PATH_BYTES_MAX} bytes; "
            "set TMPDIR to a shorter folder"
        )
    return address
