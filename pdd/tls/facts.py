"""What a certificate says, in plain values."""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cryptography import x509

from pdd.core.errors import ConfigError
from pdd.tls.identity import CertificateIdentity, cluster_of_authority


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateFacts:
    """``identity``: None for an authority and for a certificate that is not the cluster's."""

    identity: CertificateIdentity | None
    uris: tuple[str, ...]
    hosts: tuple[str, ...]
    """DNS names and IP addresses, as their certificate has them."""
    valid_from: datetime
    expires: datetime
    is_authority: bool
    serial: str
    """Hexadecimal."""
    authority_of: str | None = None
    """The cluster that it signs for; None for a certificate that is no cluster's authority."""

    def fault_at(self, now: datetime) -> str | None:
        """Why it is not valid at ``now``; None when it is."""
        if now > self.expires:
            return f"expired on {self.expires:%Y-%m-%d %H:%M} UTC"
        if now < self.valid_from:
            return f"is not valid before {self.valid_from:%Y-%m-%d %H:%M} UTC; check the clock"
        return None


def facts_of(certificate: x509.Certificate) -> CertificateFacts:
    """Reads no more than the first identity; ``claims`` is stricter with peers."""
    uris, hosts = _names(certificate)
    identity = None
    for uri in uris:
        try:
            identity = CertificateIdentity.parse(uri)
            break
        except ValueError:
            continue
    return CertificateFacts(
        identity=identity,
        uris=uris,
        hosts=hosts,
        valid_from=certificate.not_valid_before_utc,
        expires=expires_at(certificate),
        is_authority=_is_authority(certificate),
        serial=f"{certificate.serial_number:x}",
        authority_of=_authority_of(certificate),
    )


def read_facts(path: Path) -> CertificateFacts:
    """Of the first certificate in a file. Raises ConfigError: there is none."""
    try:
        return facts_of(x509.load_pem_x509_certificates(path.read_bytes())[0])
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path}: holds no certificate in PEM; name a .crt file") from error


def expires_at(certificate: x509.Certificate) -> datetime:
    """UTC."""
    return certificate.not_valid_after_utc


def cluster_of(authority: x509.Certificate) -> str:
    """The cluster that it signs for. Raises ValueError."""
    uris, _ = _names(authority)
    for uri in uris:
        if uri.startswith("pdd:"):
            return cluster_of_authority(uri)
    raise ValueError("the authority names no cluster; make one with 'pdd certs init'")


def _authority_of(certificate: x509.Certificate) -> str | None:
    if not _is_authority(certificate):
        return None
    try:
        return cluster_of(certificate)
    except ValueError:
        return None


def _names(certificate: x509.Certificate) -> tuple[tuple[str, ...], tuple[str, ...]]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return (), ()
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    hosts = [
        *names.get_values_for_type(x509.DNSName),
        *map(str, names.get_values_for_type(x509.IPAddress)),
    ]
    return tuple(uris), tuple(hosts)


def _is_authority(certificate: x509.Certificate) -> bool:
    try:
        constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    except x509.ExtensionNotFound:
        return False
    return constraints.value.ca
