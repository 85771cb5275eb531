"""What `pdd drill schedulers` does with the verdict."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pdd.cli.main import main
from pdd.drill import run
from pdd.drill.faults import Fault
from pdd.drill.run import DrillResult
from pdd.drill.verdict import Cost


def pretend(monkeypatch: pytest.MonkeyPatch, *faults: str) -> None:
    async def run_drill(
        directory: Path, *, rounds: int, seed: int, say: Callable[[str], None]
    ) -> DrillResult:
        (directory / "evidence").write_text("log")
        cost = Cost(new_leader_ms=[1500.0], placed_ms=[2000.0])
        return DrillResult(
            seed=seed, rounds=rounds, faults=list(faults), costs={Fault.KILL_LEADER: cost}
        )

    monkeypatch.setattr(run, "run_drill", run_drill)


def test_a_passed_drill_exits_with_0_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pretend(monkeypatch)
    assert main(["drill", "schedulers", "--seed", "7", "--dir", str(tmp_path), "-o", "json"]) == 0
    output = capsys.readouterr()
    report = json.loads(output.out)
    assert (report["seed"], report["promises_broken"]) == (7, 0)
    assert report["new_leader_ms_max"] == 1500.0
    assert report["kinds"]["kill_leader"]["placed_ms"] == {"count": 1, "p50": 2000.0, "max": 2000.0}
    assert "seed 7" in output.err
    assert list(tmp_path.iterdir()) == []


def test_a_broken_promise_exits_with_1_says_which_and_keeps_the_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pretend(monkeypatch, "round 3: a request failed")
    assert main(["drill", "schedulers", "--dir", str(tmp_path)]) == 1
    output = capsys.readouterr()
    assert "1500 / 1500" in output.out
    assert "1 promises broken" in output.err
    assert "round 3: a request failed" in output.err
    (kept,) = tmp_path.iterdir()
    assert (kept / "evidence").exists()
