"""Random appends, truncations, snapshots, crashes and damage against a model in memory."""

from __future__ import annotations

import random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pdd.raft.config import RaftConfig
from pdd.raft.ready import Ready
from pdd.raft.state import Role
from pdd.raft.values import Entry, EntryKind, HardState, NodeId, Snapshot, SnapshotMeta
from pdd.replication.errors import StorageError
from pdd.replication.storage import Restart, Storage, open_storage
from tests.simulation.raft.checker import DurableShadow
from tests.simulation.raft.filesystem import PowerCut, SimFileSystem

CONFIG = RaftConfig(node=NodeId("s0"), voters=(NodeId("s0"),), cluster_id="c")


class WalMachine(RuleBasedStateMachine):
    """The model is a DurableShadow; the real thing may at most be one unsynced write ahead."""

    def __init__(self) -> None:
        super().__init__()
        self.files = SimFileSystem()
        self.model = DurableShadow()
        self.term = 1
        self.storage, _ = self._open(self.files)

    def _open(self, files: SimFileSystem) -> tuple[Storage, Restart]:
        return open_storage(files, CONFIG, may_create=True, segment_bytes=1_024)

    def _ready(self, *, back: int, sizes: list[int], snapshot: Snapshot | None = None) -> Ready:
        """Entries from ``back`` before the end on; a new term if that replaces some."""
        last = snapshot.meta.index if snapshot else self.model.last_index
        base = snapshot.meta.index if snapshot else self.model.snapshot.index
        first = max(last + 1 - back, base + 1)
        if first <= last:
            self.term += 1
        entries = [
            Entry(index=first + n, term=self.term, kind=EntryKind.COMMAND, data=bytes([n]) * size)
            for n, size in enumerate(sizes)
        ]
        return Ready(
            role=Role.FOLLOWER,
            term=self.term,
            leader=None,
            early_messages=(),
            snapshot=snapshot,
            entries=entries,
            hard_state=HardState(term=self.term, vote=NodeId("s0"), commit_index=0),
            must_sync=True,
            messages=(),
            committed=(),
            reads=(),
            aborted_reads=(),
            divergence=None,
        )

    sizes = st.lists(st.sampled_from([0, 3, 100, 600, 2_000]), min_size=1, max_size=4)

    @rule(back=st.integers(0, 3), sizes=sizes)
    def persist(self, back: int, sizes: list[int]) -> None:
        ready = self._ready(back=back, sizes=sizes)
        self.storage.write(ready)
        self.storage.sync()
        self.model.persist(ready)

    @rule(back=st.integers(0, 3), sizes=sizes, seed=st.integers(0, 99))
    def persist_and_crash_before_the_sync(self, back: int, sizes: list[int], seed: int) -> None:
        ready = self._ready(back=back, sizes=sizes)
        self.storage.write(ready)
        self._crash_and_compare(seed, ready)

    @rule(ahead=st.integers(1, 5), sizes=sizes, fuse=st.integers(0, 20), seed=st.integers(0, 99))
    def install_and_perhaps_crash(self, ahead: int, sizes: list[int], fuse: int, seed: int) -> None:
        self.term += 1
        meta = SnapshotMeta(index=self.model.last_index + ahead, term=self.term)
        ready = self._ready(back=0, sizes=sizes, snapshot=Snapshot(meta=meta, data=b"state"))
        self.files.fuse = fuse
        try:
            self.storage.write(ready)
            self.storage.sync()
        except PowerCut:
            self._crash_and_compare(seed, ready)
            return
        self.files.fuse = None
        self.model.persist(ready)

    @precondition(lambda self: self.model.last_index > self.model.snapshot.index)
    @rule(where=st.floats(0, 1), fuse=st.integers(0, 20), seed=st.integers(0, 99))
    def save_a_snapshot_and_perhaps_crash(self, where: float, fuse: int, seed: int) -> None:
        low, high = self.model.snapshot.index + 1, self.model.last_index
        index = low + round(where * (high - low))
        meta = SnapshotMeta(index=index, term=self.model.entries[index].term)
        self.files.fuse = fuse
        try:
            self.storage.save_snapshot(Snapshot(meta=meta, data=b"state"))
        except PowerCut:
            self._crash_and_compare(seed, None, saving=meta)
            return
        self.files.fuse = None
        self.model.snapshot_taken(meta)

    @rule(seed=st.integers(0, 99))
    def crash(self, seed: int) -> None:
        self._crash_and_compare(seed, None)

    @rule(name=st.integers(0, 50), offset=st.integers(0, 10_000), bit=st.integers(0, 7))
    def a_flipped_bit_is_refused_or_harmless(self, name: int, offset: int, bit: int) -> None:
        names = self.files.names()
        content = self.files.files[names[name % len(names)]].content
        offset %= len(content)
        content[offset] ^= 1 << bit
        try:
            _, restart = self._open(self.files)
        except StorageError:
            pass
        else:
            assert self._equals(restart, self.model)
        content[offset] ^= 1 << bit
        self.storage, _ = self._open(self.files)

    def _crash_and_compare(
        self, seed: int, unfinished: Ready | None, *, saving: SnapshotMeta | None = None
    ) -> None:
        self.files.crash(random.Random(seed))
        self.storage, restart = self._open(self.files)
        possible = [self.model]
        if unfinished is not None:
            ahead = self.model.copy()
            ahead.persist(unfinished)
            possible.append(ahead)
        if saving is not None:
            ahead = self.model.copy()
            ahead.snapshot_taken(saving)
            possible.append(ahead)
        matching = [one for one in possible if self._equals(restart, one)]
        assert matching, f"found {restart}, possible {possible}"
        self.model = matching[0]

    def _equals(self, restart: Restart, model: DurableShadow) -> bool:
        snapshot = restart.snapshot.meta.index if restart.snapshot else 0
        wanted = [model.entries[i] for i in range(model.snapshot.index + 1, model.last_index + 1)]
        return (
            snapshot == model.snapshot.index
            and list(restart.entries) == wanted
            and restart.hard_state == model.hard_state
        )

    @invariant()
    def files_stay_few(self) -> None:
        assert len(self.files.names()) < 60


TestWalMachine = WalMachine.TestCase
TestWalMachine.settings = settings(
    deadline=None, derandomize=True, max_examples=60, stateful_step_count=30
)
