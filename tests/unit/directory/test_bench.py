"""``pdd bench directory``, small."""

import json

import pytest

from pdd.cli.main import main


def test_the_benchmark_prints_one_row_per_size_as_json(capfd: pytest.CaptureFixture[str]) -> None:
    arguments = ["bench", "directory", "--blocks", "10000", "--blocks", "20000", "--nodes", "16"]
    assert main([*arguments, "-o", "json"]) == 0
    told = json.loads(capfd.readouterr().out)
    rows = told["rows"]
    assert told["decision_nodes"] == 8
    assert 0 < told["decision_us_p50"] <= told["decision_us_p99"]
    assert told["decisions_per_s"] > 0
    assert [row["nodes"] for row in rows] == [16, 16]
    assert all(row["blocks"] >= size for row, size in zip(rows, (10_000, 20_000), strict=True))
    assert set(rows[0]) == {
        *("blocks", "nodes", "bytes_per_key", "lookup_us_p50", "lookup_us_p99"),
        *("events_per_s", "apply_ms_max"),
    }


def test_a_size_out_of_range_is_refused_with_the_range(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "directory", "--blocks", "5"]) == 2
    assert "10000<=x<=100000000" in capfd.readouterr().err
