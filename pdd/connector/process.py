"""Ties the life of vLLM's processes to the daemon that started them."""

import ctypes
import multiprocessing
import os
import signal

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Get SIGTERM when the parent ends, however it ends.

    Without it vLLM's engine core and workers outlive a killed daemon and keep its memory. The
    signal follows the parent *thread*; vLLM starts its children from the main one.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    parent = multiprocessing.parent_process()
    if parent is not None and os.getppid() != parent.pid:  # it ended before the call
        os.kill(os.getpid(), signal.SIGTERM)
