"""Who a certificate says its holder is: one URI in its subject alternative names.

    pdd://CLUSTER/ROLE/NAME      a member or a client
    pdd://CLUSTER                the cluster's authority

Pure. A URI and not the common name: TLS libraries hand it over as it is, and it names the cluster
too, so that one authority's mistake (or two clusters under one authority) mixes nothing up.
"""

import re
from dataclasses import dataclass
from enum import StrEnum

_WORD = r"[a-z0-9][a-z0-9-]{0,62}"
_NAME = re.compile(_WORD)
_MEMBER = re.compile(rf"pdd://({_WORD})/([a-z]+)/({_WORD})")
_AUTHORITY = re.compile(rf"pdd://({_WORD})")


class CertificateRole(StrEnum):
    """What the holder may be. The first three are a daemon's role of the same name."""

    SCHEDULER = "scheduler"
    PREFILL = "prefill"
    DECODE = "decode"
    CLIENT = "client"  # asks; never serves and never joins

    @property
    def is_member(self) -> bool:
        """Whether it is a daemon of the cluster."""
        return self is not CertificateRole.CLIENT


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateIdentity:
    """The holder of a certificate. ``str`` gives the URI."""

    cluster: str
    role: CertificateRole
    name: str

    def __post_init__(self) -> None:
        """Raises ValueError for a name that a URI could not carry."""
        check_name("cluster", self.cluster)
        check_name("name", self.name)

    @classmethod
    def parse(cls, uri: str) -> "CertificateIdentity":
        """Read ``pdd://CLUSTER/ROLE/NAME``. Raises ValueError."""
        match = _MEMBER.fullmatch(uri)
        if match is None:
            raise ValueError(f"{uri!r} is not pdd://CLUSTER/ROLE/NAME")
        cluster, role, name = match.groups()
        return cls(cluster=cluster, role=CertificateRole(role), name=name)

    def __str__(self) -> str:
        return f"pdd://{self.cluster}/{self.role}/{self.name}"


def check_name(field: str, text: str) -> None:
    """Raises ValueError, with the form that a name has."""
    if _NAME.fullmatch(text) is None:
        raise ValueError(
            f"{field} is {text!r}; it is written in lower-case letters, digits and dashes, "
            "beginning with a letter or digit, 63 characters at most"
        )


def authority_uri(cluster: str) -> str:
    """What the authority's own certificate names."""
    return f"pdd://{cluster}"


def cluster_of_authority(uri: str) -> str:
    """The inverse. Raises ValueError."""
    match = _AUTHORITY.fullmatch(uri)
    if match is None:
        raise ValueError(f"{uri!r} is not pdd://CLUSTER")
    return match.group(1)
