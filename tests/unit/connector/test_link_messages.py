"""The frames between a daemon and its worker halves, cut at every byte, and damaged."""

import contextlib
import itertools
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdd.connector.link_messages import (
    MESSAGE_SIZE_BYTES_MAX,
    AskConnections,
    Connections,
    ConnectRank,
    Control,
    Counters,
    Decoder,
    DisconnectRank,
    DropSource,
    FirstToken,
    Hello,
    LinkError,
    LinkMessage,
    LoadFailed,
    Progress,
    Ready,
    encode,
)

counts = st.integers(0, 2**63 - 1)
texts = st.text(max_size=10)
messages = st.one_of(
    st.builds(
        Hello,
        secret=texts,
        rank=counts,
        block_count=counts,
        block_bytes=counts,
        ucx_address=st.binary(max_size=10),
        fingerprint=st.dictionaries(texts, texts, max_size=3),
    ),
    st.builds(
        Progress,
        key=texts,
        start=counts,
        end=counts,
        prompt_token_count=counts,
        cached_token_count=counts,
    ),
    st.builds(Ready, key=texts, transferred_bytes=counts, transfer_s=st.floats(0, 1e6)),
    st.builds(LoadFailed, key=texts, reason=texts, transferred_bytes=counts),
    st.builds(
        Control,
        peer_name=texts,
        peer_uuid=texts,
        peer_boot_epoch=counts,
        peer_rank=counts,
        peer_address=texts,
        peer_ucx_address=st.binary(max_size=10),
        payload=st.binary(max_size=100),
    ),
    st.builds(FirstToken, key=texts, token_id=counts),
    st.builds(DropSource, key=texts, reason=texts),
    st.builds(Counters, values=st.dictionaries(texts, st.floats(-1e9, 1e9), max_size=3)),
    st.sampled_from((ConnectRank, DisconnectRank)).flatmap(
        lambda kind: st.builds(
            kind,
            peer_name=texts,
            peer_uuid=texts,
            peer_boot_epoch=counts,
            peer_rank=counts,
            peer_address=texts,
            peer_ucx_address=st.binary(max_size=10),
        )
    ),
    st.just(AskConnections()),
    st.builds(
        Connections,
        peer_uuids=st.lists(texts, max_size=3),
        peer_boot_epochs=st.lists(counts, max_size=3),
        peer_ranks=st.lists(counts, max_size=3),
        lanes=st.lists(texts, max_size=3),
        received_bytes=st.lists(counts, max_size=3),
        bytes_per_s=st.lists(st.floats(0, 1e12), max_size=3),
    ),
)


@given(st.lists(messages, max_size=4), st.lists(st.integers(0, 600), max_size=6))
def test_messages_survive_any_cuts(sent: list[LinkMessage], cuts: list[int]) -> None:
    stream = b"".join(encode(message) for message in sent)
    places = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    decoder = Decoder()
    got = [
        message
        for start, end in itertools.pairwise(places)
        for message in decoder.feed(stream[start:end])
    ]
    assert got == sent


@given(messages)
def test_nothing_comes_before_the_last_byte(message: LinkMessage) -> None:
    decoder = Decoder()
    *most, last = (bytes([byte]) for byte in encode(message))
    for byte in most:
        assert list(decoder.feed(byte)) == []
    assert list(decoder.feed(last)) == [message]


@given(messages, st.integers(0, 10_000), st.integers(0, 255))
def test_a_damaged_byte_gives_a_message_or_a_link_error(
    message: LinkMessage, place: int, value: int
) -> None:
    damaged = bytearray(encode(message))
    damaged[place % len(damaged)] = value
    with contextlib.suppress(LinkError):  # and nothing else
        list(Decoder().feed(bytes(damaged)))


@given(st.binary(min_size=1, max_size=60))
def test_a_garbage_body_is_a_link_error(body: bytes) -> None:
    frame = len(body).to_bytes(4, "big") + body
    with pytest.raises(LinkError):
        list(Decoder().feed(frame))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"t": "Nothing"},
        {"t": "FirstToken", "key": "k"},
        {"t": "FirstToken", "key": "k", "token_id": 1, "more": 2},
        {"t": "FirstToken", "key": "k", "token_id": "one"},
        {"t": "FirstToken", "key": 5, "token_id": 1},
        {"t": ["FirstToken"], "key": "k", "token_id": 1},
        ["FirstToken", "k", 1],
        None,
        7,
    ],
)
def test_a_body_of_another_shape_is_a_link_error(fields: Any) -> None:
    body = msgpack.packb(fields)
    with pytest.raises(LinkError, match="malformed frame"):
        list(Decoder().feed(len(body).to_bytes(4, "big") + body))


def test_an_oversized_frame_is_refused_before_it_is_read() -> None:
    with pytest.raises(LinkError, match=str(MESSAGE_SIZE_BYTES_MAX)):
        list(Decoder().feed((MESSAGE_SIZE_BYTES_MAX + 1).to_bytes(4, "big")))


def test_an_oversized_message_is_not_sent() -> None:
    message = DropSource(key="k", reason="x" * MESSAGE_SIZE_BYTES_MAX)
    with pytest.raises(ValueError, match="DropSource"):
        encode(message)


def test_an_integer_stands_for_a_float() -> None:
    # Counters are floats; msgpack keeps 2.0 a float, other writers may not.
    body = msgpack.packb({"t": "Ready", "key": "k", "transferred_bytes": 1, "transfer_s": 2})
    (message,) = Decoder().feed(len(body).to_bytes(4, "big") + body)
    assert message == Ready(key="k", transferred_bytes=1, transfer_s=2.0)
