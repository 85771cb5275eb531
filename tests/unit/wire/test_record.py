import dataclasses

import pytest

from pdd.wire.record import RECORD_BYTES, EndReason, Record, RecordKind, pack_record, unpack_record

CHUNK = Record(
    kind=RecordKind.CHUNK,
    nonce=0xABCDEF0123,
    serial=3,
    first_index=17,
    block_count=4,
    first_piece=12288,
    size_bytes=4 * 1000,
    piece_bytes=1500,
    digest=0xFEDCBA9876543210,
)


@pytest.mark.parametrize(
    "record",
    [
        CHUNK,
        dataclasses.replace(CHUNK, shared_generation=(1 << 40) + 2, shared_page=12),
        Record(kind=RecordKind.ACCEPTED, nonce=1, serial=0),
        Record(kind=RecordKind.END, nonce=2, serial=9, reason=EndReason.ABORTED),
    ],
)
def test_a_record_survives_the_wire(record):
    packed = pack_record(record)
    assert len(packed) == RECORD_BYTES
    assert unpack_record(packed) == record


def test_pieces_are_counted_with_a_short_last_one():
    assert CHUNK.piece_count == 3
    assert Record(kind=RecordKind.END, nonce=1, serial=0).piece_count == 0


@pytest.mark.parametrize("position", range(RECORD_BYTES))
def test_a_record_with_any_flipped_byte_is_refused(position):
    packed = bytearray(pack_record(CHUNK))
    packed[position] ^= 0x40
    with pytest.raises(ValueError, match=r"record|valid"):
        unpack_record(bytes(packed))


def test_a_flush_of_zero_bytes_is_no_record():
    with pytest.raises(ValueError, match="begins"):
        unpack_record(bytes(RECORD_BYTES))


def test_a_chunk_without_blocks_is_refused():
    with pytest.raises(ValueError, match="chunk of 0 blocks"):
        unpack_record(pack_record(dataclasses.replace(CHUNK, block_count=0)))


@pytest.mark.parametrize(("generation", "page"), [(0, 1), (3, 1), (2, 0)])
def test_a_chunk_in_shared_memory_names_a_page_and_a_generation_that_is_whole(generation, page):
    record = dataclasses.replace(CHUNK, shared_generation=generation, shared_page=page)
    with pytest.raises(ValueError, match=f"record of generation {generation} at shared page"):
        unpack_record(pack_record(record))
