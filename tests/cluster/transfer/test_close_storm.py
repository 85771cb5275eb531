import os
import subprocess
import sys
from pathlib import Path

import pytest

from pdd.transfer.environment import ucx_environment

pytestmark = [pytest.mark.cluster, pytest.mark.fault]


@pytest.mark.parametrize("seed", [31, 32])
def test_engines_survive_peers_that_die_while_they_connect(seed):
    script = Path(__file__).with_name("close_storm.py")
    done = subprocess.run(
        [sys.executable, str(script), str(seed), "30"],
        env={
            **os.environ,
            **ucx_environment(transport="tcp", devices="lo"),
            "PYTHONPATH": str(Path(__file__).parents[3]),
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, f"seed {seed}: {done.returncode}\n{done.stderr[-2000:]}"
    assert done.stdout.endswith("survived\n")
