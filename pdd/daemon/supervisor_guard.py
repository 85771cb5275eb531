"""Cleans up after a supervisor that was killed (SIGKILL, out of memory).

Usage: python -m pdd.daemon.supervisor_guard STATE_DIR CLUSTER_ID TEMPORARY_DIR GRACE_S

The supervisor holds the other end of this process's stdin and writes ``done`` when it has stopped
its daemons itself. If the pipe closes without that, the guard stops what is left: daemons got
SIGTERM from the kernel already, but a daemon that hangs, or engine processes of a daemon that
died while loading, would stay for ever. It holds the state folder's lock meanwhile (inherited),
so that the next ``pdd up`` on that folder is refused instead of meeting half-dead daemons.
"""

import signal
import sys
from functools import partial
from pathlib import Path

from pdd.daemon.supervisor_members import (
    end_members,
    find_members,
    remove_shared_files,
    remove_temporary_dir,
)

DONE = b"done"


def main(arguments: list[str]) -> int:
    """Wait for the pipe; return the exit code."""
    state_dir, cluster_id, temporary_dir = Path(arguments[0]), arguments[1], arguments[2]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends when the supervisor does
    if sys.stdin.buffer.read() == DONE:
        return 0
    files = end_members(partial(find_members, cluster_id), grace_s=float(arguments[3]))
    remove_shared_files(files)
    remove_temporary_dir(temporary_dir)
    (state_dir / "cluster.json").unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
