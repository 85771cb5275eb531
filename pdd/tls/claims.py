"""What a message claims, against what its sender's certificate says. Pure.

Every refusal names both sides. ``None`` for a caller means: no TLS, hence a process of this
machine (``PlainSecurity`` serves loopback only), which there is nothing to check against.
"""

from collections.abc import Iterable, Mapping

from pdd.core.errors import PddError
from pdd.tls.identity import CertificateIdentity, CertificateRole

_PEER_URI = "peer_uri"  # gRPC's property for URI names alone: a DNS name cannot pose as one
NODE_ROLES = (CertificateRole.PREFILL, CertificateRole.DECODE)


class PeerRefused(PddError):
    """The caller's certificate does not allow what it asks or claims."""


def caller_of(auth_context: Mapping[str, Iterable[bytes]], *, cluster: str) -> CertificateIdentity:
    """The identity of a verified peer.

    Args:
        auth_context: of a call that came over mutual TLS (``ServicerContext.auth_context()``).
        cluster: our own; a certificate of another one is refused.
    Raises:
        PeerRefused: no identity, several, or another cluster's.
    """
    uris = [uri.decode(errors="replace") for uri in auth_context.get(_PEER_URI, ())]
    found = [uri for uri in uris if uri.startswith("pdd:")]
    if len(found) != 1:
        raise PeerRefused(
            f"the caller's certificate names {found or 'no pdd:// identity'}, and it must name "
            "one; issue it with 'pdd certs issue'"
        )
    try:
        identity = CertificateIdentity.parse(found[0])
    except ValueError as error:
        raise PeerRefused(f"the caller's certificate is of no use here: {error}") from error
    if identity.cluster != cluster:
        raise PeerRefused(
            f"the caller's certificate is of cluster {identity.cluster!r} ({identity}), this is "
            f"cluster {cluster!r}"
        )
    return identity


def check_role(caller: CertificateIdentity | None, roles: Iterable[CertificateRole]) -> None:
    """Raises PeerRefused: the caller's certificate is of none of ``roles``."""
    allowed = tuple(roles)
    if caller is not None and caller.role not in allowed:
        raise PeerRefused(
            f"this is for {' and '.join(allowed)} certificates, the caller's is that of "
            f"{caller.role}/{caller.name}"
        )


def check_claim(
    caller: CertificateIdentity | None,
    *,
    name: str,
    roles: Iterable[CertificateRole] = NODE_ROLES,
) -> None:
    """``name`` and one of ``roles`` is what the caller claims to be.

    Raises:
        PeerRefused: its certificate says otherwise.
    """
    if caller is None:
        return
    allowed = tuple(roles)
    if caller.name != name or caller.role not in allowed:
        claimed = " or ".join(f"{role}/{name}" for role in allowed)
        raise PeerRefused(
            f"the caller claims to be {claimed}, its certificate is that of "
            f"{caller.role}/{caller.name}; give that node its own certificate ([tls], "
            "'pdd certs issue')"
        )
