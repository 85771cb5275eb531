"""A stand-in for ``pdd up`` whose daemons are fakes. Usage: fake_up.py TASK_JSON

It is a process of its own because a supervisor owns its process's signals and children, and
because the tests kill it. Prints one JSON object a line: {"report"}, {"ready"}, {"error"}.
"""

import asyncio
import json
import sys
import time
from pathlib import Path

from pdd.core.errors import PddError
from pdd.core.identity import Role
from pdd.daemon import supervisor_restart, supervisor_timing
from pdd.daemon.supervisor import Supervisor
from pdd.daemon.supervisor_nodes import NodeRow
from pdd.daemon.supervisor_plan import DaemonPlan
from pdd.daemon.supervisor_state import StateDir

FAKE_DAEMON = Path(__file__).with_name("fake_daemon.py")


def say(**message: object) -> None:
    print(json.dumps(message, default=str), flush=True)


class JumpingClock:
    """Real time, until every one of ``reports`` has been reported: then an hour more."""

    def __init__(self, reports: list[str]) -> None:
        self.missing = reports
        self.offset_s = 0.0

    def hear(self, text: str) -> None:
        if self.missing:
            self.missing = [part for part in self.missing if part not in text]
            self.offset_s = 0.0 if self.missing else 3600.0

    def __call__(self) -> float:
        return time.monotonic() + self.offset_s


def make_plan(state_dir: Path, name: str, behaviour: list[str]) -> DaemonPlan:
    return DaemonPlan(
        name=name,
        role=Role(name.split("-")[0]),
        state_dir=state_dir / name,
        config_path=state_dir / f"{name}.toml",
        config_text="# nothing\n" * 100,
        log_path=state_dir / "log" / f"{name}.log",
        argv=(sys.executable, "-S", str(FAKE_DAEMON), name, *behaviour),
    )


def make_row(name: str) -> NodeRow:
    return NodeRow(
        name=name,
        role=name.split("-")[0],
        state="ready",
        state_reason="",
        uuid="u",
        boot_epoch=1,
        address="",
        pid=1,
        model="m",
        block_count=1,
        free_block_count=1,
        running_sequence_count=0,
        waiting_sequence_count=0,
    )


async def run(task: dict) -> int:
    path = Path(task["state_dir"])
    state_dir = StateDir.lock(path)
    clock = JumpingClock(task.get("an_hour_passes_after", []))

    def report(text: str) -> None:
        say(report=text)
        clock.hear(text)

    supervisor = Supervisor(
        state_dir=state_dir,
        plans=[make_plan(path, name, behaviour) for name, behaviour in task["daemons"].items()],
        model="fake",
        report=report,
        on_ready=lambda record: say(ready=record.public(), cluster_id=record.cluster_id),
        start_timeout_s=600,
        clock=clock,
        lister=lambda _address: [make_row(name) for name in task.get("joined", task["daemons"])],
    )
    return await supervisor.run()


def main() -> int:
    task = json.loads(sys.argv[1])
    supervisor_restart.FIRST_DELAY_S = task.get("first_delay_s", 0.0)
    for name, value in task.get("timing", {}).items():
        setattr(supervisor_timing, name, value)
    try:
        return asyncio.run(run(task))
    except PddError as error:
        say(error=str(error))
        return 1


if __name__ == "__main__":
    sys.exit(main())
