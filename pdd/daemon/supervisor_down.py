"""``pdd down``: stop the cluster of a state folder, whatever state it is in. Idempotent."""

import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from pdd.core.errors import PddError
from pdd.daemon.supervisor_members import (
    end_members,
    find_members,
    remove_shared_files,
    remove_temporary_dir,
    start_ticks,
    wait_for_exit,
)
from pdd.daemon.supervisor_state import ClusterRecord, StateDir, StateDirBusy, read_record
from pdd.daemon.supervisor_timing import CLEANUP_GRACE_S, GUARD_GRACE_S, STOP_LIMIT_S


def stop_cluster(path: Path, *, clock: Callable[[], float] = time.monotonic) -> str:
    """Stop what runs on the state folder ``path``; return one line that says what was done.

    Raises:
        PddError: it could not be stopped, or the folder cannot be read.
    """
    record = read_record(path)
    if record is None and not (path / "lock").exists():
        return "not running"
    start_s = clock()
    signalled = record is not None and _stop_supervisor(record)
    try:
        # Free at once after a stop; after a kill the guard holds it while it cleans up.
        state_dir = StateDir.wait_for_lock(path, timeout_s=GUARD_GRACE_S + 2)
    except StateDirBusy as error:
        raise PddError(f"not stopped: {error}") from error
    try:
        record = record or read_record(path)
        leftovers = clean_up(state_dir)
    finally:
        state_dir.close()
    if record is None or not (signalled or leftovers):
        return "not running"
    names = ", ".join(daemon.name for daemon in record.nodes) or "a cluster that was starting"
    killed = f"; {leftovers} processes of a killed supervisor were left" if leftovers else ""
    return f"stopped {names} in {clock() - start_s:.1f} s{killed}"


def clean_up(state_dir: StateDir) -> int:
    """Stop what a killed supervisor left in a folder that we have locked.

    Returns:
        How many processes there were.
    """
    record = read_record(state_dir.path)
    if record is None:
        return 0
    find = partial(find_members, record.cluster_id)
    left = find()
    remove_shared_files(end_members(find, grace_s=CLEANUP_GRACE_S))
    remove_temporary_dir(record.temporary_dir)
    state_dir.remove_record()
    return len(left)


def _stop_supervisor(record: ClusterRecord) -> bool:
    """SIGTERM, wait, SIGKILL. Returns whether there was one."""
    pid = record.supervisor_pid
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        # Looked at after the descriptor exists: from here on the number cannot change hands.
        if start_ticks(pid) != record.supervisor_start_ticks:
            return False
        signal.pidfd_send_signal(descriptor, signal.SIGTERM)
        if not wait_for_exit(pid, timeout_s=STOP_LIMIT_S + 2):
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)  # its guard does the rest
            wait_for_exit(pid, timeout_s=1.0)
    finally:
        os.close(descriptor)
    return True
