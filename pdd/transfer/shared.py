"""Memory of a source that targets on the same host can read: a lane beside UCX for the bytes.

The source gathers a chunk into a slot and announces it in band, over UCX, as always; the target
copies it from the slot into its blocks, takes the digest there, from its own memory, and answers
over UCX that the slot is free. Two copies, one on each side's core, instead of TCP's two copies
through the kernel and its system calls. Before and after the copy the target looks at the slot's
header (``slot_header``), so that a slot that has been filled anew meanwhile is noticed.

The death of either side harms nobody: it is noticed on the UCX connection, and the mapping of a
dead source's memory stays readable. There is no name in a file system that could be left behind:
the memory is reached through ``/proc/PID/fd/FD``, which the kernel allows to the same user only.
Its random name tells it from whatever a later process with the same PID has open there, and its
size is sealed: nobody can shorten it under a reader.

Writing or reading a page that the kernel then cannot provide (strict overcommit, no memory left)
ends a process with SIGBUS. The source therefore has the kernel provide the whole of a slot before
it is lent for the first time, where a failure is an error code; after one, no further slot is used
and what finds none goes over UCX. A memory cgroup that is full kills, as it does for any memory.

Both sides ask for huge pages: with small ones the copies run at two thirds of the speed.

::

    slot 0                                    slot 1
    | header, one page | chunk, whole pages | header, one page | chunk, whole pages | ...
"""

import contextlib
import fcntl
import logging
import mmap
import os
import secrets
from collections.abc import Callable
from pathlib import Path

import numpy as np

from pdd.transfer.pool import ByteArray
from pdd.transfer.slot_header import Fence, SlotHeader
from pdd.transfer.values import PeerId
from pdd.wire.address import RankAddress, unpack_address
from pdd.wire.record import Record

log = logging.getLogger(__name__)

_POPULATE_WRITE = 23  # madvise: fault pages in for writing; Linux 5.14, not in mmap's constants
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
        """Nothing is taken from the kernel yet but names and addresses.

        Raises:
            OSError: the kernel, or what stands before it (seccomp), does not allow it.
        """
        self.host = host_id()
        self.slot_bytes = -(-slot_bytes // PAGE_BYTES) * PAGE_BYTES
        self._stride = PAGE_BYTES + self.slot_bytes
        self.size_bytes = self._stride * slot_count
        self._name = f"pdd-kv-{secrets.token_hex(16)}"
        self._fd = os.memfd_create(self._name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self._fd, self.size_bytes)
            fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, _SEALS)
            self._map = mmap.mmap(self._fd, self.size_bytes)
        except BaseException:  # Ctrl-C too: nobody else could ever close it
            os.close(self._fd)
            raise
        _want_huge_pages(self._map)
        self._memory: ByteArray = np.frombuffer(self._map, np.uint8)
        self._fence = Fence()
        self._free = list(range(slot_count))
        self._provided: set[int] = set()
        self._per_peer = per_peer
        self._lent: dict[PeerId, int] = {}

    def address(self, ucx_address: bytes) -> RankAddress:
        """This rank's address with the memory in it."""
        return RankAddress(
            ucx_address=ucx_address,
            host=self.host,
            pid=os.getpid(),
            fd=self._fd,
            name=self._name,
            size_bytes=self.size_bytes,
        )

    def take(self, peer: PeerId) -> int | None:
        """Lend a slot, by number."""
        if not self._free or self._lent.get(peer, 0) >= self._per_peer:
            return None
        if self._free[-1] not in self._provided and not self._provide(self._free[-1]):
            # Those that have come back lie above those that were never lent.
            self._free.clear()
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

    @property
    def slot_count(self) -> int:
        """Slots in use and slots that may be lent."""
        return self.lent_count + len(self._free)

    def part(self, slot: int, size_bytes: int) -> ByteArray:
        """The first ``size_bytes`` of a slot."""
        start = self.offset(slot)
        return self._memory[start : start + size_bytes]

    def offset(self, slot: int) -> int:
        """Where a slot's bytes begin in the shared memory."""
        return slot * self._stride + PAGE_BYTES

    def header(self, slot: int) -> SlotHeader:
        """To be told before and after a slot's bytes change."""
        start = slot * self._stride
        return SlotHeader(self._memory[start : start + PAGE_BYTES], self._fence)

    def _provide(self, slot: int) -> bool:
        """Have the kernel provide all pages of a slot; False when it cannot."""
        start = slot * self._stride
        try:
            try:
                self._map.madvise(_POPULATE_WRITE, start, self._stride)
            except OSError:  # an older kernel, which says EINVAL; or it has no memory
                os.posix_fallocate(self._fd, start, self._stride)
        except OSError as error:
            log.warning(
                "the kernel has no memory for another %d B of shared memory (%s): %d chunks at a"
                " time go that way, what finds no slot goes over UCX",
                self._stride,
                error,
                len(self._provided),
            )
            return False
        self._provided.add(slot)
        return True

    def close(self) -> None:
        """Give the memory back. Whoever has mapped it keeps it until he lets go."""
        del self._memory
        with contextlib.suppress(BufferError):  # a view of it is still held; freed with it
            self._map.close()
        os.close(self._fd)


class SlotReader:
    """The target's side: takes chunks out of another rank's mapped memory."""

    def __init__(self) -> None:
        self._fence = Fence()

    def copy(
        self, mapped: ByteArray, record: Record, copy: Callable[[ByteArray], object]
    ) -> bool | None:
        """Hand the announced bytes to ``copy``.

        Returns True when they were the announced ones all the while, False when the source has
        used the slot anew (then what was copied is worth nothing), and None when the record points
        outside the memory.
        """
        start = (record.shared_page - 1) * PAGE_BYTES
        if start < PAGE_BYTES or start + record.size_bytes > mapped.nbytes:
            return None
        header = SlotHeader(mapped[start - PAGE_BYTES : start], self._fence)
        announced = {
            "generation": record.shared_generation,
            "nonce": record.nonce,
            "serial": record.serial,
        }
        if not header.is_before(**announced):
            return False
        copy(mapped[start : start + record.size_bytes])
        return header.is_after(**announced)


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
