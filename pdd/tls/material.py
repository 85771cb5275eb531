"""Files that may be renewed under a running daemon.

A look costs three ``stat`` calls, and is taken at each handshake and before each dialled call, so
that no task has to watch. What changed is read and checked whole; while anything is wrong with it
(half of a pair is written, another node's was copied) the former stays in use and that is logged,
once per state of the files. Files whose only fault is the time are read again when it has come.
"""

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import structlog

from pdd.core.errors import ConfigError
from pdd.tls.check import FileFault, Material, read_material
from pdd.tls.facts import CertificateFacts
from pdd.tls.paths import TlsPaths

log = structlog.get_logger(__name__)

WallClock = Callable[[], datetime]
Misfit = Callable[[CertificateFacts, CertificateFacts], str | None]
"""Why the second certificate may not follow the first; None when it may."""

_Stamp = tuple[tuple[int, ...], ...]


def no_misfit(former: CertificateFacts, offered: CertificateFacts) -> None:
    """Any valid one may follow."""


def wall_clock() -> datetime:
    """UTC. Certificates know no other clock."""
    return datetime.now(UTC)


class RenewedMaterial:
    """``current`` may be called from any thread: gRPC does its handshakes on its own."""

    def __init__(
        self, paths: TlsPaths, *, now: WallClock = wall_clock, misfit: Misfit = no_misfit
    ) -> None:
        """Raises ConfigError, one line per fault. ``misfit`` judges renewals only."""
        self._paths = paths
        self._now = now
        self._misfit = misfit
        self._lock = threading.Lock()
        self._stamp = _stamp(paths)
        self._untimely: tuple[CertificateFacts, ...] = ()
        """What keeps the present files out, if that is nothing but the time."""
        material, faults = read_material(paths, now=now())
        if material is None:
            raise ConfigError("\n".join(self._lines(faults)))
        self._material = material

    def current(self) -> Material:
        """The newest that is valid. The same object as long as nothing has changed."""
        with self._lock:
            stamp = _stamp(self._paths)
            if stamp is None:
                return self._material  # one is being replaced, or gone: it may come back
            if stamp != self._stamp or self._is_time():
                self._stamp = stamp
                self._renew()
            return self._material

    def _lines(self, faults: list[FileFault]) -> list[str]:
        return [f"{self._paths.key_of(fault.field)}: {fault.message}" for fault in faults]

    def _is_time(self) -> bool:
        """Whether what was early, or late by a clock that was ahead, is valid now."""
        if not self._untimely:
            return False
        now = self._now()
        return all(facts.fault_at(now) is None for facts in self._untimely)

    def _renew(self) -> None:
        material, faults = read_material(self._paths, now=self._now())
        if material is not None:
            misfit = self._misfit(self._material.facts, material.facts)
            if misfit is not None:
                message = f"{self._paths.certificate}: {misfit}"
                material, faults = None, [FileFault(field="certificate", message=message)]
        untimely = tuple(fault.untimely for fault in faults if fault.untimely is not None)
        self._untimely = untimely if len(untimely) == len(faults) else ()
        if material is None:
            log.warning(
                "certificate_not_renewed",
                reason="; ".join(self._lines(faults)),
                advice="the former one stays in use",
            )
        elif material != self._material:
            self._material = material
            log.info(
                "certificate_renewed",
                certificate=str(self._paths.certificate),
                expires=material.facts.expires.isoformat(),
            )


def _stamp(paths: TlsPaths) -> _Stamp | None:
    """Changes with the files; None while one of them cannot be found."""
    files: list[Path] = [paths.certificate, paths.key]
    if paths.ca is not None:
        files.append(paths.ca)
    try:
        found = [path.stat() for path in files]
    except OSError:
        return None
    # Not of content only: a key's mode is judged too, and its owner decides who may read it.
    return tuple((s.st_mtime_ns, s.st_ctime_ns, s.st_ino, s.st_size, s.st_mode) for s in found)
