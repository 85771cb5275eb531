"""TLS for the front door, whose clients are no members of the cluster.

The server shows a certificate of any authority that the clients know. If ``ca`` is given, clients
have to show one that it signed; its names are not looked at.
"""

import os
import ssl
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from pdd.core.errors import ConfigError
from pdd.tls.check import Material
from pdd.tls.material import RenewedMaterial, WallClock, wall_clock
from pdd.tls.paths import TlsPaths


class PublicTls:
    """For HTTP an ``ssl.SSLContext``, for gRPC a port. Renewed files are taken at handshakes."""

    def __init__(self, paths: TlsPaths, *, now: WallClock = wall_clock) -> None:
        """Raises ConfigError: the files are not what they should be."""
        self._renewed = RenewedMaterial(paths, now=now)

    def material(self) -> Material:
        """What is in use now."""
        return self._renewed.current()

    def http_context(self) -> ssl.SSLContext:
        """For a server. TLS 1.2 or later."""
        holder = _Renewing(self._renewed)
        return holder.outer

    def bind(self, server: grpc.aio.Server, address: str) -> int:
        """Add a port to a gRPC server; its number. Raises RuntimeError: the address is taken."""
        credentials = grpc.dynamic_ssl_server_credentials(
            self._server_configuration(),
            self._server_configuration,
            require_client_authentication=bool(self._renewed.current().ca_pem),
        )
        return int(server.add_secure_port(address, credentials))

    def _server_configuration(self) -> Any:
        material = self._renewed.current()
        return grpc.ssl_server_certificate_configuration(
            [(material.key_pem, material.certificate_pem)], material.ca_pem or None
        )


class _Renewing:
    """A context that hands each handshake to the newest one.

    OpenSSL calls back when it has read the client's hello; the certificate may still be exchanged
    then. The clients' authority is the one of the start: it is fixed with the handshake.
    """

    def __init__(self, renewed: RenewedMaterial) -> None:
        self._renewed = renewed
        self._material = renewed.current()
        self.outer = self._inner = _server_context(self._material)
        self.outer.sni_callback = self._on_hello

    def _on_hello(
        self, connection: ssl.SSLObject, server_name: str | None, context: ssl.SSLContext
    ) -> None:
        material = self._renewed.current()
        if material is not self._material:
            self._material, self._inner = material, _server_context(material)
        connection.context = self._inner


def client_context(
    *, ca: Path | None, certificate: Path | None, key: Path | None
) -> ssl.SSLContext:
    """For a client of the front door. ``ca`` None: the authorities that this machine trusts.

    Raises:
        ConfigError: a file is not what it should be.
    """
    try:
        context = ssl.create_default_context(cafile=ca)
        if certificate is not None:
            context.load_cert_chain(certificate, key, password=_no_password)
    except OSError as error:  # ssl.SSLError is one
        files = ", ".join(str(path) for path in (ca, certificate, key) if path is not None)
        raise ConfigError(f"{files}: {error.strerror or error}; give files in PEM") from error
    return context


def _no_password() -> str:
    """Instead of OpenSSL's prompt on the terminal, which would hang a script."""
    return ""


def _server_context(material: Material) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if material.ca_pem:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=material.ca_pem.decode("ascii", "ignore"))
    _load_pair(context, material)
    return context


def _load_pair(context: ssl.SSLContext, material: Material) -> None:
    """Python's ssl takes paths only; what was checked must be what is loaded, not a newer file.

    Hence a file in memory, which no disk and no other process sees.
    """
    handle = os.memfd_create("pdd-tls")
    with os.fdopen(handle, "wb") as file:
        file.write(material.key_pem + b"\n" + material.certificate_pem)
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{handle}")
