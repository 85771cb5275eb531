"""Entries: round trip, and bytes that are none."""

import msgpack
import pytest

from pdd.directory.entries import (
    BlockDelta,
    DirectoryEntry,
    EntryError,
    NodeJoined,
    NodeLeft,
    Operation,
    SnapshotPart,
)

OPERATIONS: list[Operation] = [
    NodeJoined(node="n", uuid="u", boot_epoch=3, block_count=9),
    NodeLeft(node="n", boot_epoch=3),
    BlockDelta(
        node="n",
        boot_epoch=3,
        first_sequence=4,
        last_sequence=5,
        is_cleared=True,
        removed=b"r" * 16,
        stored=b"s" * 32,
    ),
    SnapshotPart(
        node="n", boot_epoch=3, as_of_sequence=0, part_index=1, part_count=2, keys=b"k" * 16
    ),
]


def test_every_operation_comes_back_as_it_was_written() -> None:
    entry = DirectoryEntry(operations=tuple(OPERATIONS))
    assert DirectoryEntry.decode(entry.encode()) == entry


DELTA = [3, "n", 1, 1, 1, False, b"", b""]


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"\xc1", "no msgpack"),
        (b"", "no msgpack"),
        (msgpack.packb([1, []]) + b"x", "no msgpack"),
        (msgpack.packb({"a": 1}), "does not begin with a version"),
        (msgpack.packb([]), "does not begin with a version"),
        (msgpack.packb([2, []]), r"entry of version 2, this pdd reads 1\.\.1: upgrade"),
        (msgpack.packb([1]), "is .version, operations"),
        (msgpack.packb([1, [[99, "n"]]]), "unknown operation .99, 'n'"),
        (msgpack.packb([1, [[[], "n"]]]), "unknown operation"),
        (msgpack.packb([1, [DELTA[:-1]]]), "BlockDelta has 7 fields, got 6"),
        (msgpack.packb([1, [[*DELTA[:-1], b"short"]]]), "whole 16-byte keys, got b'short'"),
        (msgpack.packb([1, [[3, 7, *DELTA[2:]]]]), "expected text"),
        (msgpack.packb([1, [[3, "n" * 513, *DELTA[2:]]]]), "at most 512 characters"),
        (msgpack.packb([1, [[3, "n", -1, *DELTA[3:]]]]), r"an integer in 0\.\.2\*\*53, got -1"),
        (msgpack.packb([1, [[3, "n", True, *DELTA[3:]]]]), "expected an integer"),
        (msgpack.packb([1, [[3, "n", 1, 1, 1, 0, b"", b""]]]), "expected true or false"),
        (msgpack.packb([1, [[3, "n", 1, 5, 4, False, b"", b""]]]), "from 5 to 4"),
        (msgpack.packb([1, [[3, "n", 1, 0, 0, False, b"", b""]]]), "count up from 1"),
        (msgpack.packb([1, [[4, "n", 1, 0, 2, 2, b""]]]), "part 2 of a snapshot of 2 parts"),
    ],
)
def test_what_is_no_entry_is_refused_with_the_reason(data: bytes, fault: str) -> None:
    with pytest.raises(EntryError, match=fault):
        DirectoryEntry.decode(data)
