"""Make a cluster's authority and what it signs. ECDSA P-256, SHA-256; times are arguments.

Nothing here touches a file. The extensions are what TLS libraries check: who may sign (basic
constraints, a path of length 0), for what a key may be used (a client's certificate cannot serve),
and under which hosts a server is found.
"""

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from pdd.core.errors import ConfigError
from pdd.tls.facts import cluster_of, expires_at
from pdd.tls.identity import CertificateIdentity, authority_uri, check_name

CLOCK_SKEW = timedelta(minutes=5)
"""Certificates are valid from so long ago: hosts' clocks differ."""
_HOST_NAME = re.compile(
    r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Issued:
    """A certificate and its private key (PKCS 8, not encrypted), both in PEM."""

    certificate_pem: bytes
    key_pem: bytes


def make_authority(cluster: str, *, now: datetime, days: int) -> Issued:
    """A new authority. Raises ConfigError for a name that is none."""
    try:
        check_name("--cluster", cluster)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    key = ec.generate_private_key(ec.SECP256R1())
    name = _common_name(f"pdd {cluster}")
    builder = (
        _unsigned(name, name, key.public_key(), now=now, expires=now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.UniformResourceIdentifier(authority_uri(cluster))]),
            critical=False,
        )
    )
    return _signed(builder, signing_key=key, key=key)


def issue(
    authority: Issued,
    *,
    name: str,
    role: str,
    hosts: Sequence[str],
    now: datetime,
    days: int,
) -> Issued:
    """A certificate for one daemon or client of the authority's cluster.

    Args:
        role: one of ``CertificateRole``.
        hosts: DNS names and IP addresses under which it is reached; a client has none.
    Raises:
        ConfigError: a name or host that is none, a server without a host, or a life that would
            outlast the authority.
    """
    signer, signing_key = _read_authority(authority)
    try:
        identity = CertificateIdentity.parse(f"{authority_uri(cluster_of(signer))}/{role}/{name}")
        names = [_host(host) for host in hosts]
    except ValueError as error:
        raise ConfigError(f"certificate {name!r}: {error}") from error
    if identity.role.is_member and not names:
        raise ConfigError(
            f"certificate {name!r}: a daemon (--role {role}) is dialled by others, which check the "
            "host in its certificate; give --host with its name or address, once for each"
        )
    expires = now + timedelta(days=days)
    if expires > expires_at(signer):
        left = (expires_at(signer) - now).days
        raise ConfigError(
            f"certificate {name!r}: --days {days} outlasts the authority, which ends on "
            f"{expires_at(signer):%Y-%m-%d}; give --days {max(left, 0)} or less, or make a new "
            "authority"
        )
    key = ec.generate_private_key(ec.SECP256R1())
    usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
    if identity.role.is_member:
        usages.insert(0, ExtendedKeyUsageOID.SERVER_AUTH)
    subject = _common_name(f"{role} {name}")
    builder = (
        _unsigned(subject, signer.subject, key.public_key(), now=now, expires=expires)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(
            x509.SubjectAlternativeName([x509.UniformResourceIdentifier(str(identity)), *names]),
            critical=False,
        )
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signing_key.public_key()),
            critical=False,
        )
    )
    return _signed(builder, signing_key=signing_key, key=key)


def _read_authority(authority: Issued) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    try:
        certificate = x509.load_pem_x509_certificate(authority.certificate_pem)
        key = serialization.load_pem_private_key(authority.key_pem, password=None)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"the authority is damaged: {error}; restore it, or make one") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError("the authority's key is no ECDSA key; make one with 'pdd certs init'")
    if key.public_key() != certificate.public_key():
        raise ConfigError("ca.key does not belong to ca.crt; restore the pair, or make a new one")
    return certificate, key


def _host(text: str) -> x509.GeneralName:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        if len(text) > 253 or _HOST_NAME.fullmatch(text) is None:
            raise ValueError(
                f"--host {text!r} is neither a DNS name nor an IP address; wildcards and ports "
                "do not belong here"
            ) from None
        return x509.DNSName(text)
    if address.is_unspecified:
        raise ValueError(f"--host {text} is no host that can be dialled; name the one that is")
    return x509.IPAddress(address)


def _common_name(text: str) -> x509.Name:
    # For people only, and 64 characters is what the field holds; the identity is the URI.
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _unsigned(
    subject: x509.Name,
    issuer: x509.Name,
    public_key: ec.EllipticCurvePublicKey,
    *,
    now: datetime,
    expires: datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(expires)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _signed(
    builder: x509.CertificateBuilder,
    *,
    signing_key: ec.EllipticCurvePrivateKey,
    key: ec.EllipticCurvePrivateKey,
) -> Issued:
    certificate = builder.sign(signing_key, hashes.SHA256())
    return Issued(
        certificate_pem=certificate.public_bytes(serialization.Encoding.PEM),
        key_pem=key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )
