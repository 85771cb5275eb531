import pytest

from pdd.wire.address import RankAddress, pack_address, unpack_address


def test_an_address_survives_the_wire():
    address = RankAddress(ucx_address=b"\x01\x02", host="h", pid=3, fd=4, size_bytes=5)
    assert unpack_address(pack_address(address)) == address


@pytest.mark.parametrize(
    "data", [b"", b"raw ucx address", b"PDA1", b"PDA1\x01", b"PDA1\x95\x01\x02\x03\x04\x05"]
)
def test_what_is_no_address_is_refused(data):
    with pytest.raises(ValueError, match="address"):
        unpack_address(data)


def test_one_changed_byte_is_noticed_wherever_it_is():
    packed = pack_address(RankAddress(ucx_address=bytes(range(40)), host="h", name="n", fd=4))
    for position in range(len(packed)):
        damaged = bytearray(packed)
        damaged[position] ^= 0x10
        with pytest.raises(ValueError, match="address"):
            unpack_address(bytes(damaged))
