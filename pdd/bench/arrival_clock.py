"""When bytes came to this machine, by the kernel's own word. Linux.

A client that shares its cores with what it measures reads late, and what it reads at its own time
would count as the server's delay. So the kernel is asked to stamp each packet as it takes it in
(``SO_TIMESTAMPNS``; on loopback that is while the server writes), and the stamp comes along with
the bytes. Of several packets in one read, all have the stamp of the last one: never too early.

Stamps are on CLOCK_REALTIME, all other times of a run on ``clock``. How far these two are apart is
measured again and again, because the first one is adjusted while the machine runs.
"""

import socket
import struct
import time
from collections.abc import Callable, Iterable

from pdd.core.ports import Clock

# asm-generic/socket.h; Python has no name for it. The value of an option is also that of its stamp.
_SO_TIMESTAMPNS = 35
_TIMESPEC = struct.Struct("@ll")
ANCILLARY_BYTES = socket.CMSG_SPACE(_TIMESPEC.size)
_TRIES = 5
_UNSURE_NS = 50_000
_STEP_NS = 1_000_000


class ArrivalClock:
    """One event loop's. ``read_count``: reads; ``unstamped_count``: those that the kernel had no
    stamp for, whose time is that of the read. ``step_count``: how often CLOCK_REALTIME was set by
    more than 1 ms; what came within a ``compare`` of that is wrong by as much."""

    def __init__(self, clock: Clock, *, realtime_ns: Callable[[], int] = time.time_ns) -> None:
        self._clock = clock
        self._realtime_ns = realtime_ns
        self._offset_ns: int | None = None
        self._holder: socket.socket | None = None
        self.read_count = 0
        self.unstamped_count = 0
        self.step_count = 0

    def open(self) -> None:
        """Before the first connection: the kernel takes a moment to begin with stamps, and goes on
        for as long as any socket wants them."""
        self._holder = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.arm(self._holder)
        self.compare()

    def close(self) -> None:
        """No stamps are wanted any more. Idempotent."""
        if self._holder is not None:
            self._holder.close()
            self._holder = None

    def arm(self, sock: socket.socket) -> None:
        """Want stamps of what this socket receives. Where there are none, reads are unstamped."""
        try:
            sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        except OSError:
            return  # another system; counted at each read

    def compare(self) -> None:
        """Measure how far CLOCK_REALTIME is ahead. Call it some times a second.

        A pause between the two looks would be taken for a difference, so the quickest of some tries
        counts, and none that took ``_UNSURE_NS`` if there is a former one.
        """
        best_ns, offset_ns = _UNSURE_NS if self._offset_ns is not None else 1 << 62, None
        for _ in range(_TRIES):
            before_s = self._clock()
            realtime_ns = self._realtime_ns()
            after_s = self._clock()
            took_ns = round((after_s - before_s) * 1e9)
            if took_ns < best_ns:
                best_ns = took_ns
                offset_ns = realtime_ns - round((before_s + after_s) / 2 * 1e9)
        if offset_ns is None:
            return
        if self._offset_ns is not None and abs(offset_ns - self._offset_ns) > _STEP_NS:
            self.step_count += 1
        self._offset_ns = offset_ns

    def arrival_s(self, ancillary: Iterable[tuple[int, int, bytes]]) -> float:
        """When it came that was read just now, on ``clock``; never later than now.

        Args:
            ancillary: as ``recvmsg`` gives it.
        """
        now_s = self._clock()
        self.read_count += 1
        if self._offset_ns is not None:
            for level, kind, data in ancillary:
                if level == socket.SOL_SOCKET and kind == _SO_TIMESTAMPNS:
                    seconds, nanoseconds = _TIMESPEC.unpack(data)
                    stamp_ns: int = seconds * 1_000_000_000 + nanoseconds
                    return min(now_s, (stamp_ns - self._offset_ns) / 1e9)
        self.unstamped_count += 1
        return now_s
