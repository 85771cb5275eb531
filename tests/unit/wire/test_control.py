import dataclasses

import msgpack
import pytest

from pdd.wire.control import (
    MAX_KEY_CHARS,
    Again,
    Cancel,
    Grant,
    Probe,
    Receipt,
    Refusal,
    pack_control,
    unpack_control,
)

GRANT = Grant(
    key="r-1",
    nonce=0xABCDEF0123,
    attempt=1,
    source_uuid="s",
    source_boot_epoch=4,
    target_uuid="t",
    target_boot_epoch=9,
    first_index=2,
    block_ids=(7, 5, 3),
    held=(3,),
    lease_ms=30_000,
    address=b"\x00\x01",
    shared=0,
    connection=0,
)


@pytest.mark.parametrize(
    "message",
    [
        GRANT,
        Refusal(key="k", nonce=1, reason="unknown_key"),
        Again(key="k", nonce=1, serial=4),
        Receipt(key="k", nonce=1),
        Cancel(key="k", nonce=1, reason="cancelled"),
        Probe(key="k", nonce=1),
    ],
)
def test_a_message_survives_the_wire(message):
    assert unpack_control(pack_control(message)) == message


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"nonce": 0}, "nonce"),
        ({"nonce": 1 << 40}, "nonce"),
        ({"key": 5}, "Grant.key is int"),
        ({"key": "x" * (MAX_KEY_CHARS + 1)}, "characters"),
        ({"block_ids": (1, -1)}, "block numbers"),
        ({"block_ids": (1, "2")}, "block numbers"),
        ({"attempt": True}, "Grant.attempt is bool"),
        ({"lease_ms": -1}, "Grant.lease_ms"),
        ({"address": "text"}, "Grant.address is str"),
    ],
)
def test_a_field_out_of_its_bounds_is_named(change, said):
    with pytest.raises(ValueError, match=said):
        unpack_control(pack_control(dataclasses.replace(GRANT, **change)))


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        b"nonsense",
        msgpack.packb({"a": 1}),
        msgpack.packb([1]),
        msgpack.packb([1, 4, "k", 1]),
        msgpack.packb([2, 99, "k", 1]),
        msgpack.packb([2, "4", "k", 1]),
        msgpack.packb([2, 4, "k"]),
        msgpack.packb([2, 4, "k", 1, 2]),
    ],
)
def test_what_is_no_message_of_this_version_is_refused(payload):
    with pytest.raises(ValueError, match=r"control|Receipt"):
        unpack_control(payload)
