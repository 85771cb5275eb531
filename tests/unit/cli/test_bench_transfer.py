"""What ``pdd bench transfer --live`` refuses, and what it prints."""

import json

import pytest
from click.testing import CliRunner

from pdd.bench import live
from pdd.bench.live_figures import Kind, Phase, live_row
from pdd.cli.bench_transfer import transfer

ROW = live_row(
    [Phase(kind=Kind.ALONE, gaps_s=(0.04,))], transport="auto", block_bytes=live.BLOCK_BYTES
)


@pytest.fixture
def measured(monkeypatch):
    """The transports that were asked for; nothing is started."""
    asked: list[tuple[str, ...]] = []

    def measure_live(spec, *, report):
        report("measuring")
        asked.append(spec.transports)
        return [ROW]

    monkeypatch.setattr(live, "measure_live", measure_live)
    return asked


@pytest.mark.parametrize(
    "arguments", [["--blocks", "4"], ["--case", "e"], ["--no-digest"], ["--repetitions", "2"]]
)
def test_live_takes_none_of_the_other_measurements_options(measured, arguments):
    result = CliRunner().invoke(transfer, ["--live", *arguments])
    assert result.exit_code == 2
    assert f"{arguments[0]} cannot be combined with --live" in result.output
    assert measured == []


def test_shared_memory_cannot_be_asked_for_alone(measured):
    result = CliRunner().invoke(transfer, ["--live", "--transport", "shm"])
    assert result.exit_code == 2
    assert "--transport tcp, or auto" in result.output
    assert measured == []


@pytest.mark.parametrize(
    ("arguments", "transports"),
    [([], ("auto", "tcp")), (["--transport", "tcp"], ("tcp",))],
)
def test_auto_measures_both_lanes(measured, arguments, transports):
    result = CliRunner().invoke(transfer, ["--live", *arguments, "-o", "json"])
    assert result.exit_code == 0
    assert measured == [transports]
    assert json.loads(result.stdout) == {"live": [ROW]}
    assert "measuring" in result.stderr


def test_people_get_a_line(measured):
    result = CliRunner().invoke(transfer, ["--live"])
    assert result.exit_code == 0
    assert result.stdout.startswith("live engines, case e, auto")


def test_blocks_of_a_shape_and_a_named_case_are_not_both_taken():
    result = CliRunner().invoke(transfer, ["--blocks", "8", "--case", "b"])
    assert result.exit_code == 2
    assert "give one" in result.output
