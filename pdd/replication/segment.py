"""One preallocated WAL file: its name, its first record, and reading it back.

A segment is made under a temporary name, filled with zeros, started, synced and only then renamed,
so one with its final name has its full size and a good first record, or the disk has lost bytes.
Preallocation also keeps the file's size out of every fsync, and makes a cut file recognisable.
"""

from __future__ import annotations

from dataclasses import dataclass

from pdd.replication.batch import Batch, SegmentStart, decode_batch, decode_start, encode_start
from pdd.replication.errors import REPLACE_ADVICE, DamagedError, StorageError
from pdd.replication.filesystem import File, FileSystem
from pdd.replication.record import (
    Fault,
    RecordType,
    decode_record,
    encode_record,
    has_content,
    record_size_bytes,
)

PREFIX = "wal-"
SUFFIX = ".log"
TEMPORARY_SUFFIX = ".tmp"


def segment_name(sequence: int) -> str:
    return f"{PREFIX}{sequence:016x}{SUFFIX}"


def sequence_in(name: str) -> int | None:
    """None for a file that is no segment."""
    if not (name.startswith(PREFIX) and name.endswith(SUFFIX)):
        return None
    try:
        return int(name[len(PREFIX) : -len(SUFFIX)], 16)
    except ValueError:
        return None


@dataclass(slots=True, kw_only=True)
class Segment:
    """Where the next record goes, and what the segment holds so far."""

    sequence: int
    size_bytes: int
    chain: int
    offset_bytes: int
    last_entry_index: int = 0
    """Largest index ever written here; the segment is needed until a snapshot covers it."""

    def fits(self, payload_bytes: int) -> bool:
        return self.offset_bytes + record_size_bytes(payload_bytes) <= self.size_bytes

    def note(self, batch: Batch) -> None:
        if batch.entries:
            self.last_entry_index = max(self.last_entry_index, batch.entries[-1].index)


def start_size_bytes(start: SegmentStart) -> int:
    return record_size_bytes(len(encode_start(start)))


def create_segment(files: FileSystem, start: SegmentStart) -> tuple[Segment, File]:
    record, chain = encode_record(
        RecordType.SEGMENT_START,
        encode_start(start),
        chain=0,
        sequence=start.sequence,
        offset_bytes=0,
    )
    name = segment_name(start.sequence)
    file = files.create(name + TEMPORARY_SUFFIX, size_bytes=start.size_bytes)
    file.write_at(0, record)
    file.sync()
    files.rename(name + TEMPORARY_SUFFIX, name)
    files.sync_directory()
    segment = Segment(
        sequence=start.sequence,
        size_bytes=start.size_bytes,
        chain=chain,
        offset_bytes=len(record),
    )
    return segment, file


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedSegment:
    start: SegmentStart
    segment: Segment
    batches: list[Batch]
    torn_bytes: int
    """Bytes to overwrite with zeros from ``segment.offset_bytes`` on: an unfinished write."""


def load_segment(files: FileSystem, sequence: int, *, is_last: bool) -> LoadedSegment:
    """Raises: DamagedError, StorageVersionError."""
    name = segment_name(sequence)
    data = files.read(name)
    try:
        first = decode_record(data, chain=0, sequence=sequence, offset_bytes=0)
    except Fault as fault:
        raise damaged(name, 0, fault.reason) from fault
    if first is None or first.type is not RecordType.SEGMENT_START:
        raise damaged(name, 0, "segment start is missing")
    start = decode_start(first.payload)
    if len(data) != start.size_bytes:
        raise damaged(name, len(data), f"{len(data)} bytes long instead of {start.size_bytes}")
    segment = Segment(
        sequence=sequence,
        size_bytes=start.size_bytes,
        chain=first.chain,
        offset_bytes=first.end_offset_bytes,
    )
    batches: list[Batch] = []
    torn_bytes = 0
    try:
        while record := decode_record(
            data, chain=segment.chain, sequence=sequence, offset_bytes=segment.offset_bytes
        ):
            batch = decode_batch(record.payload)
            batches.append(batch)
            segment.note(batch)
            segment.chain, segment.offset_bytes = record.chain, record.end_offset_bytes
    except Fault as fault:
        if not (fault.is_torn and is_last):
            raise damaged(name, segment.offset_bytes, fault.reason) from fault
        torn_bytes = len(data[segment.offset_bytes :].rstrip(b"\x00"))
    if not torn_bytes:
        assert not has_content(data, segment.offset_bytes)
    return LoadedSegment(start=start, segment=segment, batches=batches, torn_bytes=torn_bytes)


def damaged(name: str, offset_bytes: int, reason: str) -> StorageError:
    return DamagedError(
        f"{name}, byte {offset_bytes}: {reason}. What this replica once promised to keep may be "
        f"lost, so it does not start; {REPLACE_ADVICE}"
    )
