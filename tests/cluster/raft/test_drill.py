"""The commands themselves, on real processes with real disks."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.fault]


def pdd(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pdd.cli.main", *arguments],
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )


@pytest.mark.timeout(180)
def test_a_short_drill_keeps_every_promise(tmp_path: Path) -> None:
    seed = 20260
    done = pdd(
        "drill", "raft", "--rounds", "3", "--seed", str(seed), "--dir", str(tmp_path), "-o", "json"
    )
    assert done.returncode == 0, f"seed {seed}: {done.stderr}"
    report = json.loads(done.stdout)
    assert list(report) == [
        "rounds",
        "seed",
        "acknowledged",
        "acknowledged_lost",
        "leaders_per_term_max",
        "state_hashes_equal",
        "linearizable",
        "failover_ms_p50",
        "failover_ms_max",
    ]
    assert report["acknowledged"] > 100
    assert report["failover_ms_max"] > 0
    promises = {
        "rounds": 3,
        "seed": seed,
        "acknowledged_lost": 0,
        "leaders_per_term_max": 1,
        "state_hashes_equal": True,
        "linearizable": True,
    }
    assert {key: report[key] for key in promises} == promises
    soft = re.search(r"soft entries: (\d+) committed", done.stderr)
    assert soft is not None, done.stderr
    assert int(soft.group(1)) > 0
    assert list(tmp_path.iterdir()) == [], "a passed drill leaves nothing behind"


@pytest.mark.timeout(180)
def test_the_benchmark_reports_each_window_and_the_disk(tmp_path: Path) -> None:
    done = pdd("bench", "raft", "--seconds", "0.5", "--dir", str(tmp_path), "-o", "json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    fsync = {"fsync_p50_ms", "fsync_p99_ms"}
    assert set(report) == {"rows", "paced_rows", "soft_rows", "longest_pause_ms", *fsync}
    assert report["longest_pause_ms"] > 0
    assert [row["load"] for row in report["soft_rows"]] == ["none", "sequences", "directory"]
    for row in report["soft_rows"]:
        assert 0 < row["hard_p50_ms"] <= row["hard_p99_ms"]
        assert (row["soft_bytes_per_s"] > 0) == (row["load"] != "none")
    assert [row["window"] for row in report["rows"]] == [1, 16, 64]
    for row in report["rows"]:
        assert list(row) == ["window", "entries_per_s", "p50_ms", "p99_ms"]
        assert row["entries_per_s"] > 0
        assert 0 < row["p50_ms"] <= row["p99_ms"]
    [paced] = report["paced_rows"]
    assert (paced["window"], paced["offered_per_s"]) == (64, 6_000)
    assert 0 < paced["entries_per_s"] <= 6_000
    assert 0 < paced["p50_ms"] <= paced["p99_ms"]
    assert 0 < report["fsync_p50_ms"] <= report["fsync_p99_ms"]


@pytest.mark.timeout(60)
def test_replicas_die_with_the_drill_that_started_them(tmp_path: Path) -> None:
    drill = subprocess.Popen(
        [sys.executable, "-m", "pdd.cli.main", "drill", "raft", "--dir", str(tmp_path)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert drill.stderr is not None
    try:
        line = ""
        while not line.startswith("round 1"):
            line = drill.stderr.readline()
            assert line, "the drill ended before its first round"
        replicas = children_of(drill.pid)
        assert len(replicas) == 3
    finally:
        drill.send_signal(signal.SIGKILL)
        drill.wait()
        drill.stderr.close()
    for pid in replicas:
        wait_until_gone(pid)


def children_of(pid: int) -> list[int]:
    text = ""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        text += (thread / "children").read_text()
    return [int(child) for child in text.split()]


def wait_until_gone(pid: int) -> None:
    """They are not ours to wait for, so look; the test's own timeout ends it."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        import select

        assert select.select([descriptor], [], [], 30.0)[0], f"{pid} still runs"
    finally:
        os.close(descriptor)
