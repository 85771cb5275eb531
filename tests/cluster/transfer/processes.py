"""Starts and drives ``pdd.transfer.bytes_node`` processes; used by the tests of this folder."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path

from pdd.transfer.environment import ucx_environment

WAIT_S = 30.0
"""How long a test waits for an answer before it fails; nothing is measured with it."""


class NodeProcess:
    def __init__(self, folder, name, *, boot_epoch=1, settings=None, **pool):
        config = {
            "name": name,
            "uuid": f"{name}-uuid",
            "boot_epoch": boot_epoch,
            "control_folder": str(folder),
            "block_count": 64,
            "layer_count": 6,
            "segment_bytes": 50_000,
            "settings": settings or {},
            **pool,
        }
        self.log = (Path(folder) / f"{name}.{boot_epoch}.log").open("w+")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pdd.transfer.bytes_node", json.dumps(config)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env={
                **os.environ,
                **ucx_environment(transport="tcp", devices="lo"),
                "PYTHONPATH": str(Path(__file__).parents[3]),
            },
        )
        self._answers = queue.Queue()
        self._events = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.peer = self._take(self._answers)["peer"]

    def _read(self):
        for line in self.process.stdout:
            answer = json.loads(line)
            (self._events if "event" in answer else self._answers).put(answer)
        self._answers.put(None)
        self._events.put(None)

    def _take(self, answers):
        answer = answers.get(timeout=WAIT_S)
        if answer is None:
            self.log.seek(0)
            raise AssertionError(f"the node ended: {self.log.read()[-2000:]}")
        return answer

    def do(self, name, **arguments):
        self.process.stdin.write(json.dumps({"do": name, **arguments}) + "\n")
        self.process.stdin.flush()
        return self._take(self._answers)

    def event(self):
        return self._take(self._events)

    def no_event(self):
        assert self._events.empty(), self._events.get()

    def stats(self):
        return self.do("usage")["stats"]

    def wait_for(self, name, value=1):
        """Ask until a counter has reached ``value``."""
        self.wait_until(lambda stats: stats.get(name, 0) >= value)

    def wait_until(self, condition):
        """Ask for the statistics until they are as wanted."""
        for _ in range(10_000):
            if condition(self.stats()):
                return
        raise AssertionError(f"never as wanted: {self.stats()}")

    def signal(self, number):
        self.process.send_signal(number)

    def kill(self):
        self.signal(signal.SIGKILL)
        self.process.wait(WAIT_S)

    def close(self):
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        if self.process.poll() is None:
            self.signal(signal.SIGCONT)
            try:
                self.process.wait(WAIT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(WAIT_S)
        self.process.stdout.close()
        self._reader.join(WAIT_S)
        self.log.close()
