"""The folder of a replica's socket: only its user may enter, and none stays behind for long.

It is in the temp folder, because a socket's path is short by the kernel's rule and a state folder's
need not be. A scheduler that is killed leaves its own; the next one of the same user removes it. A
folder is in use as long as somebody holds the lock on the file in it, which ends with its process.
"""

import contextlib
import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import structlog

log = structlog.get_logger(__name__)

_PREFIX = "pdd-replica-"
_SOCKET, _LOCK = "replica", "lock"
_MADE_WITHIN_S = 60.0
"""A folder without a lock is being made, unless it is older."""


@contextlib.contextmanager
def replica_socket() -> Iterator[Path]:
    """A path for the socket, in a folder that lasts as long as the context."""
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))  # 0700
    try:
        with (folder / _LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            _sweep(made_before_s=folder.stat().st_mtime - _MADE_WITHIN_S)
            yield folder / _SOCKET
    finally:
        _remove(folder)


def _sweep(*, made_before_s: float) -> None:
    """Remove what killed schedulers of this user have left; what has no lock, if it is as old."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(FileNotFoundError):  # another one sweeps as well
            found = folder.lstat()
            if found.st_uid == os.getuid() and stat.S_ISDIR(found.st_mode):
                _remove_if_left(folder, made_before_s)


def _remove_if_left(folder: Path, made_before_s: float) -> None:
    try:
        lock = (folder / _LOCK).open("r+")
    except FileNotFoundError:
        if folder.lstat().st_mtime < made_before_s:
            _remove(folder)
        return
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return  # in use
        _remove(folder)


def _remove(folder: Path) -> None:
    for name in (_SOCKET, _LOCK):
        (folder / name).unlink(missing_ok=True)
    try:
        folder.rmdir()
    except FileNotFoundError:
        pass  # another scheduler was quicker
    except OSError as error:
        log.warning("replica_folder_left", folder=str(folder), why=str(error))
