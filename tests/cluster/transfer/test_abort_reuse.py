"""Blocks are given away the moment their transfer is over; nothing may write to them afterwards."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pdd.transfer.environment import ucx_environment

pytestmark = [pytest.mark.cluster, pytest.mark.fault]

ROUNDS = int(os.environ.get("PDD_ABORT_ROUNDS", "150"))
"""Raise it for a long proof: 5,000 rounds take about two minutes per landing."""


@pytest.mark.parametrize(
    ("landing", "scheme"),
    [
        ("staged", "default"),
        ("direct", "default"),
        ("shared", "default"),
        ("shared-plain", "default"),
        ("staged", "rendezvous"),
        ("direct", "rendezvous"),
    ],
)
@pytest.mark.parametrize("seed", [1])
def test_no_write_comes_late_after_random_aborts_and_immediate_reuse(landing, scheme, seed):
    script = Path(__file__).with_name("abort_reuse.py")
    environment = {
        **os.environ,
        **ucx_environment(transport="tcp", devices="lo"),
        "PYTHONPATH": str(Path(__file__).parents[3]),
    }
    if scheme == "rendezvous":  # as on GPU nodes, where UCX chooses
        del environment["UCX_RNDV_SCHEME"]
    done = subprocess.run(
        [sys.executable, str(script), str(seed), str(ROUNDS), landing],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60 + ROUNDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads(done.stdout)
    print(result)
    assert result["late_writes"] == 0
    assert result["wrong_bytes"] == 0
    assert result["never_ended"] == []
    outcomes = result["outcomes"]
    assert outcomes["TargetCompleted"] > 0
    assert outcomes["TargetCancelled"] > 0
    assert outcomes["TargetFailed"] > 0
    assert sum(n for name, n in outcomes.items() if name.startswith("Target")) == result["keys"]
    assert sum(n for name, n in outcomes.items() if name.startswith("rel")) == result["keys"]
