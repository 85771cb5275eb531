"""One WAL record, and how a torn write is told from damage.

    |<------------------ header, 16 bytes ------------------>|
    | length u32 | type u8 | mask u8 | 0 u16 | chain u32 | header crc u32 | payload | 0xFF | pad |

Little endian; a record starts at a multiple of 16, so no header crosses a sector. ``chain`` is the
CRC-32 of the payload started from the previous record's chain: a record fits in one place only.
``header crc`` covers the header, the record's offset and the segment's sequence number.
CRC-32 is zlib's, from the standard library; CRC-32C would need one more dependency for the same
strength at these lengths.

The log writes one record and fsyncs it before it writes the next. So after a crash only the last
record may be incomplete, sector by sector either written or still zero. A broken record is

  torn      if nothing follows it, and its header, or a sector of its payload, is all zero.
            It was never acknowledged: cut it.
  damage    otherwise. It may have been acknowledged: refuse to start.

For that to be sound, a written record must have no zero sector of its own: a payload with a run of
512 zero bytes is stored XOR ``mask``, a byte that occurs in no such run, and the 0xFF behind it
marks its last sector. A payload with runs of every byte there is (over 128 KiB, made on purpose) is
stored with MAY_HOLD_ZERO_SECTORS set; then any fault in it counts as damage.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from enum import IntEnum

HEADER = struct.Struct("<IBBHII")
HEADER_BYTES = HEADER.size
SECTOR_BYTES = 512
ALIGN_BYTES = 16
END_MARK = b"\xff"
MAY_HOLD_ZERO_SECTORS = 0x80


class RecordType(IntEnum):
    """Numbers are on disk: never reuse one."""

    SEGMENT_START = 1
    BATCH = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    type: RecordType
    payload: bytes
    chain: int
    end_offset_bytes: int


class Fault(Exception):
    """The bytes at an offset are no record. ``is_torn``: an unfinished write explains it."""

    def __init__(self, *, is_torn: bool, reason: str) -> None:
        super().__init__(reason)
        self.is_torn = is_torn
        self.reason = reason


def record_size_bytes(payload_bytes: int) -> int:
    used = HEADER_BYTES + payload_bytes + len(END_MARK)
    return -(-used // ALIGN_BYTES) * ALIGN_BYTES


def encode_record(
    record_type: RecordType, payload: bytes, *, chain: int, sequence: int, offset_bytes: int
) -> tuple[bytes, int]:
    """``(bytes to write at offset_bytes, the new chain)``."""
    new_chain = zlib.crc32(payload, chain)
    mask, flags = choose_mask(payload)
    stored = _masked(payload, mask)
    head = HEADER.pack(len(payload), record_type | flags, mask, 0, new_chain, 0)[:-4]
    crc = _header_crc(head, sequence=sequence, offset_bytes=offset_bytes)
    used = head + crc.to_bytes(4, "little") + stored + END_MARK
    return used.ljust(record_size_bytes(len(payload)), b"\x00"), new_chain


def decode_record(data: bytes, *, chain: int, sequence: int, offset_bytes: int) -> Record | None:
    """The record at ``offset_bytes`` of a segment's bytes; None at the end of what was written.

    Raises: Fault.
    """
    header = data[offset_bytes : offset_bytes + HEADER_BYTES]
    if not header.strip(b"\x00"):
        if not has_content(data, offset_bytes):
            return None
        raise torn_unless_followed(data, sequence, offset_bytes, "no header before more bytes")
    if not is_header(data, sequence=sequence, offset_bytes=offset_bytes):
        raise Fault(is_torn=False, reason="header checksum does not match")
    length, type_and_flags, mask, _, expected_chain, _ = HEADER.unpack(header)
    start = offset_bytes + HEADER_BYTES
    end = offset_bytes + record_size_bytes(length)
    if end > len(data):
        raise Fault(is_torn=False, reason="record runs past the end of its segment")
    payload = _masked(data[start : start + length], mask)
    new_chain = zlib.crc32(payload, chain)
    mark = data[start + length : start + length + len(END_MARK)]
    if new_chain != expected_chain or mark != END_MARK:
        if type_and_flags & MAY_HOLD_ZERO_SECTORS or not has_zero_sector(
            data, start_bytes=offset_bytes, end_bytes=start + length + len(END_MARK)
        ):
            raise Fault(is_torn=False, reason="payload checksum does not match")
        raise torn_unless_followed(data, sequence, end, "payload is incomplete")
    try:
        record_type = RecordType(type_and_flags & ~MAY_HOLD_ZERO_SECTORS)
    except ValueError:
        raise Fault(is_torn=False, reason="unknown record type (a newer release?)") from None
    return Record(type=record_type, payload=payload, chain=new_chain, end_offset_bytes=end)


def is_header(data: bytes, *, sequence: int, offset_bytes: int) -> bool:
    header = data[offset_bytes : offset_bytes + HEADER_BYTES]
    if len(header) < HEADER_BYTES:
        return False
    crc = int.from_bytes(header[-4:], "little")
    return crc == _header_crc(header[:-4], sequence=sequence, offset_bytes=offset_bytes)


def has_content(data: bytes, offset_bytes: int) -> bool:
    return bool(data[offset_bytes:].strip(b"\x00"))


def choose_mask(payload: bytes) -> tuple[int, int]:
    """``(mask, flags)`` so that the stored payload has no run of 512 zero bytes."""
    if bytes(SECTOR_BYTES) not in payload:
        return 0, 0
    for mask in range(1, 256):
        if bytes([mask]) * SECTOR_BYTES not in payload:
            return mask, 0
    return 0, MAY_HOLD_ZERO_SECTORS


def torn_unless_followed(data: bytes, sequence: int, offset_bytes: int, reason: str) -> Fault:
    """A later header proves that the broken record had been synced before."""
    start = -(-offset_bytes // ALIGN_BYTES) * ALIGN_BYTES
    for candidate in range(start, len(data) - HEADER_BYTES + 1, ALIGN_BYTES):
        # The type is never 0: a cheap look before the checksum.
        if data[candidate + 4] and is_header(data, sequence=sequence, offset_bytes=candidate):
            return Fault(
                is_torn=False, reason=f"{reason}, yet a record follows at byte {candidate}"
            )
    return Fault(is_torn=True, reason=reason)


def has_zero_sector(data: bytes, *, start_bytes: int, end_bytes: int) -> bool:
    """Whether a sector of the record, other than its header's, was never written."""
    sector = (start_bytes // SECTOR_BYTES + 1) * SECTOR_BYTES
    while sector < end_bytes:
        piece = data[sector : min(sector + SECTOR_BYTES, end_bytes)]
        if not piece.strip(b"\x00"):
            return True
        sector += SECTOR_BYTES
    return False


def _header_crc(head: bytes, *, sequence: int, offset_bytes: int) -> int:
    place = sequence.to_bytes(8, "little") + offset_bytes.to_bytes(8, "little")
    return zlib.crc32(head, zlib.crc32(place))


def _masked(payload: bytes, mask: int) -> bytes:
    return payload if mask == 0 else payload.translate(bytes(b ^ mask for b in range(256)))
