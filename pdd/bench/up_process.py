"""``pdd up`` as a child, for measurements that need several clusters at once.

Each is ended with SIGTERM, by which it stops its daemons, also when this process is killed.
"""

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from pdd.connector.process import die_with_parent
from pdd.core.errors import PddError

_STOP_TIMEOUT_S = 30.0


class UpProcess:
    """One cluster. ``with`` starts it and waits for its endpoint; the end of the block stops it.

    Make it in the main thread: a child ends with the thread that started it.
    """

    def __init__(self, *, state_dir: Path, options: Sequence[str]) -> None:
        """``options``: of ``pdd up``, without ports, folder and output."""
        self._state_dir = state_dir
        self._options = options
        self._child: subprocess.Popen[str] | None = None
        self.http = ""

    def __enter__(self) -> Self:
        """Raises PddError when it does not become ready; its own messages say why."""
        self._child = subprocess.Popen(  # noqa: S603 - our own command line
            [
                *(sys.executable, "-m", "pdd.cli.main", "up", "-o", "json"),
                *("--http-port", "0", "--state-dir", str(self._state_dir), *self._options),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=die_with_parent,
        )
        try:
            self.http = self._endpoint(self._child)
        except BaseException:  # Ctrl-C too: `with` calls no __exit__ when __enter__ raises
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop()

    def _endpoint(self, child: "subprocess.Popen[str]") -> str:
        assert child.stdout is not None
        text = ""
        for line in child.stdout:
            text += line
            try:
                told = json.loads(text)
            except ValueError:
                continue
            return str(told["http"])
        raise PddError(f"a cluster did not start: pdd up {' '.join(self._options)}")

    def _stop(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            child.kill()  # its guard ends what it had started
            child.wait()
        assert child.stdout is not None
        child.stdout.close()
