"""Become a daemon that gets SIGTERM when the process that started it dies, however it dies.

Usage: python supervisor_exec.py PARENT_PID COMMAND [ARGUMENT...]

A program of its own, because the wish must be made inside the child, and making it between fork
and exec would run Python code in a copy of a process that has threads. It survives exec.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    """Never returns."""
    parent_pid, command = int(arguments[0]), arguments[1:]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent_pid:  # it died before the wish was made
        sys.exit(1)
    os.execvp(command[0], command)  # noqa: S606 -- the supervisor's own command


if __name__ == "__main__":
    main(sys.argv[1:])
