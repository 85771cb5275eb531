"""One process per data directory: two on one log would destroy it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from pdd.replication.errors import StorageError

LOCK_FILE = "lock"


class DirectoryInUseError(StorageError):
    """Another process has this directory open."""


class DirectoryLock:
    """Held until `release`, or until the process ends, however it ends."""

    def __init__(self, directory: Path) -> None:
        """Creates the directory if need be. Raises: DirectoryInUseError."""
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._descriptor = os.open(
            directory / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._descriptor)
            raise DirectoryInUseError(
                f"{directory} is in use by another process: stop that replica first"
            ) from error

    def release(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
