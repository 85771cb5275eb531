"""Makes sure that a daemon's engine leaves no process behind, whatever state it was in."""

import contextlib

import psutil

_GRACE_S = 1.0


def end_descendants() -> list[int]:
    """End every process below this one; returns the pids that had to be killed.

    multiprocessing's resource tracker is left alone: it removes leaked shared memory and ends by
    itself when its last user is gone.
    """
    alive = [
        process for process in psutil.Process().children(recursive=True) if not _is_tracker(process)
    ]
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    _, stubborn = psutil.wait_procs(alive, timeout=_GRACE_S)
    for process in stubborn:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(stubborn, timeout=_GRACE_S)
    return [process.pid for process in stubborn]


def _is_tracker(process: psutil.Process) -> bool:
    try:
        return any("resource_tracker" in argument for argument in process.cmdline())
    except psutil.NoSuchProcess:
        return False
