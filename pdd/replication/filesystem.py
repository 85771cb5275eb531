"""The few file system calls the WAL and the snapshots are made of.

A Protocol, so that the simulator can lose what was not synced, stop between any two calls and make
any call fail. All paths are names inside one flat directory.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

from pdd.replication.errors import StorageFailedError


class File(Protocol):
    def write_at(self, offset_bytes: int, data: bytes) -> None:
        """Write all of ``data``. Not durable before `sync`."""

    def sync(self) -> None:
        """Make the content durable (fdatasync). Raises StorageFailedError; never retry it: after
        a failed fsync the kernel may report success while the pages are lost."""

    def close(self) -> None: ...


class FileSystem(Protocol):
    def names(self) -> list[str]:
        """Sorted names of the files in the directory."""

    def read(self, name: str) -> bytes: ...

    def create(self, name: str, *, size_bytes: int) -> File:
        """A new file of zeros, ``size_bytes`` long (replaces one of that name)."""

    def open(self, name: str) -> File: ...

    def rename(self, source: str, target: str) -> None: ...

    def remove(self, name: str) -> None: ...

    def sync_directory(self) -> None:
        """Make creations, renames and removals durable."""


class _OsFile:
    def __init__(self, descriptor: int, path: Path) -> None:
        self._descriptor = descriptor
        self._path = path

    def write_at(self, offset_bytes: int, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                written = os.pwrite(self._descriptor, view, offset_bytes)
                view = view[written:]
                offset_bytes += written
        except OSError as error:
            raise _failed("write to", self._path, error) from error

    def sync(self) -> None:
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            raise _failed("fsync", self._path, error) from error

    def close(self) -> None:
        """Twice is harmless: a second close of the number could hit somebody else's file."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class OsFileSystem:
    """One real directory, created if it is not there."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        try:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise _failed("create", directory, error) from error

    def names(self) -> list[str]:
        try:
            return sorted(entry.name for entry in os.scandir(self.directory) if entry.is_file())
        except OSError as error:
            raise _failed("list", self.directory, error) from error

    def read(self, name: str) -> bytes:
        path = self.directory / name
        try:
            return path.read_bytes()
        except OSError as error:
            raise _failed("read", path, error) from error

    def create(self, name: str, *, size_bytes: int) -> File:
        path = self.directory / name
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _failed("create", path, error) from error
        try:
            if size_bytes:
                os.posix_fallocate(descriptor, 0, size_bytes)
        except OSError as error:
            os.close(descriptor)
            raise _failed(f"allocate {size_bytes} bytes for", path, error) from error
        return _OsFile(descriptor, path)

    def open(self, name: str) -> File:
        path = self.directory / name
        try:
            return _OsFile(os.open(path, os.O_RDWR | os.O_CLOEXEC), path)
        except OSError as error:
            raise _failed("open", path, error) from error

    def rename(self, source: str, target: str) -> None:
        try:
            (self.directory / source).rename(self.directory / target)
        except OSError as error:
            raise _failed("rename", self.directory / source, error) from error

    def remove(self, name: str) -> None:
        try:
            (self.directory / name).unlink()
        except OSError as error:
            raise _failed("remove", self.directory / name, error) from error

    def sync_directory(self) -> None:
        try:
            descriptor = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise _failed("fsync", self.directory, error) from error


def _failed(action: str, path: Path, error: OSError) -> StorageFailedError:
    return StorageFailedError(
        f"cannot {action} {path}: {error.strerror or error} (errno {error.errno}). "
        "The replica stops, for it no longer knows what is durable; check the disk and its free "
        "space, then start it again"
    )
