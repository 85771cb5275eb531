"""``pdd up``, ``pdd node list`` and ``pdd down`` as an operator runs them, with fake daemons."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from pdd.daemon.supervisor_members import find_members
from pdd.daemon.supervisor_state import StateDir, read_record
from tests.cluster.supervisor.harness import ROOT, wait_until_gone
from tests.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.cluster
FAKE_CLI = Path(__file__).with_name("fake_cli.py")


class Operator:
    """Runs commands on one state folder."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir
        self.processes: list[subprocess.Popen[str]] = []
        self.environment = os.environ | {
            "PYTHONPATH": str(ROOT),
            "PDD_STATE_DIR": str(state_dir),
            "PYTHONUNBUFFERED": "1",
        }

    def start(self, *arguments: str, under: Sequence[str] = ()) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*under, sys.executable, FAKE_CLI, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment,
            start_new_session=True,
        )
        self.processes.append(process)
        return process

    def run(self, *arguments: str) -> tuple[int, str, str]:
        process = self.start(*arguments)
        out, err = process.communicate(timeout=PATIENCE_S)
        return process.returncode, out, err


@pytest.fixture
def operator(tmp_path):
    operator = Operator(tmp_path / "state")
    yield operator
    if read_record(operator.state_dir) is not None:
        operator.run("down")
    for process in operator.processes:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            with suppress(BrokenPipeError):
                stream.close()


def test_detached_cluster_lives_on_until_down(operator):
    code, out, err = operator.run("up", "--detach", "--http-port", "0", "-o", "json")
    assert code == 0, err
    cluster = json.loads(out)
    assert cluster["http"] == "http://scheduler-0"
    assert [node["name"] for node in cluster["nodes"]] == ["scheduler-0", "prefill-0", "decode-0"]
    scheduler, *nodes = cluster["nodes"]
    assert set(scheduler) == {"name", "role", "pid", "address", "http"}
    assert all(set(node) == {"name", "role", "pid", "address"} for node in nodes)
    assert "prefill-0: loading, " in err

    record = read_record(operator.state_dir)
    assert record.state == "ready"
    assert Path(f"/proc/{record.supervisor_pid}").exists()

    code, out, _ = operator.run("node", "list", "-o", "json")
    assert code == 0
    assert [(node["name"], node["state"], node["block_count"]) for node in json.loads(out)] == [
        ("prefill-0", "ready", 9),
        ("decode-0", "ready", 9),
    ]
    code, out, _ = operator.run("node", "list")
    assert code == 0
    assert out.split("\n")[0].split()[:4] == ["NAME", "ROLE", "STATE", "BLOCKS"]

    code, _, err = operator.run("up", "--http-port", "0")
    assert code == 1
    assert f"a cluster is ready in {operator.state_dir} (pid {record.supervisor_pid})" in err

    code, out, _ = operator.run("down")
    assert code == 0
    assert out.startswith("stopped scheduler-0, prefill-0, decode-0 in ")
    wait_until_gone(record.supervisor_pid, *(node["pid"] for node in cluster["nodes"]))
    assert find_members(record.cluster_id) == []
    assert operator.run("down") == (0, "not running\n", "")


def test_foreground_up_prints_the_endpoint_and_an_interrupt_ends_it(operator):
    process = operator.start("up", "--http-port", "0", "--model", "Smol")
    line = process.stdout.readline()
    assert line.startswith("http://scheduler-0/v1  (model Smol, gRPC 127.0.0.1:")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    assert err.splitlines()[-1] == "stopping (SIGINT)"
    assert read_record(operator.state_dir) is None


def test_the_stop_is_complete_even_when_nobody_reads_its_messages(operator):
    process = operator.start("up", "--http-port", "0")
    process.stdout.readline()
    record = read_record(operator.state_dir)
    process.stderr.close()
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=PATIENCE_S) == 0
    assert find_members(record.cluster_id) == []
    assert read_record(operator.state_dir) is None


def test_nohup_is_honoured(operator):
    process = operator.start("up", "--http-port", "0", under=["nohup"])
    process.stdout.readline()
    process.send_signal(signal.SIGHUP)
    status = Path(f"/proc/{process.pid}/status").read_text()
    ignored = int(re.search(r"SigIgn:\s*(\w+)", status)[1], 16)
    assert ignored & 1 << (signal.SIGHUP - 1)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert err.splitlines()[-1] == "stopping (SIGTERM)"


def test_a_used_port_is_refused_before_anything_starts(operator):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, out, err = operator.run("up", "--http-port", str(port))
    assert (code, out) == (1, "")
    assert err == (
        f"error: --http-port {port}: port {port} of 127.0.0.1 is in use; choose another, or 0 for "
        "any free one\n"
    )
    assert [path.name for path in operator.state_dir.iterdir()] == ["lock"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_while_the_model_is_prepared_leaves_nothing(operator, number):
    process = operator.start("up", "--http-port", "0", "--model", "wait")
    assert process.stderr.readline() == "resolving\n"
    process.send_signal(number)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert [path.name for path in operator.state_dir.iterdir()] == ["lock"]


def test_down_ends_an_up_that_prepares_its_model(operator):
    process = operator.start("up", "--http-port", "0", "--model", "wait")
    assert process.stderr.readline() == "resolving\n"
    code, out, _ = operator.run("down")
    assert code == 0
    assert out.startswith("stopped a cluster that was starting in ")
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130


def test_when_the_waiting_detach_is_interrupted_the_background_stops_too(operator):
    process = operator.start("up", "--detach", "--http-port", "0", "--decode", "2")  # decode-1
    wait_until(  # never joins in the fake scheduler's list, so the start stays unfinished
        lambda: (record := read_record(operator.state_dir)) is not None and record.nodes,
        "the daemons to be recorded",
    )
    record = read_record(operator.state_dir)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    wait_until_gone(record.supervisor_pid)
    assert find_members(record.cluster_id) == []
    assert read_record(operator.state_dir) is None


def test_when_the_waiting_detach_is_killed_the_background_gives_up(operator):
    process = operator.start("up", "--detach", "--http-port", "0", "--decode", "2")
    wait_until(  # then nothing more is said, and no failing write can tell
        lambda: (
            (record := read_record(operator.state_dir)) is not None
            and record.nodes
            and all(node.address for node in record.nodes)
        ),
        "every daemon to be ready",
    )
    process.kill()
    process.communicate()
    wait_until(lambda: read_record(operator.state_dir) is None, "the background to stop")
    StateDir.wait_for_lock(operator.state_dir, timeout_s=PATIENCE_S).close()


def test_a_failed_detached_start_says_why(operator):
    code, out, err = operator.run(
        "up", "--detach", "--http-port", "0", "--decode", "2", "--start-timeout", "2"
    )
    assert (code, out) == (1, "")
    assert "within 2 s" in err  # which one was late depends on the machine
    assert read_record(operator.state_dir) is None
