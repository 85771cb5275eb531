"""What can be wrong with a replica's disk. Every one of these ends the process.

PddError > StorageError
  StorageFailedError     a write or an fsync failed: this process knows no longer what is on disk
  DamagedError           bytes that were once durable have changed, or are gone
  ForeignStorageError    the directory belongs to another replica, cluster or voter set
  StorageMissingError    no log where one is expected
  StorageVersionError    written by a release this one does not read
"""

from __future__ import annotations

from pdd.core.errors import PddError


class StorageError(PddError):
    """The message says what was found, where, and what to do."""


class StorageFailedError(StorageError):
    pass


class DamagedError(StorageError):
    pass


class ForeignStorageError(StorageError):
    pass


class StorageMissingError(StorageError):
    pass


class StorageVersionError(StorageError):
    pass


REPLACE_ADVICE = (
    "do not delete it and start empty: this replica would forget votes and acknowledged entries. "
    "Restore the directory from where it was moved, or replace this replica offline "
    "from the others' logs: 'pdd raft replace --help' tells how"
)
