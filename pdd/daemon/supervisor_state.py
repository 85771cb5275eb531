"""The state folder of a local cluster: its lock, its record, its files.

    lock            held (flock) by the supervisor, and by its guard when the supervisor was killed
    cluster.json    the record: who supervises, where the endpoints are; gone when it is stopped
    NAME.toml       configuration of each daemon        NAME/       its state (identity)
    log/NAME.log    output of each daemon               log/up.log  of a detached supervisor

The lock tells whether a cluster runs here; the record only tells which.
"""

import fcntl
import json
import os
import secrets
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from pdd.core.errors import PddError

RECORD_VERSION = 1
_RECORD_NAME = "cluster.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonRecord:
    """One daemon. ``address`` is the host:port of its gRPC server, empty until it is ready."""

    name: str
    role: str
    pid: int
    address: str
    http: str = ""
    """Of a scheduler."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRecord:
    """A cluster on this machine."""

    cluster_id: str
    supervisor_pid: int
    supervisor_start_ticks: int
    """Start time of the supervisor: a process with its pid but another start is another one."""
    temporary_dir: str
    state: str
    """"starting", "ready" or "stopping"."""
    http: str = ""
    grpc: str = ""
    model: str = ""
    nodes: tuple[DaemonRecord, ...] = ()
    version: int = RECORD_VERSION

    def public(self) -> dict[str, object]:
        """What ``pdd up -o json`` prints."""
        nodes = [asdict(node) for node in self.nodes]
        for node in nodes:
            if not node["http"]:
                del node["http"]
        return {"http": self.http, "grpc": self.grpc, "nodes": nodes}


class StateDirBusy(PddError):
    """Another cluster runs on this state folder."""


class StateDir:
    """A state folder whose lock we hold. Close it to let go."""

    def __init__(self, path: Path, lock_descriptor: int) -> None:
        self.path = path
        self.lock_descriptor = lock_descriptor

    @classmethod
    def lock(cls, path: Path) -> Self:
        """Make the folder if need be and take its lock.

        Raises:
            StateDirBusy: names the folder, the process that holds it, and what to do.
            PddError: the folder cannot be made or written.
        """
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise PddError(f"state folder {path} cannot be used: {error.strerror}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            raise StateDirBusy(_busy_message(path)) from error
        return cls(path, descriptor)

    @classmethod
    def wait_for_lock(cls, path: Path, *, timeout_s: float) -> Self:
        """As ``lock``, but give the holder time to end."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            try:
                return cls.lock(path)
            except StateDirBusy:
                if time.monotonic() >= deadline_s:
                    raise
                time.sleep(0.05)  # flock has no timeout, and no descriptor to wait on

    def write_record(self, record: ClusterRecord) -> None:
        """Replace the record in one step."""
        write_atomically(self.path / _RECORD_NAME, json.dumps(asdict(record), indent=1) + "\n")

    def remove_record(self) -> None:
        (self.path / _RECORD_NAME).unlink(missing_ok=True)

    def close(self) -> None:
        os.close(self.lock_descriptor)


def _busy_message(path: Path) -> str:
    record = read_record(path)
    if record is None:
        return (
            f"another pdd up or pdd down works on {path}; wait for it, or use another --state-dir"
        )
    return (
        f"a cluster is {record.state} in {path} (pid {record.supervisor_pid}); stop it with "
        f"'pdd down --state-dir {path}', or use another --state-dir"
    )


def read_record(path: Path) -> ClusterRecord | None:
    """The record in a state folder; None when there is none.

    Raises:
        PddError: it is there but cannot be read.
    """
    file = path / _RECORD_NAME
    try:
        fields = json.loads(file.read_text())
        if fields["version"] != RECORD_VERSION:
            raise PddError(
                f"{file} has version {fields['version']}, this pdd reads {RECORD_VERSION}; "
                "stop the cluster with the pdd that started it"
            )
        nodes = tuple(DaemonRecord(**node) for node in fields.pop("nodes"))
        return ClusterRecord(**fields, nodes=nodes)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PddError(
            f"{file} cannot be read ({type(error).__name__}: {error}); if no cluster runs there, "
            "remove it"
        ) from error


def new_cluster_id() -> str:
    """Unguessable, so that no other process can carry it by accident."""
    return secrets.token_hex(8)


def write_atomically(file: Path, text: str) -> None:
    """Write beside it and rename: a reader sees the old text or the new, and a full disk the old.

    Raises:
        OSError: names the file; nothing was changed.
    """
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        temporary.write_text(text)
        temporary.replace(file)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        # A failed write does not name its file by itself.
        raise OSError(error.errno, error.strerror, str(file)) from error
