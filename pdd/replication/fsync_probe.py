"""What one fdatasync costs on this disk, with nothing of ours around it."""

from __future__ import annotations

import os
import time
from pathlib import Path

SYNC_COUNT = 300
WRITE_BYTES = 4096


def measure_fsync_ms(directory: Path) -> list[float]:
    """Milliseconds of each of SYNC_COUNT syncs of WRITE_BYTES in a preallocated file. Blocks."""
    path = directory / "fsync-probe"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    took_ms = []
    try:
        os.posix_fallocate(descriptor, 0, SYNC_COUNT * WRITE_BYTES)
        os.fsync(descriptor)
        for number in range(SYNC_COUNT):
            os.pwrite(descriptor, b"\xa5" * WRITE_BYTES, number * WRITE_BYTES)
            started_s = time.perf_counter()
            os.fdatasync(descriptor)
            took_ms.append((time.perf_counter() - started_s) * 1000)
    finally:
        os.close(descriptor)
        path.unlink()
    return took_ms
