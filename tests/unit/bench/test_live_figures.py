"""Rows of the live measurement, from streams and counters that are made up."""

import json

import pytest

from pdd.bench.live_figures import (
    Kind,
    Phase,
    Reading,
    describe,
    gaps_s,
    live_row,
    rates_gb_per_s,
)

BLOCK_BYTES = 1_000_000
SIZE_BYTES = 24 * BLOCK_BYTES


def alone(*gaps: float) -> Phase:
    return Phase(kind=Kind.ALONE, gaps_s=gaps)


def busy(*gaps: float, sizes=(SIZE_BYTES, SIZE_BYTES), **changed) -> Phase:
    values = {
        "readings": (
            Reading(transfers=1, moving_s=0.012),
            Reading(transfers=1, moving_s=0.024),
        ),
        "lane_bytes": (("shared_memory", sum(sizes)), ("tcp", 0)),
        "cpu_s": 0.0048,
        **changed,
    }
    return Phase(kind=Kind.BUSY, gaps_s=gaps, sizes=sizes, **values)


def row_of(*phases: Phase):
    return live_row(phases, transport="auto", block_bytes=BLOCK_BYTES)


def test_gaps_begin_with_the_first_request_beside_the_stream():
    assert gaps_s((0.0, 1.0, 3.0, 6.0)) == (1.0, 2.0, 3.0)
    assert gaps_s((0.0, 1.0, 3.0, 6.0), after_s=1.0) == (2.0, 3.0)
    assert gaps_s((0.0,)) == ()


def test_rates_are_of_the_time_that_blocks_moved():
    assert rates_gb_per_s([busy(0.04)]) == pytest.approx([2.0, 1.0])
    several = busy(0.04, readings=(Reading(transfers=2, moving_s=0.024),))
    assert rates_gb_per_s([several]) == pytest.approx([2.0])


def test_transfers_of_unequal_sizes_give_no_rates():
    assert rates_gb_per_s([busy(0.04, sizes=(SIZE_BYTES, BLOCK_BYTES))]) == []


def test_a_reading_without_time_gives_no_rate():
    assert rates_gb_per_s([busy(0.04, readings=(Reading(transfers=1, moving_s=0.0),))]) == []


def test_the_row_sets_the_stream_beside_transfers_against_the_one_alone():
    row = row_of(alone(0.040, 0.040), busy(0.040, 0.050), alone(0.040), busy(0.040))
    assert row == {
        "case": "e",
        "transport": "auto",
        "lane": "shared_memory",
        "blocks": 24,
        "transfers": 4,
        "gb_per_s": 1.5,
        "gb_per_s_min": 1.0,
        "gb_per_s_max": 2.0,
        "itl_p50_ms_alone": 40.0,
        "itl_p50_ms_held": None,
        "itl_p50_ms_busy": 40.0,
        "itl_p99_ms_alone": 40.0,
        "itl_p99_ms_held": None,
        "itl_p99_ms_busy": 50.0,
        "itl_p99_ratio": 1.25,
        "itl_p99_ratio_held": None,
        "cpu_s_per_gb": 0.1,
        "texts_ok": True,
    }
    assert json.loads(json.dumps(row)) == row
    assert "(1.25 x, goal 1.3;" in describe(row)
    assert "texts as undisturbed" in describe(row)


def test_the_row_tells_what_is_due_to_the_requests_themselves():
    held = Phase(kind=Kind.HELD, gaps_s=(0.080,), sizes=(BLOCK_BYTES,))
    row = row_of(alone(0.040), held, busy(0.100))
    assert (row["itl_p99_ratio"], row["itl_p99_ratio_held"]) == (2.5, 1.25)
    assert row["blocks"] == 24


def test_bytes_over_two_lanes_name_both():
    mixed = busy(0.04, lane_bytes=(("shared_memory", 5), ("tcp", 7)))
    assert row_of(mixed)["lane"] == "shared_memory+tcp"


def test_one_text_that_differs_is_told():
    row = row_of(alone(0.04), busy(0.04, texts_ok=False))
    assert row["texts_ok"] is False
    assert "texts DIFFER" in describe(row)


def test_a_run_that_moved_nothing_has_no_figures_and_is_not_well():
    row = row_of(alone(0.04))
    assert (row["gb_per_s"], row["cpu_s_per_gb"], row["itl_p99_ratio"]) == (None, None, None)
    assert (row["blocks"], row["lane"], row["texts_ok"]) == (0, None, False)
    assert "0 transfers" in describe(row)
