"""``pdd down`` on clusters in every state."""

import os
import re
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from pdd.daemon.supervisor_down import stop_cluster
from pdd.daemon.supervisor_members import find_members
from pdd.daemon.supervisor_state import StateDir, read_record
from tests.cluster.supervisor.harness import wait_until_gone

pytestmark = pytest.mark.cluster


def test_down_stops_a_running_cluster_and_says_so(start):
    cluster = start()
    cluster.wait_until_ready()
    said = stop_cluster(cluster.state_dir)
    assert re.fullmatch(r"stopped scheduler-0, prefill-0, decode-0 in \d+\.\d s", said)
    assert cluster.wait() == 0
    assert find_members(cluster.cluster_id) == []


def test_down_without_a_cluster_is_no_error(tmp_path):
    assert stop_cluster(tmp_path / "never") == "not running"
    assert not (tmp_path / "never").exists()


def test_down_twice_says_not_running(start):
    cluster = start()
    cluster.wait_until_ready()
    stop_cluster(cluster.state_dir)
    assert stop_cluster(cluster.state_dir) == "not running"


def test_down_cleans_up_when_supervisor_and_guard_were_both_killed(start, tmp_path):
    file = tmp_path / "orphan"
    daemons = {"scheduler-0": ["ready"], "decode-0": ["orphan", str(file)]}
    cluster = start(daemons=daemons)
    cluster.wait_until_ready()
    pid = cluster.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    (guard,) = {int(child) for child in children} - set(cluster.pids().values())
    os.kill(guard, signal.SIGKILL)
    scheduler, daemon = cluster.pids().values()
    cluster.stop(signal.SIGKILL)
    wait_until_gone(scheduler, daemon)  # nobody but the kernel told them
    said = stop_cluster(cluster.state_dir)
    assert said.startswith("stopped scheduler-0, decode-0 in ")
    assert "of a killed supervisor were left" in said
    wait_until_gone(int(file.read_text()))
    assert find_members(cluster.cluster_id) == []
    assert read_record(cluster.state_dir) is None


def test_down_never_signals_a_process_that_only_has_the_old_pid(start, tmp_path):
    cluster = start()
    cluster.wait_until_ready()
    innocent = read_record(cluster.state_dir)
    other = StateDir.lock(tmp_path / "other")
    other.write_record(
        replace(
            innocent, cluster_id="gone", supervisor_start_ticks=innocent.supervisor_start_ticks - 1
        )
    )
    other.close()
    assert stop_cluster(tmp_path / "other") == "not running"
    assert read_record(tmp_path / "other") is None
    assert cluster.stop() == 0  # it was there to be stopped
