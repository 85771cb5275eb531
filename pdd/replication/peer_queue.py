"""Messages waiting for the stream to one peer. Pure; the driver puts, one sender takes.

Bounds: MESSAGES_MAX and BYTES_MAX together. At the bound the newest message is dropped and counted:
the consensus core repeats what matters, with fresher content than a longer queue would hold.
"""

from __future__ import annotations

from collections import deque

MESSAGES_MAX = 1024
BYTES_MAX = 16 * 1024 * 1024
BATCH_BYTES = 1024 * 1024
"""One write on the stream takes this much, and at least one message."""


class PeerQueue:
    def __init__(self, *, messages_max: int = MESSAGES_MAX, bytes_max: int = BYTES_MAX) -> None:
        self._messages: deque[bytes] = deque()
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._size_bytes = 0
        self.dropped_count = 0

    def __len__(self) -> int:
        return len(self._messages)

    def put(self, message: bytes) -> bool:
        """False: dropped."""
        is_full = len(self._messages) >= self._messages_max
        if is_full or (self._messages and self._size_bytes + len(message) > self._bytes_max):
            self.dropped_count += 1
            return False
        self._messages.append(message)
        self._size_bytes += len(message)
        return True

    def take(self) -> list[bytes]:
        """The next batch, oldest first; empty when there is none."""
        batch: list[bytes] = []
        batch_bytes = 0
        while self._messages:
            batch_bytes += len(self._messages[0])
            if batch and batch_bytes > BATCH_BYTES:
                break
            message = self._messages.popleft()
            self._size_bytes -= len(message)
            batch.append(message)
        return batch

    def clear(self) -> None:
        """The stream broke: what was waiting is stale. Counts as dropped."""
        self.dropped_count += len(self._messages)
        self._messages.clear()
        self._size_bytes = 0
