"""``pdd up --detach``: the supervisor in the background, and the wait for it in the foreground.

The foreground process starts ``pdd supervise`` in a session of its own, gives it the plans on
stdin and the locked state folder as an inherited descriptor, and reads one JSON line after
another from its stdout until it says ``ready`` or ``failed``. From then on the background process
writes to ``log/up.log``. If the foreground process goes away before, the start is given up.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pdd.core.errors import PddError
from pdd.core.identity import Role
from pdd.daemon.supervisor import Supervisor
from pdd.daemon.supervisor_plan import DaemonPlan
from pdd.daemon.supervisor_process import with_package_path
from pdd.daemon.supervisor_state import ClusterRecord, StateDir, read_record
from pdd.daemon.supervisor_timing import STOP_LIMIT_S

_PATHS = ("state_dir", "config_path", "log_path")


def start_in_background(
    state_dir: StateDir,
    plans: Sequence[DaemonPlan],
    *,
    model: str,
    start_timeout_s: float,
    report: Callable[[str], None],
) -> ClusterRecord:
    """Start a supervisor and wait until its cluster is ready.

    Raises:
        PddError: the start failed; everything is stopped.
    """
    task = {
        "state_dir": str(state_dir.path),
        "lock_descriptor": state_dir.lock_descriptor,
        "plans": [asdict(plan) for plan in plans],
        "model": model,
        "start_timeout_s": start_timeout_s,
    }
    log_path = state_dir.path / "log" / "up.log"
    log_path.parent.mkdir(mode=0o700, exist_ok=True)
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "pdd.cli.main", "supervise"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
            pass_fds=(state_dir.lock_descriptor,),
            env=with_package_path(dict(os.environ)),
        )
    try:
        assert process.stdin is not None
        process.stdin.write(json.dumps(task, default=str).encode())
        process.stdin.close()
        _wait_until_ready(process, report=report, log_path=log_path)
    except BaseException:  # Ctrl-C and SIGTERM too: half a cluster would stay in the background
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=STOP_LIMIT_S + 2)
        raise
    finally:
        assert process.stdout is not None
        process.stdout.close()
    process.returncode = 0  # it lives on, and is no longer ours to wait for
    record = read_record(state_dir.path)
    if record is None:
        raise PddError(f"the cluster ended as soon as it was ready; see {log_path}")
    return record


def _wait_until_ready(
    process: "subprocess.Popen[bytes]", *, report: Callable[[str], None], log_path: Path
) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        message = json.loads(line)
        if "ready" in message:
            return
        if "failed" in message:
            process.wait(timeout=STOP_LIMIT_S)
            raise PddError(message["failed"])
        report(message["progress"])
    code = process.wait()
    tail = "\n".join(f"    {line}" for line in log_path.read_text().splitlines()[-20:])
    raise PddError(f"the supervisor ended with code {code}; the end of {log_path}:\n{tail}")


def supervise_from_stdin() -> int:
    """The background half. Returns the exit code."""
    task = json.loads(sys.stdin.read())
    state_dir = StateDir(Path(task["state_dir"]), task["lock_descriptor"])
    os.set_inheritable(state_dir.lock_descriptor, False)
    speaker = _Speaker()
    try:
        return asyncio.run(_supervise(task, state_dir, speaker))
    except PddError as error:
        speaker.send({"failed": str(error)})
        return 1


async def _supervise(task: Mapping[str, Any], state_dir: StateDir, speaker: "_Speaker") -> int:
    supervisor = Supervisor(
        state_dir=state_dir,
        plans=[_plan_from_json(fields) for fields in task["plans"]],
        model=task["model"],
        report=speaker.report,
        on_ready=speaker.ready,
        start_timeout_s=task["start_timeout_s"],
    )
    speaker.watch(lambda: supervisor.request_stop("nobody waits for this start any more"))
    return await supervisor.run()


def _plan_from_json(fields: Mapping[str, Any]) -> DaemonPlan:
    paths = {key: Path(fields[key]) for key in _PATHS}
    typed = {"role": Role(fields["role"]), "argv": tuple(fields["argv"])}
    return DaemonPlan(**(dict(fields) | paths | typed))


class _Speaker:
    """Talks to the foreground process until the cluster is ready, and to the log always."""

    def __init__(self) -> None:
        self._is_connected = True

    def watch(self, on_gone: Callable[[], None]) -> None:
        """Call ``on_gone`` when the foreground process goes away before the cluster is ready."""

        def gone() -> None:
            self._disconnect()
            on_gone()

        # A pipe's writing end is never readable; it only becomes so when its reader is gone.
        asyncio.get_running_loop().add_reader(sys.stdout.fileno(), gone)

    def report(self, text: str) -> None:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        sys.stderr.write(f"{stamp} {text}\n")
        sys.stderr.flush()
        self.send({"progress": text})

    def ready(self, _record: ClusterRecord) -> None:
        self.report("ready")
        self.send({"ready": True})
        self._disconnect()

    def send(self, message: Mapping[str, object]) -> None:
        if not self._is_connected:
            return
        # When nobody reads, the reader of ``watch`` hears of it.
        with suppress(BrokenPipeError):
            sys.stdout.write(json.dumps(message) + "\n")
            sys.stdout.flush()

    def _disconnect(self) -> None:
        """From here on stdout is the log: whoever reads the pipe must see its end."""
        self._is_connected = False
        asyncio.get_running_loop().remove_reader(sys.stdout.fileno())
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
