"""The same engine tests where UCX asks the receiver before it moves bytes, as RDMA and GPUs do.

UCX reads its environment once, so they run in a process of their own.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.cluster

HERE = Path(__file__).parent


def test_transfers_are_resumed_cancelled_and_refused_alike_under_rendezvous():
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            str(HERE / "test_engine.py"),
        ],
        env={
            **os.environ,
            "PDD_TEST_RENDEZVOUS": "1",
            "PYTHONPATH": str(HERE.parents[2]),
        },
        cwd=HERE.parents[2],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
