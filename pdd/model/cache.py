"""Publishing a folder so that readers see all of it or none of it.

    lock ──> remove leftovers ──> make in .NAME.partial-* ──> fsync all ──> rename ──> unlock

Whoever holds the lock knows that every temporary folder of that name belongs to a dead
process (the kernel drops a lock with its holder, SIGKILL included), so leftovers are removed
without guessing at process ids. A failure, a full disk or Ctrl-C removes the temporary folder
on the way out. What was published before stays until the new one is whole on the disk.
"""

import errno
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pdd.core.errors import ConfigError

_LOCK_POLL_S = 0.1


def cache_folder() -> Path:
    """``$PDD_CACHE_DIR``, else ``$XDG_CACHE_HOME/pdd``, else ``~/.cache/pdd``. Not created here."""
    if own := os.environ.get("PDD_CACHE_DIR"):
        return Path(own).expanduser().absolute()
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg).expanduser().absolute() / "pdd"
    return Path("~/.cache/pdd").expanduser()


@contextmanager
def locked(target: Path, *, timeout_s: float, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold the lock of ``target`` (a file ``.NAME.lock`` beside it, which stays).

    ``on_wait`` is called once if somebody else holds it.

    Raises:
        ConfigError: the folder is not writable, or the lock was not free within ``timeout_s``.
    """
    path = target.parent / f".{target.name}.lock"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise ConfigError(
            f"cannot write {path}: {error.strerror}; set PDD_CACHE_DIR to a writable folder"
        ) from error
    try:
        _wait_for(lock, path, timeout_s=timeout_s, on_wait=on_wait)
        yield
    finally:
        os.close(lock)


def publish(target: Path, make: Callable[[Path], None]) -> None:
    """Let ``make`` fill a fresh folder and put it at ``target``. The caller holds the lock.

    Raises:
        ConfigError: the disk is full; nothing of the attempt is left.
        Exception: whatever ``make`` raises; nothing of the attempt is left.
    """
    remove_leftovers(target)
    partial = Path(tempfile.mkdtemp(prefix=f".{target.name}.partial-", dir=target.parent))
    try:
        make(partial)
        partial.chmod(0o755)
        sync_tree(partial)
        if target.exists():
            # Only a faulty folder is ever replaced; it goes aside first because a rename
            # cannot replace a folder with files in it. Readers keep the files they have open.
            target.rename(target.parent / f".{target.name}.partial-old-{os.getpid()}")
        partial.rename(target)
        _sync(target.parent)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise ConfigError(
            f"{error.strerror} while writing {target}; nothing was left behind. "
            "Free some space, or set PDD_CACHE_DIR to a folder on another disk"
        ) from error
    finally:
        remove_leftovers(target)


def remove_leftovers(target: Path) -> None:
    """Remove what attempts at ``target`` left, in this process or in dead ones. Lock held."""
    for path in target.parent.glob(f".{target.name}.partial-*"):
        shutil.rmtree(path)


def sync_tree(folder: Path) -> None:
    """Put every file of ``folder`` and the folder itself onto the disk, readable by all."""
    for path in folder.iterdir():
        path.chmod(0o644)
        _sync(path)
    _sync(folder)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _wait_for(lock: int, path: Path, *, timeout_s: float, on_wait: Callable[[], None]) -> None:
    deadline_s = time.monotonic() + timeout_s
    waited = False
    while True:
        with suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        if not waited:
            on_wait()
            waited = True
        if time.monotonic() >= deadline_s:
            raise ConfigError(
                f"another process held {path} for {timeout_s:.0f} s; "
                f"see who with `fuser {path}` and try again"
            )
        time.sleep(_LOCK_POLL_S)
