"""``pdd bench gateway`` on real daemons, small."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
COMMAND = (sys.executable, "-m", "pdd.cli.main", "bench", "gateway")
SMALL = ("--streams", "12", "--duration", "1.5", "--fast-duration", "1", "--fast-rate", "50")
pytestmark = pytest.mark.cluster


def test_every_token_is_delivered_and_every_documented_figure_is_there():
    done = subprocess.run(
        [
            *(*COMMAND, *SMALL, "--requests-duration", "0.5", "--memory-requests", "600"),
            *("--clients", "8", "--decode", "1", "-o", "json"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["streams"] == 12
    assert document["duration_s"] == 1.5
    assert document["tokens_delivered"] == document["tokens_expected"] == 12 * 45
    assert (document["tokens_lost"], document["tokens_doubled"]) == (0, 0)
    assert (document["fast_tokens_lost"], document["fast_tokens_doubled"]) == (0, 0)
    assert (document["failed"], document["rejected"], document["errors"]) == (0, 0, {})
    assert document["streams_unmatched"] == 0
    assert document["added_itl_ms"]["count"] == 12 * 44
    assert document["rss_requests"] >= 600
    for name in (
        *("tokens_per_s", "added_itl_p99_ms", "scheduler_cpu_us_per_token"),
        *("scheduler_cpu_us_per_request_1tok", "requests_per_s_1tok", "ceiling_tokens_per_s"),
        *("generator_ceiling_tokens_per_s", "scheduler_cpu_us_per_request_2k"),
    ):
        assert document[name] > 0, name


def test_a_wrong_token_is_seen():
    """Nodes with other weights than the oracle's say other words: the check is no formality."""
    done = subprocess.run(
        [
            *(*COMMAND, *SMALL, "--only", "streams", "--decode", "1", "-o", "json"),
            *("--set", "synthetic.model_seed=7"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 1, done.stderr
    assert "error: answers differ" in done.stderr
    document = json.loads(done.stdout)
    assert document["tokens_delivered"] == document["tokens_expected"]
    assert document["tokens_lost"] == document["tokens_doubled"] > 400


def test_ctrl_c_stops_the_cluster_and_prints_what_there_is():
    process = subprocess.Popen(
        [*COMMAND, "--streams", "4", "--duration", "600", "-o", "json"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        for line in process.stderr:
            if "tokens at 24/s" in line:
                break
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130
    document = json.loads(out)
    assert document["interrupted"] is True
    assert document["generator_ceiling_tokens_per_s"] > 0
    assert document["tokens_per_s"] is None
