"""The wire format: fixed bytes, and what a decoder refuses with which words."""

from __future__ import annotations

import msgpack
import pytest

from pdd.raft.codec import (
    VERSION,
    DecodeError,
    ForeignClusterError,
    Identity,
    decode_message,
    encode_message,
)
from pdd.raft.messages import AppendRequest, HeartbeatResponse
from pdd.raft.values import Entry, EntryKind, NodeId

IDENTITY = Identity(cluster_id="c", voters_hash=b"12345678")
APPEND = AppendRequest(
    source=NodeId("a"),
    target=NodeId("b"),
    term=3,
    prev_index=1,
    prev_term=2,
    commit_index=1,
    entries=[Entry(index=2, term=3, kind=EntryKind.COMMAND, data=b"x")],
)


def test_the_bytes_of_version_1_stay_what_they_are() -> None:
    """Replicas of the release before must be able to read them."""
    assert encode_message(APPEND, IDENTITY).hex() == (
        "9b01a163c4083132333435363738" + "05a161a16203" + "010201" + "9194020301c40178"
    )


def test_a_message_comes_back_equal() -> None:
    assert decode_message(encode_message(APPEND, IDENTITY), IDENTITY) == APPEND


def changed(position: int, value: object) -> bytes:
    values = msgpack.unpackb(encode_message(APPEND, IDENTITY))
    values[position] = value
    data: bytes = msgpack.packb(values)
    return data


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "not msgpack"),
        (b"\xc1", "not msgpack"),
        (b"\x01", "not a list"),
        (b"\x90", "ends before version"),
        (changed(0, VERSION + 1), f"message version {VERSION + 1}; this replica reads"),
        (changed(0, -1), "version is not a number"),
        (changed(3, 99), "unknown kind"),
        (changed(4, 7), "source is not text"),
        (changed(4, "a" * 257), "source is not text of at most 256"),
        (changed(6, True), "term is not a number"),
        (changed(6, 2**63), "term is not a number"),
        (changed(6, 1.5), "term is not a number"),
        (changed(10, {}), "entries are not a list"),
        (changed(10, [7]), "an entry is not a list"),
        (changed(10, [[2, 3, 9, b"x"]]), "unknown kind of entry"),
        (changed(10, [[2, 3, 1, "x"]]), "data is not bytes"),
        (changed(10, [[2, 3, 1, b"x", 0]]), "an entry is not a list of 4"),
        (encode_message(APPEND, IDENTITY) + b"\x00", "not msgpack"),
    ],
)
def test_what_is_no_message_is_refused_with_a_reason(data: bytes, text: str) -> None:
    with pytest.raises(DecodeError, match=text):
        decode_message(data, IDENTITY)


def test_another_cluster_and_other_voters_are_told_apart() -> None:
    message = HeartbeatResponse(source=NodeId("a"), target=NodeId("b"), term=1)
    data = encode_message(message, IDENTITY)
    with pytest.raises(ForeignClusterError, match="message of cluster 'c', this is 'd'"):
        decode_message(data, Identity(cluster_id="d", voters_hash=b"12345678"))
    with pytest.raises(ForeignClusterError, match=r"raft\.voters must be the same"):
        decode_message(data, Identity(cluster_id="c", voters_hash=b"xxxxxxxx"))
