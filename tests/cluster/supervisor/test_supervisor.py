"""The supervisor with fake daemons: start, ready, crash, give up, stop."""

import json
import os
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest

from pdd.daemon.supervisor_members import find_members
from pdd.daemon.supervisor_state import StateDir, StateDirBusy, read_record
from tests.cluster.supervisor.harness import DAEMONS, FAKE_UP, ROOT, wait_until_gone
from tests.waiting import wait_until

FAST_STOP = {"SCHEDULER_AFTER_S": 0.3, "STOP_GRACE_S": 0.6, "CLEANUP_GRACE_S": 0.3}

pytestmark = pytest.mark.cluster


def assert_nothing_left(cluster, temporary_dir: str = "") -> None:
    wait_until(lambda: not find_members(cluster.cluster_id), "every member to end")
    assert read_record(cluster.state_dir) is None
    StateDir.wait_for_lock(cluster.state_dir, timeout_s=30).close()
    if temporary_dir:
        assert not Path(temporary_dir).exists()


def test_ready_cluster_is_recorded_and_a_signal_ends_it_without_a_trace(start):
    cluster = start()
    nodes = cluster.wait_until_ready()
    assert list(nodes) == list(DAEMONS)
    assert nodes["decode-0"]["address"] == "decode-0:1"
    record = read_record(cluster.state_dir)
    assert (record.state, record.http, record.grpc) == (
        "ready",
        "http://scheduler-0",
        "scheduler-0:1",
    )
    assert sorted(find_members(cluster.cluster_id)) == sorted(cluster.pids().values())
    assert cluster.stop() == 0
    assert_nothing_left(cluster, record.temporary_dir)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_interrupt_and_hang_up_stop_it_like_sigterm(start, number):
    cluster = start()
    cluster.wait_until_ready()
    assert cluster.stop(number) == 0
    assert_nothing_left(cluster)


def test_progress_says_what_each_daemon_does(start):
    cluster = start()
    cluster.wait_until_ready()
    assert re.search(r"prefill-0: loading, \d+ s", cluster.everything_said())
    cluster.stop()


def test_killed_daemon_comes_back_with_a_new_pid(start):
    cluster = start()
    before = cluster.wait_until_ready()["decode-0"]["pid"]
    os.kill(before, signal.SIGKILL)
    assert "was killed by SIGKILL" in cluster.wait_for_report("decode-0: was")
    cluster.wait_for_report("decode-0: back")
    after = cluster.pids()["decode-0"]
    assert after not in (0, before)
    assert cluster.stop() == 0
    assert_nothing_left(cluster)


def test_node_that_keeps_dying_is_tried_rarely_and_the_others_go_on(start, tmp_path):
    cluster = start(daemons=DAEMONS | {"decode-0": ["fail-again", str(tmp_path / "lived")]})
    pids = {name: node["pid"] for name, node in cluster.wait_until_ready().items()}
    os.kill(pids["decode-0"], signal.SIGKILL)
    said = cluster.wait_for_report("5 restarts did not help")
    assert "exited with code 4" in said
    assert "next try in 30 s" in said
    assert cluster.pids()["prefill-0"] == pids["prefill-0"]
    assert cluster.stop() == 0
    assert_nothing_left(cluster)


def test_scheduler_that_keeps_dying_ends_the_cluster_with_code_1(start, tmp_path):
    cluster = start(daemons=DAEMONS | {"scheduler-0": ["fail-again", str(tmp_path / "lived")]})
    pid = cluster.wait_until_ready()["scheduler-0"]["pid"]
    os.kill(pid, signal.SIGKILL)
    assert cluster.wait() == 1
    said = cluster.everything_said()
    assert said.count("restart in") == 5
    assert "exited with code 4; given up after 5 restarts" in said
    assert_nothing_left(cluster)


def test_failure_while_starting_shows_the_log_and_leaves_nothing(start):
    cluster = start(daemons=DAEMONS | {"prefill-0": ["fail"]})
    assert cluster.wait() == 1
    error = cluster.said[-1]["error"]
    assert error.startswith("prefill-0 exited with code 3 before all was ready")
    assert error.endswith("    last line of trouble")
    pids = [
        int(text.split()[-1])
        for path in (cluster.state_dir / "log").iterdir()
        for text in path.read_text().splitlines()
        if " lives as " in text
    ]
    wait_until_gone(*pids)
    assert read_record(cluster.state_dir) is None


def test_daemon_that_never_gets_ready_fails_the_start_by_name(start):
    cluster = start(
        daemons=DAEMONS | {"decode-0": ["silent"]},
        an_hour_passes_after=["scheduler-0: ready", "prefill-0: ready", "decode-0: loading"],
    )
    assert cluster.wait() == 1
    assert cluster.said[-1]["error"].startswith("decode-0 was not ready within 600 s")


def test_node_that_never_joins_fails_the_start(start):
    cluster = start(
        joined=["prefill-0"], an_hour_passes_after=[f"{name}: ready" for name in DAEMONS]
    )
    assert cluster.wait() == 1
    assert "did not see every node join" in cluster.said[-1]["error"]


def test_signal_while_starting_stops_with_code_1(start):
    cluster = start(daemons=DAEMONS | {"decode-0": ["silent"]})
    cluster.wait_for_report("scheduler-0: ready")
    assert cluster.stop() == 1
    assert read_record(cluster.state_dir) is None


def test_daemon_that_ignores_sigterm_is_killed_and_named(start):
    cluster = start(daemons=DAEMONS | {"prefill-0": ["deaf"]}, timing=FAST_STOP)
    cluster.wait_until_ready()
    assert cluster.stop() == 0
    assert "prefill-0: did not stop within" in cluster.everything_said()
    assert_nothing_left(cluster)


def test_second_signal_does_not_wait(start):
    # With these limits the test would take an hour if the second signal changed nothing.
    patient = {"SCHEDULER_AFTER_S": 3600.0, "STOP_GRACE_S": 3600.0}
    cluster = start(daemons=DAEMONS | {"prefill-0": ["deaf"]}, timing=patient)
    cluster.wait_until_ready()
    cluster.process.send_signal(signal.SIGINT)
    cluster.wait_for_report("stopping (SIGINT)")
    wait_until(lambda: read_record(cluster.state_dir).state == "stopping", "the stop to begin")
    assert cluster.stop(signal.SIGINT) == 0
    assert_nothing_left(cluster)


def test_nodes_are_stopped_before_the_scheduler(start, tmp_path):
    cluster = start(
        daemons={"scheduler-0": ["ready"], "decode-0": ["deaf"]},
        timing={"SCHEDULER_AFTER_S": 3600.0, "STOP_GRACE_S": 3600.0},
    )
    nodes = cluster.wait_until_ready()
    cluster.process.send_signal(signal.SIGTERM)
    wait_until(lambda: read_record(cluster.state_dir).state == "stopping", "the stop to begin")
    os.kill(nodes["decode-0"]["pid"], signal.SIGKILL)  # only now may the scheduler go
    assert cluster.wait() == 0
    assert_nothing_left(cluster)


def test_orphans_of_a_dead_daemon_end_before_it_is_restarted(start, tmp_path):
    file = tmp_path / "orphan"
    cluster = start(
        daemons=DAEMONS | {"decode-0": ["orphan", str(file)]}, timing={"CLEANUP_GRACE_S": 0.2}
    )
    pid = cluster.wait_until_ready()["decode-0"]["pid"]
    orphan = int(file.read_text())
    os.kill(pid, signal.SIGKILL)
    cluster.wait_for_report("decode-0: back")
    assert orphan not in find_members(cluster.cluster_id)
    assert int(file.read_text()) in find_members(cluster.cluster_id)
    assert cluster.stop() == 0
    assert_nothing_left(cluster)


def test_shared_memory_of_a_killed_daemon_is_removed(start):
    file = Path("/dev/shm") / f"pdd-test-{uuid4()}"
    cluster = start(daemons=DAEMONS | {"decode-0": ["shared", str(file)]})
    pid = cluster.wait_until_ready()["decode-0"]["pid"]
    assert file.exists()
    os.kill(pid, signal.SIGKILL)
    cluster.wait_for_report("decode-0: was killed")
    assert cluster.stop() == 0
    assert not file.exists()


def test_second_supervisor_on_one_state_folder_is_refused_by_name(start):
    cluster = start()
    cluster.wait_until_ready()
    with pytest.raises(StateDirBusy, match=rf"ready in .* \(pid {cluster.process.pid}\); stop it"):
        StateDir.lock(cluster.state_dir)
    cluster.stop()
    StateDir.lock(cluster.state_dir).close()


def test_two_clusters_side_by_side_do_not_touch_each_other(start, tmp_path):
    first, second = start(), start(state_dir=tmp_path / "other")
    first.wait_until_ready()
    second.wait_until_ready()
    assert first.stop() == 0
    assert sorted(find_members(second.cluster_id)) == sorted(second.pids().values())
    assert second.stop() == 0


def test_killed_supervisor_leaves_nothing_not_even_deaf_orphans(start, tmp_path):
    file = tmp_path / "orphan"
    cluster = start(
        daemons=DAEMONS | {"decode-0": ["orphan", str(file)], "prefill-0": ["deaf"]},
        timing={"GUARD_GRACE_S": 0.5},
    )
    cluster.wait_until_ready()
    temporary_dir = read_record(cluster.state_dir).temporary_dir
    pids = [*cluster.pids().values(), int(file.read_text())]
    cluster.stop(signal.SIGKILL)
    wait_until_gone(*pids)
    wait_until(lambda: read_record(cluster.state_dir) is None, "the record to be removed")
    assert_nothing_left(cluster, temporary_dir)


def test_full_disk_is_an_error_that_names_the_file_and_leaves_nothing(tmp_path):
    state_dir = tmp_path / "state"
    task = {"state_dir": str(state_dir), "daemons": DAEMONS}

    def no_room() -> None:  # stands in for a full disk: writing any byte fails
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    done = subprocess.run(
        [sys.executable, "-B", FAKE_UP, json.dumps(task)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        preexec_fn=no_room,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    error = json.loads(done.stdout.splitlines()[-1])["error"]
    assert error.startswith(f"cannot write {state_dir}/")
    assert "make room, or use another --state-dir" in error
    assert [path.name for path in state_dir.iterdir()] == ["lock"]
