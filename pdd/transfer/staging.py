"""Host buffers in which scattered blocks are gathered before sending and land before scattering."""

from pdd.transfer.pool import ByteArray, page_aligned
from pdd.transfer.values import PeerId


class Staging:
    """Buffers of at least ``buffer_bytes`` each, made when first needed and then kept.

    Bounds: ``per_peer`` buffers lent for one peer, so that a peer that does not answer cannot take
    them all, and ``limit_bytes`` over all. At a bound ``take`` returns None and the caller waits
    for the next ``give``.
    """

    def __init__(self, *, buffer_bytes: int, per_peer: int, limit_bytes: int) -> None:
        self._buffer_bytes = buffer_bytes
        self._per_peer = per_peer
        self._limit_bytes = max(limit_bytes, buffer_bytes)
        self._free: list[ByteArray] = []
        self._lent: dict[PeerId, int] = {}
        self.held_bytes = 0

    def take(self, peer: PeerId, size_bytes: int) -> ByteArray | None:
        """Lend a buffer for ``size_bytes``; it may be longer."""
        if self._lent.get(peer, 0) >= self._per_peer:
            return None
        for position in range(len(self._free) - 1, -1, -1):  # the warmest first
            if self._free[position].nbytes >= size_bytes:
                buffer = self._free.pop(position)
                break
        else:
            size = max(size_bytes, self._buffer_bytes)
            nothing_lent = not self._lent
            while self._free and self.held_bytes + size > self._limit_bytes:
                self.held_bytes -= self._free.pop().nbytes
            if self.held_bytes + size > self._limit_bytes and not nothing_lent:
                return None
            buffer = page_aligned(size)
            self.held_bytes += size
        self._lent[peer] = self._lent.get(peer, 0) + 1
        return buffer

    def give(self, peer: PeerId, buffer: ByteArray) -> None:
        """Take a lent buffer back. Nothing may be on its way into or out of it."""
        left = self._lent[peer] - 1
        if left:
            self._lent[peer] = left
        else:
            del self._lent[peer]
        self._free.append(buffer)

    @property
    def lent_count(self) -> int:
        """Buffers in use."""
        return sum(self._lent.values())
