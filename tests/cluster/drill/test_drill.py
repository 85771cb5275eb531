"""The command itself, on real processes: one round, of the fault that no other test makes."""

import json
from pathlib import Path

import pytest

from tests.vllm.cluster import run_cli

pytestmark = [pytest.mark.cluster, pytest.mark.fault, pytest.mark.timeout(200)]
SEED = 6
"""Draws ``cut_off_leader`` first."""


def test_a_leader_that_is_cut_off_is_replaced_and_every_client_has_its_text(tmp_path: Path) -> None:
    done = run_cli(
        *("drill", "schedulers", "--rounds", "1", "--seed", str(SEED)),
        *("--dir", str(tmp_path), "-o", "json"),
        timeout_s=180,
    )
    assert done.returncode == 0, f"seed {SEED}: {done.stderr}"
    report = json.loads(done.stdout)
    (kind,) = report["kinds"]
    assert kind == "cut_off_leader"
    assert report["promises_broken"] == 0
    assert report["requests"] > 9
    assert report["ended_elsewhere"] > 0
    figures = report["kinds"][kind]
    assert figures["new_leader_ms"]["count"] == 1
    assert figures["placed_ms"]["count"] == 1
    assert figures["others_gap_ms"]["count"] > 0
    assert list(tmp_path.iterdir()) == [], "a passed drill leaves nothing behind"
