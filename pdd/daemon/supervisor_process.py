"""Start daemons and the guard as child processes."""

import ctypes
import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pdd
from pdd.daemon import supervisor_timing as timing
from pdd.daemon.supervisor_guard import DONE
from pdd.daemon.supervisor_members import member_environment
from pdd.daemon.supervisor_plan import DaemonPlan
from pdd.daemon.supervisor_state import ClusterRecord, StateDir

_PR_SET_CHILD_SUBREAPER = 36
_PACKAGE_ROOT = Path(pdd.__file__).resolve().parents[1]


def adopt_orphans() -> None:
    """Become the parent of descendants whose parent dies, so that they can be reaped."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    """What all daemons of one cluster share when they are started."""

    cluster_id: str
    temporary_dir: Path
    notify_socket: str

    def start(self, plan: DaemonPlan) -> subprocess.Popen[bytes]:
        """Start one daemon in a session of its own, output appended to its log.

        Call it in the main thread: the death signal follows the thread that starts the child.

        Raises:
            OSError: no process, or no log file.
        """
        environment = member_environment(
            _without_overrides(dict(os.environ)) | {"NOTIFY_SOCKET": self.notify_socket},
            cluster_id=self.cluster_id,
            name=plan.name,
            temporary_dir=self.temporary_dir,
        )
        wrapper = Path(__file__).with_name("supervisor_exec.py")
        with plan.log_path.open("ab") as output:
            return subprocess.Popen(  # noqa: S603 -- our own command
                [sys.executable, "-E", "-S", wrapper, str(os.getpid()), *plan.argv],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                cwd=plan.state_dir,
                env=with_package_path(environment),
            )


def start_guard(state_dir: StateDir, record: ClusterRecord) -> subprocess.Popen[bytes]:
    """Start the process that cleans up when this one is killed."""
    grace = str(timing.GUARD_GRACE_S)
    arguments = [str(state_dir.path), record.cluster_id, record.temporary_dir, grace]
    return subprocess.Popen(  # noqa: S603 -- our own command
        [sys.executable, "-S", "-m", "pdd.daemon.supervisor_guard", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",
        env=with_package_path(dict(os.environ)),
        pass_fds=(state_dir.lock_descriptor,),
    )


def dismiss_guard(guard: subprocess.Popen[bytes]) -> None:
    """Tell the guard that there is nothing to do, and wait for it to end. Blocks up to 1 s."""
    assert guard.stdin is not None
    with suppress(BrokenPipeError):  # somebody killed it; the daemons are stopped anyway
        guard.stdin.write(DONE)
        guard.stdin.close()
    with suppress(subprocess.TimeoutExpired):
        guard.wait(timeout=timing.KILL_WAIT_S)


def with_package_path(environment: dict[str, str]) -> dict[str, str]:
    """Let the child import the same pdd, also from a clone that is not installed."""
    paths = [str(_PACKAGE_ROOT), environment.get("PYTHONPATH", "")]
    return environment | {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}


def _without_overrides(environment: dict[str, str]) -> dict[str, str]:
    """Drop ``PDD_SECTION__KEY``: the written configuration has them already."""
    return {
        key: value
        for key, value in environment.items()
        if not (key.startswith("PDD_") and "__" in key)
    }
