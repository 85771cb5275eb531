"""Certificates for tests: a cluster's authority in a folder, and what it issues."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from pdd.tls.authority import Issued, issue, make_authority
from pdd.tls.files import pair_paths, write_pair
from pdd.tls.paths import TlsPaths
from pdd.tls.security import TlsSecurity

NOW = datetime.now(UTC).replace(microsecond=0)  # certificates have seconds
LOOPBACK = ("127.0.0.1",)


class Authority:
    """One cluster's, valid from 30 days ago for 60 days."""

    def __init__(self, folder: Path, cluster: str = "one") -> None:
        self.folder = folder
        self.issued = make_authority(cluster, now=NOW - timedelta(days=30), days=60)
        write_pair(folder, "ca", self.issued, force=False)

    @property
    def ca(self) -> Path:
        return self.folder / "ca.crt"

    def issue(
        self,
        name: str,
        *,
        role: str | None = None,
        hosts: tuple[str, ...] = LOOPBACK,
        now: datetime = NOW,
        days: int = 10,
        file: str | None = None,
        force: bool = False,
    ) -> TlsPaths:
        """Write a pair; its role is the first word of its name."""
        issued = issue(
            self.issued,
            name=name,
            role=role or name.split("-")[0],
            hosts=hosts,
            now=now,
            days=days,
        )
        write_pair(self.folder, file or name, issued, force=force)
        return self.paths(file or name)

    def paths(self, file: str) -> TlsPaths:
        certificate, key = pair_paths(self.folder, file)
        return TlsPaths(ca=self.ca, certificate=certificate, key=key)

    def security(self, name: str, **fields: object) -> TlsSecurity:
        return TlsSecurity(self.issue(name, **fields))  # type: ignore[arg-type]

    def expired(self, name: str) -> TlsSecurity:
        """Looked at while it was valid, which it is no more."""
        then = NOW - timedelta(days=20)
        return TlsSecurity(self.issue(name, now=then), now=lambda: then + timedelta(days=1))


def make_pair(authority: Issued, name: str, role: str, *hosts: str) -> Issued:
    return issue(authority, name=name, role=role, hosts=hosts, now=NOW, days=10)
