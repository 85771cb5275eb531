"""Which files a certificate lies in. Imports nothing heavy: the configuration has it too."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsPaths:
    """Three files in PEM. ``ca`` may hold several authorities, ``certificate`` a chain, leaf first.

    ``ca`` is None for a server that asks its clients for no certificate.
    """

    ca: Path | None
    certificate: Path
    key: Path
    is_own_authority: bool = True
    """Whether ``ca`` has signed ``certificate`` too, as in [tls]; in [public_tls] it is
    ``client_ca`` and has signed what clients show."""

    def key_of(self, field: str) -> str:
        """The configuration's key for ``ca``, ``certificate`` or ``key``."""
        if self.is_own_authority:
            return f"tls.{field}"
        return f"public_tls.{'client_ca' if field == 'ca' else field}"
