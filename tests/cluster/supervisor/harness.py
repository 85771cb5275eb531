"""Runs ``fake_up.py`` and reads what it says."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from pdd.daemon.supervisor_members import wait_for_exit
from pdd.daemon.supervisor_state import read_record
from tests.waiting import PATIENCE_S

FAKE_UP = Path(__file__).with_name("fake_up.py")
ROOT = Path(__file__).parents[3]
DAEMONS = {"scheduler-0": ["ready"], "prefill-0": ["ready"], "decode-0": ["ready"]}


class FakeCluster:
    """One run of ``fake_up.py``."""

    def __init__(self, state_dir: Path, **task: object) -> None:
        self.state_dir = state_dir
        task = {"state_dir": str(state_dir), "daemons": DAEMONS} | task
        self.process = subprocess.Popen(
            [sys.executable, FAKE_UP, json.dumps(task)],
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            start_new_session=True,
        )
        self.cluster_id = ""
        self.said: list[dict[str, object]] = []
        self._rest = b""

    def wait_for(self, wanted: Callable[[dict[str, object]], bool]) -> dict[str, object]:
        """The next message that is wanted."""
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            while b"\n" in self._rest:
                line, self._rest = self._rest.split(b"\n", 1)
                message = json.loads(line)
                self.said.append(message)
                if wanted(message):
                    return message
            left_s = deadline_s - time.monotonic()
            assert select.select([self.process.stdout], [], [], max(0, left_s))[0], self.said
            chunk = os.read(self.process.stdout.fileno(), 65536)
            assert chunk, f"it ended, having said {self.said}"
            self._rest += chunk

    def wait_until_ready(self) -> dict[str, dict[str, object]]:
        """Nodes by name, once it is ready."""
        message = self.wait_for(lambda message: "ready" in message)
        self.cluster_id = message["cluster_id"]
        return {node["name"]: node for node in message["ready"]["nodes"]}

    def wait_for_report(self, part: str) -> str:
        return self.wait_for(lambda message: part in str(message.get("report", "")))["report"]

    def pids(self) -> dict[str, int]:
        """Of the daemons, as the record has them now."""
        return {daemon.name: daemon.pid for daemon in read_record(self.state_dir).nodes}

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        """Its exit code; also reads what it said last."""
        out, _ = self.process.communicate(timeout=PATIENCE_S)
        self.said += [json.loads(line) for line in (self._rest + out).splitlines()]
        return self.process.returncode

    def everything_said(self) -> str:
        return "\n".join(json.dumps(message) for message in self.said)


def wait_until_gone(*pids: int) -> None:
    for pid in pids:
        assert wait_for_exit(pid, timeout_s=PATIENCE_S), f"process {pid} is still there"
