"""Memory of a source that targets on the same host can read: a lane beside UCX for the bytes.

The source gathers a chunk into a slot and announces it in band, over UCX, as always; the target
copies it from the slot into its blocks, takes the digest there, from its own memory, and answers
over UCX that the slot is free. Two copies, one on each side's core, instead of TCP's two copies
through the kernel and its system calls.

The death of either side harms nobody: it is noticed on the UCX connection, and the mapping of a
dead source's memory stays readable. There is no name in a file system that could be left behind:
the memory is reached through ``/proc/PID/fd/FD``, which the kernel allows to the same user only.
Its random name tells it from whatever a later process with the same PID has open there, and its
size is sealed, so that reading it can never end in SIGBUS.

Both sides ask for huge pages: with small ones the copies run at two thirds of the speed.
"""

import contextlib
import fcntl
import mmap
import os
import secrets
from collections.abc import Callable
from pathlib import Path

import numpy as np

from pdd.transfer.pool import ByteArray
from pdd.transfer.values import PeerId
from pdd.wire.address import RankAddress, unpack_address

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
PAGE_BYTES = 4096
"""Unit of ``Record.shared_page``; slots begin at multiples of it."""


def host_id() -> str:
    """Equal for two processes that see each other's ``/proc`` entries as the same user."""
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    namespace = Path("/proc/self/ns/pid").stat().st_ino
    return f"{boot_id}/{namespace}/{os.getuid()}"


class SharedSlots:
    """The source's side: ``slot_count`` slots of ``slot_bytes``, lent like staging buffers.

    At most ``per_peer`` slots are lent for one peer; at a bound ``take`` returns None. A slot comes
    back when the target answers, or when every message of its connection is final: with a target
    that stands still that can take until the end of the transfer's lease.
    """

    def __init__(self, *, slot_bytes: int, slot_count: int, per_peer: int) -> None:
        self.slot_bytes = -(-slot_bytes // PAGE_BYTES) * PAGE_BYTES
        self.size_bytes = self.slot_bytes * slot_count
        self._name = f"pdd-kv-{secrets.token_hex(16)}"
        self._fd = os.memfd_create(self._name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self._fd, self.size_bytes)
        fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, _SEALS)
        self._map = mmap.mmap(self._fd, self.size_bytes)
        _want_huge_pages(self._map)
        self._memory: ByteArray = np.frombuffer(self._map, np.uint8)
        self._free = list(range(slot_count))
        self._per_peer = per_peer
        self._lent: dict[PeerId, int] = {}

    def address(self, ucx_address: bytes) -> RankAddress:
        """This rank's address with the memory in it."""
        return RankAddress(
            ucx_address=ucx_address,
            host=host_id(),
            pid=os.getpid(),
            fd=self._fd,
            name=self._name,
            size_bytes=self.size_bytes,
        )

    def take(self, peer: PeerId) -> int | None:
        """Lend a slot, by number."""
        if not self._free or self._lent.get(peer, 0) >= self._per_peer:
            return None
        self._lent[peer] = self._lent.get(peer, 0) + 1
        return self._free.pop()

    def give(self, peer: PeerId, slot: int) -> None:
        """Take a slot back."""
        left = self._lent[peer] - 1
        if left:
            self._lent[peer] = left
        else:
            del self._lent[peer]
        self._free.append(slot)

    def has_lent(self, peer: PeerId) -> bool:
        """Whether a slot is lent for this peer, so that one will come back from it."""
        return peer in self._lent

    @property
    def lent_count(self) -> int:
        """Slots in use."""
        return sum(self._lent.values())

    def part(self, slot: int, size_bytes: int) -> ByteArray:
        """The first ``size_bytes`` of a slot."""
        start = slot * self.slot_bytes
        return self._memory[start : start + size_bytes]

    def offset(self, slot: int) -> int:
        """Where a slot begins in the shared memory."""
        return slot * self.slot_bytes

    def close(self) -> None:
        """Give the memory back. Whoever has mapped it keeps it until he lets go."""
        del self._memory
        with contextlib.suppress(BufferError):  # a view of it is still held; freed with it
            self._map.close()
        os.close(self._fd)


def attach(address: RankAddress, *, host: str) -> ByteArray | None:
    """Map another rank's shared memory for reading; None where that is not possible."""
    if not host or address.host != host or not address.size_bytes:
        return None
    path = f"/proc/{address.pid}/fd/{address.fd}"
    try:
        # Before it is opened: where a later process has a pipe or a device, opening can block.
        if not _is_named(address, path):
            return None
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:
        return None
    try:
        if not _is_the_memory_of(address, fd):
            return None
        mapped = mmap.mmap(fd, address.size_bytes, prot=mmap.PROT_READ)
        _want_huge_pages(mapped)
    except (OSError, ValueError):
        return None
    finally:
        os.close(fd)
    return np.frombuffer(mapped, np.uint8)


class PeerMemories:
    """The target's side: other ranks' shared memory, each mapped from the first use until it is
    forgotten, which is when the connection to its rank is gone: the pages of a dead source are
    held by whoever maps them.

    Args:
        host: this rank's ``host_id``; empty where nothing is to be mapped.
        address_of: a peer's packed address.
    """

    def __init__(self, *, host: str, address_of: Callable[[PeerId], bytes]) -> None:
        self._host = host
        self._address_of = address_of
        self._mapped: dict[PeerId, ByteArray | None] = {}

    def of(self, peer: PeerId) -> ByteArray | None:
        """Mapped now if it was not; None where that is not possible."""
        if self._host and peer not in self._mapped:
            try:
                address = unpack_address(self._address_of(peer))
            except ValueError:
                return None  # told when it is connected to
            self._mapped[peer] = attach(address, host=self._host)
        return self._mapped.get(peer)

    def is_mapped(self, peer: PeerId) -> bool:
        """Whether it is mapped already."""
        return self._mapped.get(peer) is not None

    def forget(self, peer: PeerId) -> None:
        """Let the memory go. Nothing may be about to be copied out of it."""
        self._mapped.pop(peer, None)


def _want_huge_pages(mapped: mmap.mmap) -> None:
    with contextlib.suppress(OSError):  # a kernel without them: slower, nothing else
        mapped.madvise(mmap.MADV_HUGEPAGE)


def _is_named(address: RankAddress, path: str) -> bool:
    return os.readlink(path).startswith(f"/memfd:{address.name} ")


def _is_the_memory_of(address: RankAddress, fd: int) -> bool:
    """Whether ``fd`` is what ``address`` describes, with a size that can change no more."""
    return (
        _is_named(address, f"/proc/self/fd/{fd}")
        and os.fstat(fd).st_size == address.size_bytes
        and fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS == _SEALS
    )
