"""The write-ahead log of one replica: a sequence of segments.

    wal-..01.log  wal-..02.log  wal-..03.log
    [start|batch|batch|batch]   [start|batch|...zeros...]
       closed: every byte is good      last: may end in a torn record, which is cut

`write` then `sync`, one batch at a time: the next write waits for the sync of the one before, on
which telling torn writes from damage rests (see `record`). After any failure the log refuses
everything: an fsync that failed once proves nothing when it succeeds later.
"""

from __future__ import annotations

import itertools

from pdd.raft.values import HardState, SnapshotMeta
from pdd.replication.batch import Batch, SegmentStart, StorageIdentity, encode_batch
from pdd.replication.errors import (
    DamagedError,
    ForeignStorageError,
    StorageFailedError,
)
from pdd.replication.filesystem import File, FileSystem
from pdd.replication.record import RecordType, encode_record, record_size_bytes
from pdd.replication.replay import Recovered, Replay
from pdd.replication.segment import (
    LoadedSegment,
    Segment,
    create_segment,
    damaged,
    load_segment,
    segment_name,
    sequence_in,
    start_size_bytes,
)

SEGMENT_BYTES = 16 * 1024 * 1024


class Wal:
    """Use `create_wal` or `open_wal`. Not thread-safe: one thread at a time."""

    def __init__(
        self,
        files: FileSystem,
        identity: StorageIdentity,
        *,
        closed: list[Segment],
        current: Segment,
        file: File,
        hard_state: HardState,
        snapshot: SnapshotMeta,
        segment_bytes: int,
    ) -> None:
        self._files = files
        self._identity = identity
        self._closed = closed
        self._current = current
        self._file = file
        self._hard_state = hard_state
        self.snapshot = snapshot
        """Of the newest marker written."""
        self._segment_bytes = segment_bytes
        self._unsynced = False
        self._failed = False

    def write(self, batch: Batch) -> None:
        """Append one batch; durable after `sync`. Raises: StorageFailedError."""
        self._check_usable()
        assert not self._unsynced, "write before the sync of the previous batch"
        self._failed = True  # until this returns: whatever escapes leaves the disk unknown
        payload = encode_batch(batch)
        if not self._current.fits(len(payload)):
            self._roll(len(payload))
        segment = self._current
        record, chain = encode_record(
            RecordType.BATCH,
            payload,
            chain=segment.chain,
            sequence=segment.sequence,
            offset_bytes=segment.offset_bytes,
        )
        self._file.write_at(segment.offset_bytes, record)
        segment.chain = chain
        segment.offset_bytes += len(record)
        segment.note(batch)
        if batch.hard_state is not None:
            self._hard_state = batch.hard_state
        if batch.marker is not None:
            self.snapshot = batch.marker.meta
        self._unsynced = True
        self._failed = False

    def sync(self) -> None:
        """Raises: StorageFailedError."""
        self._check_usable()
        self._failed = True
        self._file.sync()
        self._unsynced = False
        self._failed = False

    @property
    def room_bytes(self) -> int:
        """Left in the current segment, record headers included."""
        return self._current.size_bytes - self._current.offset_bytes

    def drop_covered(self) -> None:
        """Remove closed segments whose entries the newest (durable) marker covers."""
        self._check_usable()
        assert not self._unsynced, "the marker must be durable before anything is removed"
        while self._closed and self._closed[0].last_entry_index <= self.snapshot.index:
            self._files.remove(segment_name(self._closed.pop(0).sequence))
            # One at a time: a crash must not leave a gap in the sequence.
            self._files.sync_directory()

    def close(self) -> None:
        self._file.close()

    def _check_usable(self) -> None:
        if self._failed:
            raise StorageFailedError("the WAL failed before and stays closed; restart the replica")

    def _roll(self, payload_bytes: int) -> None:
        """The next segment; larger than usual if one batch needs it."""
        start = SegmentStart(
            identity=self._identity,
            sequence=self._current.sequence + 1,
            previous_chain=self._current.chain,
            size_bytes=self._segment_bytes,
            hard_state=self._hard_state,
            snapshot=self.snapshot,
        )
        start = _sized(start, payload_bytes)
        self._file.close()
        self._closed.append(self._current)
        self._current, self._file = create_segment(self._files, start)


def segment_sequences(files: FileSystem) -> list[int]:
    found = [sequence_in(name) for name in files.names()]
    return sorted(sequence for sequence in found if sequence is not None)


def create_wal(
    files: FileSystem,
    identity: StorageIdentity,
    *,
    hard_state: HardState,
    segment_bytes: int = SEGMENT_BYTES,
) -> Wal:
    """The first segment of a new replica."""
    snapshot = SnapshotMeta(index=0, term=0)
    start = SegmentStart(
        identity=identity,
        sequence=1,
        previous_chain=0,
        size_bytes=segment_bytes,
        hard_state=hard_state,
        snapshot=snapshot,
    )
    segment, file = create_segment(files, _sized(start, 0))
    return Wal(
        files,
        identity,
        closed=[],
        current=segment,
        file=file,
        hard_state=hard_state,
        snapshot=snapshot,
        segment_bytes=segment_bytes,
    )


def open_wal(
    files: FileSystem, identity: StorageIdentity, *, segment_bytes: int = SEGMENT_BYTES
) -> tuple[Wal, Recovered]:
    """Read everything back, cut a torn tail, and go on after it.

    Raises: DamagedError, ForeignStorageError, StorageVersionError, StorageFailedError.
    """
    sequences = segment_sequences(files)
    assert sequences, "open_wal without a segment; see create_wal"
    _refuse_gaps(sequences)
    loaded = [load_segment(files, s, is_last=s == sequences[-1]) for s in sequences]
    _refuse_foreign(loaded, identity)
    _refuse_broken_chain(loaded)
    replay = Replay()
    replay.begin(loaded[0].start)
    try:
        for part in loaded:
            for batch in part.batches:
                replay.apply(batch)
        recovered = replay.finish()
    except DamagedError as error:
        raise damaged(segment_name(sequences[-1]), 0, str(error)) from error
    last = loaded[-1]
    file = files.open(segment_name(last.segment.sequence))
    if last.torn_bytes:
        file.write_at(last.segment.offset_bytes, bytes(last.torn_bytes))
        file.sync()
    wal = Wal(
        files,
        identity,
        closed=[part.segment for part in loaded[:-1]],
        current=last.segment,
        file=file,
        hard_state=recovered.hard_state,
        snapshot=recovered.snapshot,
        segment_bytes=segment_bytes,
    )
    return wal, recovered


def _sized(start: SegmentStart, payload_bytes: int) -> SegmentStart:
    """Large enough for its own start and one batch of ``payload_bytes``."""
    # 16 spare bytes: a larger size_bytes may take a few more bytes in the start record itself.
    needed_bytes = start_size_bytes(start) + 16 + record_size_bytes(payload_bytes)
    if needed_bytes <= start.size_bytes:
        return start
    return SegmentStart(
        identity=start.identity,
        sequence=start.sequence,
        previous_chain=start.previous_chain,
        size_bytes=needed_bytes,
        hard_state=start.hard_state,
        snapshot=start.snapshot,
    )


def _refuse_gaps(sequences: list[int]) -> None:
    for before, after in itertools.pairwise(sequences):
        if after != before + 1:
            raise damaged(segment_name(before + 1), 0, "segment is missing between others")


def _refuse_foreign(loaded: list[LoadedSegment], identity: StorageIdentity) -> None:
    for part in loaded:
        found = part.start.identity
        if found != identity:
            raise ForeignStorageError(
                f"{segment_name(part.segment.sequence)} belongs to replica {found.node!r} of "
                f"cluster {found.cluster_id!r} (voters {found.voters_hash.hex()}), this is "
                f"{identity.node!r} of {identity.cluster_id!r} (voters "
                f"{identity.voters_hash.hex()}): check raft.data_dir, raft.cluster_id and "
                "raft.voters; the voters of a cluster never change while it runs"
            )


def _refuse_broken_chain(loaded: list[LoadedSegment]) -> None:
    """A closed segment that lost its tail looks complete; the next one knows better."""
    for before, after in itertools.pairwise(loaded):
        if after.start.previous_chain != before.segment.chain:
            raise damaged(
                segment_name(before.segment.sequence),
                before.segment.offset_bytes,
                "records at its end are missing: the next segment does not continue it",
            )
