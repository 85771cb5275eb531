"""Replace a dead replica whose disk is lost, with the whole group stopped.

A replica that lost its disk has forgotten its votes and what it acknowledged; started empty under
its old name it could elect a second leader of an old term, or a leader that lacks acknowledged
entries. The step here gives it back what could matter:

    1. stop every replica
    2. bring the survivors' directories to one machine (copies will do)
    3. `replace_replica`: the best log among the survivors, in a new directory for the dead one,
       with term = highest term of any survivor + 1, and no vote
    4. put that directory where the new machine expects it, start all replicas

Why it is safe, with all other n - 1 voters' disks at hand: whatever was committed is on one of them
at least, and the log with the largest (last term, last index) holds all of it (leader
completeness). A vote the dead replica gave went to a survivor, who wrote that term down before it
asked, or to itself, which elected nobody; so in the new term it has not voted. With a survivor
missing neither holds, so its directory is required.

Building goes on beside the final place, and one rename ends it: a half-built replica never starts.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pdd.core.errors import ConfigError
from pdd.raft.config import RaftConfig
from pdd.raft.values import EMPTY_HARD_STATE, HardState, NodeId
from pdd.replication.batch import Batch, Marker, MarkerKind
from pdd.replication.directory_lock import DirectoryLock
from pdd.replication.filesystem import OsFileSystem
from pdd.replication.snapshots import write_snapshot
from pdd.replication.storage import Restart, identity_of, open_storage
from pdd.replication.wal import create_wal


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacement:
    copied_from: NodeId
    term: int
    last_index: int
    directory: Path


def begin_log(node: NodeId, *, directory: Path, voters: Sequence[NodeId], cluster_id: str) -> None:
    """Make the empty log of a replica of a new group. Once in a group's life, on each replica.

    Raises:
        ConfigError: there is a log already, or the names cannot be a group.
        StorageError: it cannot be written.
    """
    config = RaftConfig(node=node, voters=tuple(voters), cluster_id=cluster_id)
    if directory.exists() and any(directory.iterdir()):
        raise ConfigError(f"{directory} is not empty: {node} has begun its log already")
    lock = DirectoryLock(directory)
    try:
        storage, _ = open_storage(OsFileSystem(directory), config, may_create=True)
        storage.close()
    finally:
        lock.release()


def replace_replica(
    dead: NodeId, *, directory: Path, survivors: Mapping[NodeId, Path], cluster_id: str
) -> Replacement:
    """Build ``dead``'s new data directory from those of all other voters, which must be stopped.

    Raises:
        ConfigError: ``directory`` exists, or the names cannot be a group.
        StorageError: a survivor runs, is damaged, or belongs to other voters (which is also what
            a missing survivor looks like).
    """
    if directory.exists():
        raise ConfigError(
            f"{directory} exists; move it away first (it may still be of use), then try again"
        )
    voters = (dead, *survivors)
    with _held(survivors):
        found = {
            name: _read(path, RaftConfig(node=name, voters=voters, cluster_id=cluster_id))
            for name, path in survivors.items()
        }
    best = max(found, key=lambda name: last_entry(found[name]))
    term = max(restart.hard_state.term for restart in found.values()) + 1
    config = RaftConfig(node=dead, voters=voters, cluster_id=cluster_id)
    _build(directory, config, found[best], term=term)
    last_index = last_entry(found[best])[1]
    return Replacement(copied_from=best, term=term, last_index=last_index, directory=directory)


def last_entry(restart: Restart) -> tuple[int, int]:
    """(term, index) of the newest entry: what raft compares logs by (paper section 5.4.1)."""
    if restart.entries:
        return restart.entries[-1].term, restart.entries[-1].index
    if restart.snapshot is not None:
        return restart.snapshot.meta.term, restart.snapshot.meta.index
    return 0, 0


@contextmanager
def _held(survivors: Mapping[NodeId, Path]) -> Iterator[None]:
    locks: list[DirectoryLock] = []
    try:
        for name, path in survivors.items():
            if not path.is_dir():
                raise ConfigError(f"{path}, the directory of survivor {name!r}, is not there")
            locks.append(DirectoryLock(path))
        yield
    finally:
        for lock in locks:
            lock.release()


def _read(path: Path, config: RaftConfig) -> Restart:
    """As the survivor itself would at its next start, torn tail cut and all."""
    storage, restart = open_storage(OsFileSystem(path), config, may_create=False)
    storage.close()
    return restart


def _build(directory: Path, config: RaftConfig, source: Restart, *, term: int) -> None:
    unfinished = directory.with_name(directory.name + ".unfinished")
    if unfinished.exists():
        shutil.rmtree(unfinished)  # of an earlier try, which never got its name
    files = OsFileSystem(unfinished)
    wal = create_wal(files, identity_of(config), hard_state=EMPTY_HARD_STATE)
    marker = None
    if source.snapshot is not None:
        write_snapshot(files, source.snapshot)
        marker = Marker(meta=source.snapshot.meta, kind=MarkerKind.INSTALLED)
    hard_state = HardState(term=term, vote=None, commit_index=source.hard_state.commit_index)
    wal.write(Batch(marker=marker, entries=source.entries, hard_state=hard_state))
    wal.sync()
    wal.close()
    files.sync_directory()
    unfinished.rename(directory)
    parent = os.open(directory.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(parent)
    finally:
        os.close(parent)
