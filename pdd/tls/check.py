"""Read the files of a [tls] section and say all that is wrong with them.

Used at load (``pdd.config``), where every fault is told at once, and when files change under a
running daemon, where any fault means: keep what was there.
"""

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization

from pdd.tls.facts import CertificateFacts, facts_of
from pdd.tls.paths import TlsPaths


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFault:
    """``field`` is ``ca``, ``certificate`` or ``key``; the message names the file."""

    field: str
    message: str
    untimely: CertificateFacts | None = None
    """Of the certificate that is not valid now and may be at another time; None where the fault
    stays until the files change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """What the files held, checked to belong together. ``ca_pem`` is empty where none was asked."""

    ca_pem: bytes
    certificate_pem: bytes
    key_pem: bytes
    facts: CertificateFacts
    """Of the leaf."""


def read_material(paths: TlsPaths, *, now: datetime) -> tuple[Material | None, list[FileFault]]:
    """The files' content, or what is wrong with them; never both."""
    faults: list[FileFault] = []
    ca_pem = _read("ca", paths.ca, faults)[0] if paths.ca is not None else b""
    certificate_pem, _ = _read("certificate", paths.certificate, faults)
    key_pem, key_mode = _read("key", paths.key, faults)
    if faults:
        return None, faults
    authorities = _certificates("ca", paths.ca, ca_pem, faults) if paths.ca is not None else []
    chain = _certificates("certificate", paths.certificate, certificate_pem, faults)
    faults += _authority_faults(paths.ca, authorities, now)
    if chain:
        faults += _leaf_faults(paths, chain, authorities, now)
    faults += _key_faults(paths, key_pem, key_mode, chain)
    if faults:
        return None, faults
    material = Material(
        ca_pem=ca_pem, certificate_pem=certificate_pem, key_pem=key_pem, facts=facts_of(chain[0])
    )
    return material, []


def _read(field: str, path: Path, faults: list[FileFault]) -> tuple[bytes, int]:
    """Content and mode, of one open file: the path may mean another one at any moment."""
    try:
        with path.open("rb") as file:
            return file.read(), stat.S_IMODE(os.fstat(file.fileno()).st_mode)
    except OSError as error:
        faults.append(
            FileFault(
                field=field,
                message=f"{path}: {error.strerror}; the daemon's user must be able to read it",
            )
        )
        return b"", 0


def _certificates(
    field: str, path: Path | None, pem: bytes, faults: list[FileFault]
) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError:
        faults.append(FileFault(field=field, message=f"{path}: holds no certificate in PEM"))
        return []


def _authority_faults(
    path: Path | None, authorities: Iterable[x509.Certificate], now: datetime
) -> Iterable[FileFault]:
    for authority in authorities:
        facts = facts_of(authority)
        if not facts.is_authority:
            yield FileFault(
                field="ca",
                message=f"{path}: holds a certificate that may not sign others "
                f"({facts.identity or facts.serial}); name the authority's, ca.crt",
            )
        elif (fault := facts.fault_at(now)) is not None:
            yield FileFault(field="ca", message=f"{path}: the authority {fault}", untimely=facts)


def _leaf_faults(
    paths: TlsPaths,
    chain: list[x509.Certificate],
    authorities: list[x509.Certificate],
    now: datetime,
) -> Iterable[FileFault]:
    path = paths.certificate
    facts = facts_of(chain[0])
    if (fault := facts.fault_at(now)) is not None:
        yield FileFault(
            field="certificate",
            message=f"{path}: {fault}; issue it anew with 'pdd certs issue NAME --force'",
            untimely=facts,
        )
    if paths.is_own_authority and authorities and not _is_signed(chain, authorities):
        yield FileFault(
            field="certificate",
            message=f"{path}: is not signed by the authority in {paths.ca}; issue it there",
        )


def _is_signed(chain: list[x509.Certificate], authorities: list[x509.Certificate]) -> bool:
    """Each by the next, the last by an authority."""
    return all(_signs(issuer, one) for one, issuer in pairwise(chain)) and any(
        _signs(authority, chain[-1]) for authority in authorities
    )


def _signs(issuer: x509.Certificate, certificate: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _key_faults(
    paths: TlsPaths, key_pem: bytes, mode: int, chain: list[x509.Certificate]
) -> Iterable[FileFault]:
    try:
        key = serialization.load_pem_private_key(key_pem, password=None)
    except (ValueError, TypeError):
        # TypeError: it is encrypted, and a daemon has nobody to ask for the password.
        yield FileFault(
            field="key", message=f"{paths.key}: holds no private key in PEM without a password"
        )
        return
    if mode & stat.S_IROTH:
        yield FileFault(
            field="key",
            message=f"{paths.key}: can be read by everybody on this machine (mode {mode:04o}); "
            "chmod 0600, or 0640 with the daemon's group",
        )
    if chain and _public_bytes(key.public_key()) != _public_bytes(chain[0].public_key()):
        yield FileFault(
            field="key",
            message=f"{paths.key}: does not belong to the certificate {paths.certificate}; "
            "give the two that were issued together",
        )


def _public_bytes(key: object) -> bytes:
    return key.public_bytes(  # type: ignore[attr-defined,no-any-return]  # one of a dozen types
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
