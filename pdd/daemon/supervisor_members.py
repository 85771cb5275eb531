"""The processes of a cluster, found by what they inherited, and what they leave behind.

Every daemon is started with ``PDD_UP_MEMBER=<cluster id>:<daemon name>`` in its environment, and
whatever it starts inherits that: also processes that outlive their parent or leave its session.
That is how a stop, a restart and the guard find engine processes whose daemon is dead, and how
they never touch a process of somebody else. Standard library only: the guard loads it.
"""

import os
import select
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MEMBER_VARIABLE = "PDD_UP_MEMBER"
_PROC = Path("/proc")
_TEMPORARY_PREFIX = "pdd-"
_SHARED_MEMORY = "/dev/shm/"  # noqa: S108 -- looked up, not written to


@dataclass(frozen=True, slots=True)
class SharedFile:
    """A shared memory file that a member had mapped. The inode tells it from a later namesake."""

    path: str
    inode: int


def member_environment(
    base: dict[str, str], *, cluster_id: str, name: str, temporary_dir: Path
) -> dict[str, str]:
    """The environment of a daemon: ``base`` plus what makes its processes findable."""
    return base | {
        MEMBER_VARIABLE: f"{cluster_id}:{name}",
        # vLLM renames its processes, which would overwrite the environment that we search.
        "SPT_NOENV": "1",
        # Sockets of the engine's processes end up here, so that one rmtree removes them.
        "TMPDIR": str(temporary_dir),
        "VLLM_RPC_BASE_PATH": str(temporary_dir),
    }


def find_members(cluster_id: str, *, name: str = "", session: int = 0) -> list[int]:
    """Living processes of a cluster, or of one of its daemons.

    Args:
        cluster_id: as in the record.
        name: only this daemon's.
        session: also whatever is in this session. Only pass it while its leader is not reaped:
            later the number may be somebody else's.
    """
    own_uid = os.geteuid()
    return [
        int(entry.name)
        for entry in _PROC.iterdir()
        if entry.name.isdigit()
        and int(entry.name) != os.getpid()
        and _is_member(int(entry.name), cluster_id, name=name, session=session, uid=own_uid)
    ]


def _is_member(pid: int, cluster_id: str, *, name: str, session: int, uid: int) -> bool:
    marker = f"{MEMBER_VARIABLE}={cluster_id}:{name}".encode()
    try:
        if (_PROC / str(pid)).stat().st_uid != uid:
            return False
        fields = _stat_fields(pid)
        if fields[0] in ("Z", "X"):  # ended, waits to be reaped
            return False
        if session and fields[3] == str(session):
            return True
        variables = (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False  # ended while we looked, or changed its user
    return marker in variables if name else any(v.startswith(marker) for v in variables)


def _stat_fields(pid: int) -> list[str]:
    """/proc/PID/stat from the third field on: state, ppid, pgrp, session..., start time [19]."""
    text = (_PROC / str(pid) / "stat").read_text()
    return text.rpartition(")")[2].split()


def start_ticks(pid: int) -> int | None:
    """When a process started, in ticks since boot; None when it is gone or only a zombie."""
    try:
        fields = _stat_fields(pid)
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in ("Z", "X") else int(fields[19])


def shared_files(pids: Iterable[int]) -> set[SharedFile]:
    """Shared memory files that these processes have mapped now."""
    found: set[SharedFile] = set()
    for pid in pids:
        try:
            maps = (_PROC / str(pid) / "maps").read_text()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # ended while we looked
        for line in maps.splitlines():
            fields = line.split(maxsplit=5)
            if (
                len(fields) == 6
                and fields[5].startswith(_SHARED_MEMORY)
                and not fields[5].endswith(" (deleted)")
            ):
                found.add(SharedFile(fields[5], int(fields[4])))
    return found


def remove_shared_files(files: Iterable[SharedFile]) -> None:
    """Remove what is still there. Call it when the processes that used them have ended."""
    for file in files:
        with suppress(FileNotFoundError):
            if Path(file.path).stat().st_ino == file.inode:
                Path(file.path).unlink()


def make_temporary_dir() -> Path:
    """A folder for the sockets of one cluster; short: a socket's path has at most 107 bytes."""
    return Path(tempfile.mkdtemp(prefix=_TEMPORARY_PREFIX))


def remove_temporary_dir(path: str) -> None:
    """Remove what ``make_temporary_dir`` made, and nothing that a damaged record may name."""
    if Path(path).name.startswith(_TEMPORARY_PREFIX):
        shutil.rmtree(path, ignore_errors=True)


def send_signal(pids: Iterable[int], number: signal.Signals) -> None:
    """Signal processes; those that have ended are skipped."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def end_members(
    find: Callable[[], list[int]], *, grace_s: float, clock: Callable[[], float] = time.monotonic
) -> set[SharedFile]:
    """SIGTERM what ``find`` finds, wait, SIGKILL what is left. Takes ``grace_s`` + 1 s and two
    searches at most.

    Returns:
        Shared memory that they had mapped, for ``remove_shared_files``.
    """
    files: set[SharedFile] = set()
    for number, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 1.0)):
        deadline_s = clock() + wait_s
        signalled: set[int] = set()
        # Found again in each turn: a member may start another one just before it ends.
        while members := find():
            files |= shared_files(set(members) - signalled)
            send_signal(set(members) - signalled, number)
            signalled.update(members)
            left_s = deadline_s - clock()
            if left_s <= 0:  # not before: on a busy machine the search alone may take that long
                break
            wait_for_exit(members[0], timeout_s=min(0.2, left_s))
    return files


def wait_for_exit(pid: int, *, timeout_s: float) -> bool:
    """Wait until a process ends, whoever's child it is. Returns whether it has."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        readable, _, _ = select.select([descriptor], [], [], timeout_s)
    finally:
        os.close(descriptor)
    return bool(readable)
