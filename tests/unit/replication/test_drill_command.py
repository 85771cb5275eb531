"""What `pdd drill raft` does with the verdict."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pdd.cli.main import main
from pdd.replication.drill import run
from pdd.replication.drill.run import DrillReport, DrillResult
from pdd.replication.drill.soft_load import SoftFigures


def pretend(monkeypatch: pytest.MonkeyPatch, *faults: str) -> None:
    async def run_drill(directory: Path, *, rounds: int, seed: int, say: object) -> DrillResult:
        (directory / "evidence").write_text("log")
        report = DrillReport(
            rounds=rounds,
            seed=seed,
            acknowledged=10,
            acknowledged_lost=len(faults),
            leaders_per_term_max=1,
            state_hashes_equal=True,
            linearizable=True,
            failover_ms_p50=1.0,
            failover_ms_max=2.0,
        )
        soft = SoftFigures(
            committed_count=3, committed_bytes=4_000_000, lost_count=1, with_ms=[2.0], without_ms=[]
        )
        return DrillResult(report=report, faults=faults, snapshots_hit=0, soft=soft)

    monkeypatch.setattr(run, "run_drill", run_drill)


def test_a_passed_drill_exits_with_0_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pretend(monkeypatch)
    assert main(["drill", "raft", "--seed", "7", "--dir", str(tmp_path), "-o", "json"]) == 0
    output = capsys.readouterr()
    assert json.loads(output.out)["seed"] == 7
    assert "seed 7" in output.err
    assert "soft entries: 3 committed (4.0 MB" in output.err
    assert list(tmp_path.iterdir()) == []


def test_a_broken_promise_exits_with_1_says_which_and_keeps_the_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pretend(monkeypatch, "write 3 on k was acknowledged and is gone")
    assert main(["drill", "raft", "--seed", "7", "--dir", str(tmp_path), "-o", "json"]) == 1
    output = capsys.readouterr()
    assert json.loads(output.out)["acknowledged_lost"] == 1
    assert "1 promises broken (seed 7)" in output.err
    assert "write 3 on k was acknowledged and is gone" in output.err
    (kept,) = tmp_path.iterdir()
    assert str(kept) in output.err
    assert (kept / "evidence").exists()
