"""The record that announces one chunk, in band: it travels over UCX ahead of the chunk's bytes.

Only the receiver decides that a chunk is complete, from its own memory: it compares the digest of
what lies there with the one in this record. A receive that was completed by nothing but a flush
of zero bytes can therefore never look like a chunk.

72 bytes, little endian::

    offset  size  field
         0     4  magic b"PDR2"
         4     1  kind            1 ACCEPTED, 2 CHUNK, 3 END, 4 HELD
         5     1  reason          EndReason, for END only
         6     2  reserved, zero
         8     8  nonce           the 40 bits of the tag, once more
        16     4  serial          0-based number of this record in its transfer
        20     4  first_index     prompt block index of the chunk's first block
        24     4  block_count
        28     4  first_piece     tag piece number of the chunk's first message
        32     8  size_bytes      all blocks of the chunk
        40     8  piece_bytes     bytes per message; the last may be shorter
        48     8  digest          xxh3-64 of the bytes in block order; 0 = not taken
        56     8  shared_generation  of the slot in shared memory (see transfer.slot_header)
        64     4  shared_page     in units of 4,096 B, plus 1: where the chunk lies in the source's
                                  shared memory; 0 = its bytes come as messages
        68     4  crc32 of bytes 0..67
"""

import struct
import zlib
from dataclasses import dataclass
from enum import IntEnum

RECORD_BYTES = 72
PIECES_PER_CHUNK = 4096
"""Most messages of one chunk. Chunks take their piece numbers from ranges of this size."""

_MAGIC = b"PDR2"
_LAYOUT = struct.Struct("<4sBBHQIIIIQQQQI")
assert _LAYOUT.size == RECORD_BYTES - 4


class RecordKind(IntEnum):
    """What a record says."""

    ACCEPTED = 1  # the grant is in force at the source and the path works
    CHUNK = 2  # the chunk's messages follow
    END = 3  # nothing more will be sent under this nonce
    HELD = 4  # the grant is kept until the source's engine comes to the sequence; the path works


class EndReason(IntEnum):
    """Why the source stops sending under a nonce."""

    NONE = 0
    CANCELLED = 1  # answer to the target's cancel
    ABORTED = 2  # the source's request is gone
    EXPIRED = 3  # the source's deadline passed
    OUT_OF_RANGE = 4  # the target wants blocks that the source will never have
    SUPERSEDED = 5  # a newer grant for the same sequence is in force
    REFUSED = 6  # the grant was refused; a Refusal over the control channel says why


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One record. Fields as in the module's table; those of no use to a kind are zero."""

    kind: RecordKind
    nonce: int
    serial: int
    reason: EndReason = EndReason.NONE
    first_index: int = 0
    block_count: int = 0
    first_piece: int = 0
    size_bytes: int = 0
    piece_bytes: int = 0
    digest: int = 0
    shared_generation: int = 0
    shared_page: int = 0

    @property
    def piece_count(self) -> int:
        """Messages that carry this chunk."""
        if self.size_bytes == 0:
            return 0
        return -(-self.size_bytes // self.piece_bytes)


def pack_record(record: Record) -> bytes:
    """Write a record as ``RECORD_BYTES`` bytes."""
    head = _LAYOUT.pack(
        _MAGIC,
        record.kind,
        record.reason,
        0,
        record.nonce,
        record.serial,
        record.first_index,
        record.block_count,
        record.first_piece,
        record.size_bytes,
        record.piece_bytes,
        record.digest,
        record.shared_generation,
        record.shared_page,
    )
    return head + struct.pack("<I", zlib.crc32(head))


def unpack_record(data: bytes) -> Record:
    """Read a record.

    Raises:
        ValueError: wrong length, magic, checksum or kind, a chunk without pieces, or one in shared
            memory without a generation. A flush of zero bytes leaves the buffer as it was (zeroed)
            and ends here.
    """
    if len(data) != RECORD_BYTES:
        raise ValueError(f"a record has {RECORD_BYTES} bytes, not {len(data)}")
    (
        magic,
        kind,
        reason,
        _,
        nonce,
        serial,
        first,
        count,
        piece,
        size,
        piece_bytes,
        digest,
        generation,
        page,
    ) = _LAYOUT.unpack_from(data)
    if magic != _MAGIC:
        raise ValueError(f"a record begins with {_MAGIC!r}, not {magic!r}")
    if zlib.crc32(data[:-4]) != struct.unpack_from("<I", data, RECORD_BYTES - 4)[0]:
        raise ValueError("the record's checksum does not fit its bytes")
    record = Record(
        kind=RecordKind(kind),
        nonce=nonce,
        serial=serial,
        reason=EndReason(reason),
        first_index=first,
        block_count=count,
        first_piece=piece,
        size_bytes=size,
        piece_bytes=piece_bytes,
        digest=digest,
        shared_generation=generation,
        shared_page=page,
    )
    if record.kind is RecordKind.CHUNK and not (count and size and piece_bytes):
        raise ValueError(f"a chunk of {count} blocks, {size} bytes in pieces of {piece_bytes}")
    if bool(page) != bool(generation) or generation % 2:  # odd: was being written
        raise ValueError(f"a record of generation {generation} at shared page {page}")
    return record
