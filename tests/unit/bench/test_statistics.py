"""Percentiles and goodputs against slow, plain versions of their definitions."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdd.bench.goodput import Objectives, goodputs
from pdd.bench.percentiles import Latencies, per_persona, percentile, stage_summaries, summary
from pdd.bench.samples import Outcome, Sample, columns, merge


def make_sample(index=0, *, due=0.0, sent=None, events=(0.1, 0.2), outcome=Outcome.OK, **more):
    events = [due + offset for offset in events]
    return Sample(
        index=index,
        due_s=due,
        sent_s=due if sent is None else sent,
        end_s=events[-1] if events else due + 1.0,
        event_times_s=events,
        outcome=outcome,
        error="" if outcome is Outcome.OK else "http_429",
        output_tokens=more.pop("tokens", len(events)),
        **more,
    )


@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=60), st.floats(0.1, 100))
def test_a_percentile_is_the_least_value_that_enough_values_do_not_exceed(values, percent):
    ascending = np.sort(np.array(values))
    found = percentile(ascending, percent)
    enough = math.ceil(len(values) * percent / 100)
    assert found == next(v for v in ascending if sum(w <= v for w in values) >= enough)


def test_a_summary_of_nothing_is_null_and_not_zero():
    empty = summary(np.zeros(0))
    assert empty["count"] == 0
    assert empty["p99"] is None
    assert empty["mean"] is None


def test_a_summary_is_in_milliseconds():
    found = summary(np.array([0.001, 0.002, 0.003, 0.010]))
    assert (found["count"], found["mean"], found["p50"], found["p99_9"], found["max"]) == (
        *(4, 4.0, 2.0),
        *(10.0, 10.0),
    )


def test_latencies_count_from_when_a_request_was_due():
    late = make_sample(due=1.0, sent=1.3, events=(0.5, 0.6, 0.9), tokens=3)
    early = make_sample(1, due=1.0, sent=0.9995, events=(0.5,))
    found = Latencies(columns([late, early]))
    assert found.ttft_s == pytest.approx([0.5, 0.5005])
    assert found.e2e_s == pytest.approx([0.9, 0.5005])
    assert found.itl_s == pytest.approx([0.1, 0.3])
    assert found.tpot_s == pytest.approx([0.2])


def test_time_per_token_divides_by_tokens_and_not_by_events():
    found = Latencies(columns([make_sample(events=(0.1, 0.4), tokens=7)]))
    assert found.tpot_s == pytest.approx([0.05])


def test_only_requests_that_ended_well_have_latencies_and_no_gap_spans_two_requests():
    rows = [
        make_sample(0, events=(0.1, 0.2, 0.4)),
        make_sample(1, due=5.0, events=(), outcome=Outcome.REJECTED),
        make_sample(2, due=6.0, events=(0.3, 0.9), outcome=Outcome.FAILED),
        make_sample(3, due=7.0, events=(0.3, 0.5)),
    ]
    found = Latencies(columns(rows))
    assert found.ttft_s == pytest.approx([0.1, 0.3])
    assert found.itl_s == pytest.approx([0.1, 0.2, 0.2])
    assert list(found.gap_owner) == [0, 0, 3]


def test_no_samples_at_all_have_no_latencies():
    samples = columns([])
    found = goodputs(samples, Latencies(samples), Objectives(), duration_s=0.0)
    assert found["all_slos"] == {"good": 0, "of": 0, "fraction": None, "per_s": None}
    assert found["token_deadlines"]["tokens_on_time"] is None


# --- goodput against its definition, request by request --------------------------------------


def plain_goodput(row, objectives):
    """The three definitions in their plainest form."""
    if row.outcome is not Outcome.OK or not row.event_times_s:
        return False, False, False
    events, tokens = row.event_times_s, row.output_tokens
    start = min(row.due_s, row.sent_s)
    ttft_met = events[0] - start <= objectives.ttft_s
    gaps = sorted(b - a for a, b in itertools.pairwise(events))
    several = tokens > 1 and len(events) > 1
    tpot_met = not several or (events[-1] - events[0]) / (tokens - 1) <= objectives.tpot_s
    e2e_met = objectives.e2e_s is None or row.end_s - start <= objectives.e2e_s
    worst = gaps[-math.ceil(len(gaps) / 10) :]
    gaps_met = not gaps or sum(worst) / len(worst) <= objectives.gap_s
    deadline = [start + objectives.ttft_s + i * objectives.tpot_s for i in range(len(events))]
    in_time = all(at <= due for at, due in zip(events, deadline, strict=True))
    return ttft_met and tpot_met and e2e_met, ttft_met and gaps_met, in_time


ROWS = st.lists(
    st.tuples(
        st.floats(0, 50),  # due
        st.lists(st.floats(0.001, 0.4), max_size=25),  # gaps, the first is TTFT
        st.sampled_from(list(Outcome)),
    ),
    max_size=12,
)


@given(rows=ROWS, e2e_s=st.none() | st.floats(0.05, 2.0))
def test_goodputs_agree_with_their_definitions(rows, e2e_s):
    objectives = Objectives(ttft_s=0.2, tpot_s=0.1, gap_s=0.25, e2e_s=e2e_s)
    made = [
        make_sample(index, due=due, events=np.cumsum(gaps).tolist(), outcome=outcome)
        for index, (due, gaps, outcome) in enumerate(rows)
    ]
    samples = columns(made)
    found = goodputs(samples, Latencies(samples), objectives, duration_s=10.0)
    plain = [plain_goodput(row, objectives) for row in made]
    for at, name in enumerate(("all_slos", "worst_gaps", "token_deadlines")):
        wanted = [row[at] for row in plain]
        assert found[name]["good"] == sum(wanted), name
        assert found[name]["of"] == len(made)
        assert found[name]["per_s"] == pytest.approx(sum(wanted) / 10)


def test_rejected_requests_are_in_the_denominator():
    rows = [make_sample(0, events=(0.1,))]
    rows += [make_sample(n, events=(), outcome=Outcome.REJECTED) for n in range(1, 4)]
    samples = columns(rows)
    found = goodputs(samples, Latencies(samples), Objectives(), duration_s=2.0)
    for name in ("all_slos", "worst_gaps", "token_deadlines"):
        assert found[name]["fraction"] == 0.25
        assert found[name]["per_s"] == 0.5
    assert found["token_deadlines"]["tokens_on_time"] == 0.25


def test_a_stall_is_seen_by_the_worst_gaps_and_not_by_the_mean():
    gaps = [0.05] + [0.01] * 18 + [0.3]
    samples = columns([make_sample(events=np.cumsum(gaps).tolist())])
    found = goodputs(samples, Latencies(samples), Objectives(), duration_s=1.0)
    assert found["all_slos"]["good"] == 1
    assert found["worst_gaps"]["good"] == 0


def test_tokens_that_were_early_pay_for_a_later_pause():
    gaps = [0.01] * 10 + [0.3]
    samples = columns([make_sample(events=np.cumsum(gaps).tolist())])
    found = goodputs(samples, Latencies(samples), Objectives(), duration_s=1.0)
    assert found["worst_gaps"]["good"] == 0
    assert found["token_deadlines"]["good"] == 1


def test_an_event_with_several_tokens_brings_them_all_at_its_time():
    samples = columns([make_sample(events=(0.1, 0.161), tokens=4)])
    found = goodputs(
        samples, Latencies(samples), Objectives(ttft_s=0.1, tpot_s=0.03), duration_s=1.0
    )
    # Tokens 0, 1 at 0.1; 2, 3 at 0.161; due at 0.1, 0.13, 0.16, 0.19: token 2 is 1 ms late.
    assert found["token_deadlines"]["good"] == 0
    assert found["token_deadlines"]["tokens_on_time"] == 0.75


# --- columns ---------------------------------------------------------------------------------


@given(st.integers(1, 5), st.lists(st.lists(st.floats(0, 9), max_size=4), max_size=14))
def test_samples_of_several_processes_merge_to_those_of_one(count, event_lists):
    rows = [
        make_sample(index, events=sorted(events), persona=index % 3, request_id=f"r{index}")
        for index, events in enumerate(event_lists)
    ]
    whole = columns(rows)
    merged = merge([columns(rows[at::count]) for at in range(count)])
    assert merged.request_ids == whole.request_ids
    assert merged.errors == whole.errors
    for name in ("index", "due_s", "end_s", "persona", "event_starts", "events", "outcome"):
        assert getattr(merged, name).tolist() == getattr(whole, name).tolist(), name
    assert np.array_equal(merged.stages_ms, whole.stages_ms, equal_nan=True)


def test_stages_are_summed_up_only_where_the_server_tells_them():
    none = columns([make_sample()])
    assert stage_summaries(none) is None
    some = columns([make_sample(), make_sample(1, stages_ms=(1.0, 2.0, 3.0, 4.0))])
    found = stage_summaries(some)
    assert {name: row["max"] for name, row in found.items()} == {
        "queue": 1.0,
        "prefill": 2.0,
        "transfer": 3.0,
        "decode": 4.0,
    }


def test_the_hot_persona_is_told_from_the_others():
    rows = [make_sample(n, events=(0.1 + n / 10,), persona=min(n, 1)) for n in range(3)]
    samples = columns(rows)
    hot, others = per_persona(samples, Latencies(samples))
    assert (hot["requests"], hot["ttft_ms"]["max"]) == (1, 100.0)
    assert (others["requests"], others["ttft_ms"]["max"]) == (2, 300.0)
    plain = columns([make_sample()])
    assert per_persona(plain, Latencies(plain)) is None
