"""Replacing a dead replica: what the new directory holds, and when it is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from pdd.core.errors import ConfigError
from pdd.raft.config import RaftConfig
from pdd.raft.values import Entry, EntryKind, HardState, NodeId, Snapshot, SnapshotMeta
from pdd.replication.batch import Batch, Marker, MarkerKind
from pdd.replication.directory_lock import DirectoryInUseError, DirectoryLock
from pdd.replication.errors import DamagedError, ForeignStorageError, StorageMissingError
from pdd.replication.filesystem import OsFileSystem
from pdd.replication.offline import replace_replica
from pdd.replication.snapshots import write_snapshot
from pdd.replication.storage import Restart, identity_of, open_storage
from pdd.replication.wal import create_wal

A, B, C = NodeId("a"), NodeId("b"), NodeId("c")
VOTERS = (A, B, C)


def config(node: NodeId, voters: tuple[NodeId, ...] = VOTERS) -> RaftConfig:
    return RaftConfig(node=node, voters=voters, cluster_id="one")


def entry(index: int, term: int) -> Entry:
    return Entry(index=index, term=term, kind=EntryKind.COMMAND, data=f"{term}.{index}".encode())


def write_disk(
    path: Path,
    node: NodeId,
    *,
    term: int,
    vote: NodeId | None,
    terms: list[int],
    commit_index: int,
    snapshot: Snapshot | None = None,
) -> None:
    """``terms``: of the entries after the snapshot."""
    files = OsFileSystem(path)
    hard_state = HardState(term=term, vote=vote, commit_index=commit_index)
    wal = create_wal(files, identity_of(config(node)), hard_state=hard_state)
    marker = None
    first = 1
    if snapshot is not None:
        write_snapshot(files, snapshot)
        marker = Marker(meta=snapshot.meta, kind=MarkerKind.INSTALLED)
        first = snapshot.meta.index + 1
    entries = [entry(index, t) for index, t in enumerate(terms, start=first)]
    wal.write(Batch(marker=marker, entries=entries, hard_state=hard_state))
    wal.sync()
    wal.close()


def read_disk(path: Path, node: NodeId) -> Restart:
    storage, restart = open_storage(OsFileSystem(path), config(node), may_create=False)
    storage.close()
    return restart


def test_the_best_log_is_copied_with_a_term_nobody_has_voted_in(tmp_path: Path) -> None:
    write_disk(tmp_path / "a", A, term=7, vote=A, terms=[1, 1, 1, 1], commit_index=2)
    write_disk(tmp_path / "b", B, term=5, vote=C, terms=[1, 1, 3], commit_index=3)
    done = replace_replica(
        C,
        directory=tmp_path / "c",
        survivors={A: tmp_path / "a", B: tmp_path / "b"},
        cluster_id="one",
    )
    assert (done.copied_from, done.term, done.last_index) == (B, 8, 3)
    restart = read_disk(tmp_path / "c", C)
    assert restart.hard_state == HardState(term=8, vote=None, commit_index=3)
    assert list(restart.entries) == [entry(1, 1), entry(2, 1), entry(3, 3)]
    assert not list(tmp_path.glob("*.unfinished"))


def test_of_equal_terms_the_longer_log_is_the_better_one(tmp_path: Path) -> None:
    write_disk(tmp_path / "a", A, term=2, vote=None, terms=[1, 2, 2], commit_index=1)
    write_disk(tmp_path / "b", B, term=2, vote=None, terms=[1, 2], commit_index=2)
    survivors = {A: tmp_path / "a", B: tmp_path / "b"}
    done = replace_replica(C, directory=tmp_path / "c", survivors=survivors, cluster_id="one")
    assert done.copied_from == A


def test_a_snapshot_comes_along(tmp_path: Path) -> None:
    snapshot = Snapshot(meta=SnapshotMeta(index=10, term=2), data=b"state")
    write_disk(tmp_path / "a", A, term=2, vote=A, terms=[2, 2], commit_index=11, snapshot=snapshot)
    write_disk(tmp_path / "b", B, term=2, vote=A, terms=[1, 2], commit_index=2)
    survivors = {A: tmp_path / "a", B: tmp_path / "b"}
    replace_replica(C, directory=tmp_path / "c", survivors=survivors, cluster_id="one")
    restart = read_disk(tmp_path / "c", C)
    assert restart.snapshot == snapshot
    assert list(restart.entries) == [entry(11, 2), entry(12, 2)]


def test_a_missing_survivor_is_noticed(tmp_path: Path) -> None:
    """Its voters cannot be right: one name fewer, or one disk fewer."""
    for node in (A, B):
        write_disk(tmp_path / node, node, term=1, vote=None, terms=[1], commit_index=1)
    target = tmp_path / "new"
    with pytest.raises(ConfigError, match="1, 3 or 5, not 2"):
        replace_replica(C, directory=target, survivors={A: tmp_path / "a"}, cluster_id="one")
    with pytest.raises(ConfigError, match="survivor 'b'"):
        replace_replica(
            C,
            directory=target,
            survivors={A: tmp_path / "a", B: tmp_path / "nowhere"},
            cluster_id="one",
        )
    (tmp_path / "empty").mkdir()
    with pytest.raises(StorageMissingError):
        replace_replica(
            C,
            directory=target,
            survivors={A: tmp_path / "a", B: tmp_path / "empty"},
            cluster_id="one",
        )
    with pytest.raises(ForeignStorageError):
        replace_replica(
            NodeId("stranger"),
            directory=target,
            survivors={A: tmp_path / "a", B: tmp_path / "b"},
            cluster_id="one",
        )
    assert not target.exists()


def test_a_damaged_survivor_stops_it(tmp_path: Path) -> None:
    for node in (A, B):
        write_disk(tmp_path / node, node, term=1, vote=None, terms=[1], commit_index=1)
    wal = next((tmp_path / "b").glob("wal-*"))
    data = bytearray(wal.read_bytes())
    data[20] ^= 1
    wal.write_bytes(data)
    with pytest.raises(DamagedError):
        replace_replica(
            C,
            directory=tmp_path / "c",
            survivors={A: tmp_path / "a", B: tmp_path / "b"},
            cluster_id="one",
        )
    assert not (tmp_path / "c").exists()


def test_it_is_refused_while_a_survivor_runs_or_the_old_directory_is_there(tmp_path: Path) -> None:
    for node in (A, B):
        write_disk(tmp_path / node, node, term=1, vote=None, terms=[1], commit_index=1)
    survivors = {A: tmp_path / "a", B: tmp_path / "b"}
    running = DirectoryLock(tmp_path / "b")
    with pytest.raises(DirectoryInUseError, match="stop that replica first"):
        replace_replica(C, directory=tmp_path / "c", survivors=survivors, cluster_id="one")
    running.release()
    (tmp_path / "c").mkdir()
    with pytest.raises(ConfigError, match="exists; move it away"):
        replace_replica(C, directory=tmp_path / "c", survivors=survivors, cluster_id="one")


def test_what_an_earlier_try_left_unfinished_is_thrown_away(tmp_path: Path) -> None:
    for node in (A, B):
        write_disk(tmp_path / node, node, term=1, vote=None, terms=[1], commit_index=1)
    write_disk(tmp_path / "c.unfinished", C, term=9, vote=C, terms=[9, 9], commit_index=2)
    survivors = {A: tmp_path / "a", B: tmp_path / "b"}
    done = replace_replica(C, directory=tmp_path / "c", survivors=survivors, cluster_id="one")
    assert (done.term, done.last_index) == (2, 1)
    assert list(read_disk(tmp_path / "c", C).entries) == [entry(1, 1)]
