"""What binds and dials every gRPC connection between pdd's own processes.

``PlainSecurity`` stays on this machine; ``TlsSecurity`` verifies both sides. A server names its
callers through ``caller``, and decides with ``claims`` what they may say.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import grpc
import grpc.aio

from pdd.core.errors import ConfigError
from pdd.tls.check import Material
from pdd.tls.claims import caller_of
from pdd.tls.facts import CertificateFacts
from pdd.tls.identity import CertificateIdentity
from pdd.tls.loopback import refuse_plain_beyond_loopback
from pdd.tls.material import RenewedMaterial, WallClock, wall_clock
from pdd.tls.paths import TlsPaths

Options = Sequence[tuple[str, Any]]


class CallContext(Protocol):
    """The part of ``grpc.aio.ServicerContext`` that names a peer."""

    def auth_context(self) -> Mapping[str, Iterable[bytes]]: ...


class Security(Protocol):
    """One of the two below."""

    @property
    def is_plain(self) -> bool:
        """Whether nobody's name can be checked."""
        ...

    def bind(self, server: grpc.aio.Server, address: str) -> int:
        """Add a port; the number that it got.

        Raises:
            ConfigError: a plain port beyond loopback.
            RuntimeError: gRPC's, when the address is taken.
        """
        ...

    def channel(self, address: str, *, options: Options) -> grpc.aio.Channel:
        """A channel with the present certificate. Raises ConfigError as ``bind``."""
        ...

    def blocking_channel(self, address: str, *, options: Options) -> grpc.Channel:
        """The same for a command that has no event loop."""
        ...

    def version(self) -> object:
        """Equal as long as channels would be made of the same certificate."""
        ...

    def caller(self, context: CallContext) -> CertificateIdentity | None:
        """Who calls; None: a process of this machine. Raises PeerRefused."""
        ...


class PlainSecurity:
    """No certificates: loopback only, and callers are believed."""

    is_plain = True

    def bind(self, server: grpc.aio.Server, address: str) -> int:
        refuse_plain_beyond_loopback([address], key="the address to listen on")
        return int(server.add_insecure_port(address))

    def channel(self, address: str, *, options: Options) -> grpc.aio.Channel:
        refuse_plain_beyond_loopback([address], key="the address to dial")
        return grpc.aio.insecure_channel(address, options=options)

    def blocking_channel(self, address: str, *, options: Options) -> grpc.Channel:
        refuse_plain_beyond_loopback([address], key="the address to dial")
        return grpc.insecure_channel(address, options=options)

    def version(self) -> object:
        return None

    def caller(self, context: CallContext) -> CertificateIdentity | None:
        return None


PLAIN = PlainSecurity()


class TlsSecurity:
    """Mutual TLS with the cluster's certificates, renewed ones of the same identity included.

    Servers ask for the certificate at every handshake; channels have the one of the moment in
    which they were made (see ``version``). Connections that are open stay open.
    """

    is_plain = False

    def __init__(self, paths: TlsPaths, *, now: WallClock = wall_clock) -> None:
        """Raises ConfigError: the files are not what they should be."""
        if paths.ca is None:
            raise ConfigError("tls.ca is missing: without it anybody would be believed")
        self._renewed = RenewedMaterial(paths, now=now, misfit=_other_identity)
        identity = self.material().facts.identity
        if identity is None:
            raise ConfigError(
                f"tls.certificate: {paths.certificate}: names no pdd:// identity; issue it with "
                "'pdd certs issue'"
            )
        self.identity = identity

    def material(self) -> Material:
        """What is in use now."""
        return self._renewed.current()

    def bind(self, server: grpc.aio.Server, address: str) -> int:
        credentials = grpc.dynamic_ssl_server_credentials(
            self._server_configuration(),
            self._server_configuration,
            require_client_authentication=True,
        )
        return int(server.add_secure_port(address, credentials))

    def channel(self, address: str, *, options: Options) -> grpc.aio.Channel:
        return grpc.aio.secure_channel(address, self._channel_credentials(), options=options)

    def blocking_channel(self, address: str, *, options: Options) -> grpc.Channel:
        return grpc.secure_channel(address, self._channel_credentials(), options=options)

    def version(self) -> object:
        return self.material()

    def caller(self, context: CallContext) -> CertificateIdentity | None:
        return caller_of(context.auth_context(), cluster=self.identity.cluster)

    def _server_configuration(self) -> Any:
        material = self.material()
        return grpc.ssl_server_certificate_configuration(
            [(material.key_pem, material.certificate_pem)], material.ca_pem
        )

    def _channel_credentials(self) -> Any:
        material = self.material()
        return grpc.ssl_channel_credentials(
            material.ca_pem, material.key_pem, material.certificate_pem
        )


def _other_identity(former: CertificateFacts, offered: CertificateFacts) -> str | None:
    """What was compared with the configuration at start would not be compared again."""
    if offered.identity == former.identity:
        return None
    return (
        f"names {offered.identity or 'no pdd:// identity'}, and this process is "
        f"{former.identity}; give it its own, or restart it with a configuration that fits"
    )
