"""How a rank can be reached by other ranks: one opaque value, passed on by the daemons.

``b"PDA1"`` + CRC-32 of the rest (4 bytes, big-endian) + msgpack
``[ucx_address, host, pid, fd, name, size_bytes]``. The last five describe the
rank's shared memory (``transfer.shared``); ``host`` is empty where it has none.
"""

import zlib
from dataclasses import dataclass

import msgpack

_MAGIC = b"PDA1"
_CRC_BYTES = 4
_HEAD_BYTES = len(_MAGIC) + _CRC_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class RankAddress:
    """See the module. ``host`` is equal on two ranks that can share memory."""

    ucx_address: bytes
    host: str = ""
    pid: int = 0
    fd: int = 0
    name: str = ""
    size_bytes: int = 0


def pack_address(address: RankAddress) -> bytes:
    """Write an address."""
    packed: bytes = msgpack.packb(
        [
            address.ucx_address,
            address.host,
            address.pid,
            address.fd,
            address.name,
            address.size_bytes,
        ]
    )
    return _MAGIC + zlib.crc32(packed).to_bytes(_CRC_BYTES) + packed


def unpack_address(data: bytes) -> RankAddress:
    """Read an address.

    Raises:
        ValueError: it is none.
    """
    if not data.startswith(_MAGIC):
        raise ValueError(f"a rank's address begins with {_MAGIC!r}, not {data[:4]!r}")
    crc, packed = data[len(_MAGIC) : _HEAD_BYTES], data[_HEAD_BYTES:]
    if crc != zlib.crc32(packed).to_bytes(_CRC_BYTES):
        raise ValueError("a rank's address has been damaged on its way: its checksum does not fit")
    try:
        ucx_address, host, pid, fd, name, size_bytes = msgpack.unpackb(packed)
    except Exception as error:  # msgpack raises half a dozen unrelated types
        raise ValueError(f"a rank's address cannot be read: {error}") from error
    address = RankAddress(
        ucx_address=ucx_address, host=host, pid=pid, fd=fd, name=name, size_bytes=size_bytes
    )
    numbers_fit = all(isinstance(n, int) and n >= 0 for n in (pid, fd, size_bytes))
    texts_fit = isinstance(host, str) and isinstance(name, str)
    if not (isinstance(ucx_address, bytes) and texts_fit and numbers_fit):
        raise ValueError("a rank's address holds bytes, two texts and three numbers")
    return address
