"""The synthetic engine's fixed rhythm, and the file that tells when each token was made."""

import json

import pytest

from pdd.engine.synthetic.pace import Pace
from pdd.engine.synthetic.step_log import StepLog, read_step_log


def test_computing_counts_in_the_step_and_late_timers_do_not_add_up():
    pace, now_s, made_s = Pace(0.040), 0.0, []
    for number in range(50):
        now_s += pace.wait_s(now_s) + (0.002 if number % 3 else 0.0)  # the timer is late
        made_s.append(now_s)
        now_s += 0.010  # computing
    assert made_s[0] == pytest.approx(0.040)
    assert made_s[-1] == pytest.approx(0.040 * 50 + 0.002)


def test_a_step_that_missed_its_time_comes_at_once_and_is_not_made_up_for():
    pace = Pace(0.040)
    assert pace.wait_s(0.0) == pytest.approx(0.040)
    assert pace.wait_s(0.500) == 0.0
    assert pace.wait_s(0.510) == pytest.approx(0.030)


def test_after_a_rest_the_first_step_is_whole():
    pace = Pace(0.040)
    pace.wait_s(0.0)
    pace.rest()
    assert pace.wait_s(9.0) == pytest.approx(0.040)


def test_the_time_of_every_token_is_read_back(tmp_path):
    log = StepLog(tmp_path / "steps.jsonl")
    log.add(10, ["a/1", "b/1"], [])
    log.add(20, ["b/1", "c/1"], ["b/1"])
    log.add(30, [], [])
    log.forget("a/1")
    log.forget("never seen")
    log.add(40, ["a/2", "c/1"], [])
    log.close()
    assert read_step_log(tmp_path / "steps.jsonl") == {
        "a/1": [10],
        "b/1": [10, 20],
        "c/1": [20, 40],
        "a/2": [40],
    }


def test_a_line_that_is_not_whole_is_left_out(tmp_path):
    path = tmp_path / "steps.jsonl"
    line = json.dumps({"at_ns": 1, "new": {"a": 0}, "of": [0]})
    path.write_text(line + "\n" + line[:20])
    assert read_step_log(path) == {"a": [1]}
