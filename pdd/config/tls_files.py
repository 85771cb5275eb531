"""Read what [tls] and [public_tls] name, and say what does not fit this daemon."""

import ipaddress
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pdd.config.broken import BrokenRelation
from pdd.config.sections import Config
from pdd.config.types import is_unspecified
from pdd.tls.paths import TlsPaths

if TYPE_CHECKING:
    from pdd.tls.facts import CertificateFacts


def member_paths(config: Config) -> TlsPaths | None:
    """The files of [tls]; None without TLS, or while keys are missing."""
    tls = config.tls
    if not (tls.ca and tls.certificate and tls.key):
        return None
    return TlsPaths(ca=_path(tls.ca), certificate=_path(tls.certificate), key=_path(tls.key))


def public_paths(config: Config) -> TlsPaths | None:
    """The files of [public_tls]; None likewise."""
    tls = config.public_tls
    if not (tls.certificate and tls.key):
        return None
    return TlsPaths(
        ca=_path(tls.client_ca) if tls.client_ca else None,
        certificate=_path(tls.certificate),
        key=_path(tls.key),
        is_own_authority=False,
    )


def broken_files(config: Config) -> Iterator[BrokenRelation]:
    """Yield every fault of the files. Reads them, and the clock; neither without TLS."""
    for paths in (member_paths(config), public_paths(config)):
        if paths is None:
            continue
        # The library takes a tenth of a second, which only those wait for who use it.
        from pdd.tls.check import read_material
        from pdd.tls.material import wall_clock

        material, faults = read_material(paths, now=wall_clock())
        for fault in faults:
            key = paths.key_of(fault.field)
            yield BrokenRelation(keys=(key,), message=f"{key}: {fault.message}")
        if material is not None and paths.is_own_authority:
            for compared, message in _misfits(config, material.facts):
                yield BrokenRelation(
                    keys=(*compared, "tls.certificate"),
                    message=f"tls.certificate: {paths.certificate}: {message}",
                )


def _misfits(config: Config, facts: "CertificateFacts") -> Iterator[tuple[tuple[str, ...], str]]:
    """Whose certificate it is, and where it may be used: keys it was compared with, and a fault."""
    identity, node = facts.identity, config.node
    if identity is None:
        yield (), "names no pdd:// identity; issue it with 'pdd certs issue'"
        return
    if (identity.role.value, identity.name) != (node.role.value, node.name):
        yield (
            ("node.name", "node.role"),
            f"is issued for {identity.role} {identity.name!r}, this daemon is {node.role} "
            f"{node.name!r}; give it its own, 'pdd certs issue {node.name} --role {node.role}'",
        )
    key, host = "grpc.advertise", config.grpc.advertise
    if not host:
        key, host = "grpc.listen", config.grpc.listen.host
    if not is_unspecified(host) and not _covers(facts.hosts, host):
        yield (
            (key,),
            f"is issued for {', '.join(facts.hosts) or 'no host'}, and others dial {host} ({key}); "
            f"issue it with --host {host}",
        )


def _covers(hosts: tuple[str, ...], host: str) -> bool:
    """Whether a certificate of these hosts is good for dialling ``host``."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        name = host.lower()
        parent = name.partition(".")[2]
        return any(one.lower() in (name, f"*.{parent}") for one in hosts)
    return str(address) in hosts


def _path(text: str) -> Path:
    return Path(text).expanduser()
