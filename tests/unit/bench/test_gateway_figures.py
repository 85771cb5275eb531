"""What is made of a gateway measurement's samples."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdd.bench.cores import CorePlan, kept_to, limited_by, move_tree, plan_cores
from pdd.bench.gateway import GatewayBench, GatewayOptions
from pdd.bench.gateway_expected import Oracle
from pdd.bench.gateway_figures import added_itl, steady_tokens_per_s
from pdd.bench.process_tree import tree_usage
from pdd.bench.samples import Outcome, Sample, columns
from pdd.cli.main import main
from pdd.core.errors import PddError


def stream(index, events):
    return Sample(
        index=index,
        due_s=0.0,
        sent_s=0.0,
        end_s=events[-1] if events else 1.0,
        event_times_s=events,
        outcome=Outcome.OK,
        request_id=f"r{index}",
    )


def test_a_steady_delay_adds_nothing_to_the_gaps():
    made_s = [5.0, 5.04, 5.08, 5.12]
    samples = columns([stream(0, [at - 5.0 + 0.003 for at in made_s])])
    found = added_itl(samples, {"r0": [round(at * 1e9) for at in made_s]}, origin_s=5.0)
    assert found.itl_s == pytest.approx([0.0] * 3, abs=1e-7)
    assert found.delivery_s == pytest.approx([0.003] * 4, abs=1e-7)


def test_a_late_token_adds_to_its_gap_and_takes_from_the_next():
    samples = columns([stream(0, [0.003, 0.053, 0.083])])
    found = added_itl(samples, {"r0": [0, 40_000_000, 80_000_000]}, origin_s=0.0)
    assert found.itl_s == pytest.approx([0.010, -0.010])


@given(
    st.lists(
        st.lists(st.tuples(st.floats(0.001, 1.0), st.floats(0.0, 0.5)), max_size=8), max_size=5
    )
)
def test_added_itl_is_the_clients_gap_minus_the_engines(streams):
    rows, steps, wanted = [], {}, []
    for index, tokens in enumerate(streams):
        made, seen, at = [], [], 0.0
        for gap, late in tokens:
            at += gap
            made.append(at)
            seen.append(at + late)
        rows.append(stream(index, seen))
        steps[f"r{index}"] = [round(one * 1e9) for one in made]
        wanted += [(seen[n] - seen[n - 1]) - (made[n] - made[n - 1]) for n in range(1, len(tokens))]
    found = added_itl(columns(rows), steps, origin_s=0.0)
    assert found.itl_s == pytest.approx(wanted, abs=1e-6)
    assert found.unmatched == sum(not tokens for tokens in streams)


def test_a_stream_with_another_number_of_tokens_than_steps_has_no_figures():
    samples = columns([stream(0, [0.1, 0.2]), stream(1, [0.1, 0.2])])
    found = added_itl(samples, {"r0": [1, 2, 3], "r1": [1, 2]}, origin_s=0.0)
    assert found.unmatched == 1
    assert len(found.delivery_s) == 2


def test_the_steady_rate_is_that_of_the_time_when_all_streams_were_open():
    ramp = [stream(n, [n / 10 + step / 10 for step in range(40)]) for n in range(10)]
    assert steady_tokens_per_s(columns(ramp)) == pytest.approx(100.0, rel=0.05)
    assert steady_tokens_per_s(columns([])) == 0.0
    one_by_one = [stream(0, [0.0, 1.0]), stream(1, [2.0, 3.0])]
    assert steady_tokens_per_s(columns(one_by_one)) == pytest.approx(1.0)


def test_a_process_tree_counts_its_children():
    own = tree_usage(os.getpid())
    child = subprocess.Popen(
        [sys.executable, "-c", "import sys; print('up', flush=True); sys.stdin.read()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert child.stdout.readline() == b"up\n"
        both = tree_usage(os.getpid())
    finally:
        child.communicate()
    assert both.process_count == own.process_count + 1
    assert both.cpu_s >= own.cpu_s
    assert both.rss_bytes > 0


def test_a_process_that_has_ended_is_an_error_and_not_zero():
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    with pytest.raises(PddError, match=f"process {child.pid} has ended"):
        tree_usage(child.pid)


def test_the_oracle_says_the_same_words_again_and_others_for_another_prompt():
    one, other = Oracle(), Oracle()
    answer = one.answer("a hat and a tree", token_count=30)
    assert answer == other.answer("a hat and a tree", token_count=30)
    assert answer[:10] == one.answer("a hat and a tree", token_count=10)
    assert answer != one.answer("a hat and a cat", token_count=30)
    assert all(answer)  # one event per token: none is without a text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--streams", "0"), "0 is not in the range"),
        (("--only", "nothing"), "'nothing' is not one of"),
        (("--set", "nonsense"), "nonsense"),
    ],
)
def test_wrong_options_are_refused_before_anything_starts(arguments, message, capsys):
    assert main(["bench", "gateway", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_the_scheduler_has_a_core_for_itself_where_there_are_two():
    assert plan_cores([3, 1, 2], divide=True) == CorePlan(scheduler=(1,), others=(2, 3))
    assert plan_cores([3, 1], divide=False) == CorePlan(scheduler=(1, 3), others=(1, 3))
    assert plan_cores([4], divide=True) == CorePlan(scheduler=(4,), others=(4,))


def test_a_process_that_is_moved_takes_its_threads_and_children_along():
    core = min(os.sched_getaffinity(0))
    code = (
        "import subprocess, sys, threading\n"
        "threading.Thread(target=sys.stdin.read).start()\n"
        "child = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE)\n"
        "print(child.pid, flush=True)\n"
        "threading.Event().wait()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            child = int(process.stdout.readline())
            move_tree(process.pid, [core])
            tasks = os.listdir(f"/proc/{process.pid}/task")
            assert len(tasks) == 2
            for task in (*tasks, child):
                assert os.sched_getaffinity(int(task)) == {core}
        finally:
            process.kill()
    with kept_to([core]):
        assert os.sched_getaffinity(0) == {core}


@pytest.mark.parametrize(
    ("busy", "reached", "said"),
    [
        ({"the scheduler": 0.2, "a node": 0.5}, 99.0, ""),
        ({"the scheduler": 0.9, "a node": 0.5}, 50.0, "the scheduler, which has one thread"),
        (
            {"the scheduler": 0.8, "a node": 0.8, "the generator": 0.2},
            50.0,
            "this machine's 2 cores",
        ),
        ({"the scheduler": 0.1, "a node": 0.2}, 50.0, "waiting: neither"),
    ],
)
def test_what_a_rate_was_limited_by_is_said(busy, reached, said):
    found = limited_by(busy, core_count=2, reached=reached, offered=100.0)
    assert found.startswith(said)
    assert bool(found) == bool(said)


def test_memory_grows_over_requests_of_its_own_and_not_over_those_of_the_loads_before(monkeypatch):
    """With fewer than the loads had sent already, nothing ran between the two readings."""
    sent = []

    def closed(self, cluster, shape, *, duration_s=None, requests=None):
        sent.append(1500 if requests is None else requests)
        samples = columns([stream(index, [0.1]) for index in range(sent[-1])])
        load = SimpleNamespace(samples=samples, duration_s=1.0)
        return SimpleNamespace(load=load, scheduler_cpu_s=1.0, node_cpu_s=1.0)

    monkeypatch.setattr(GatewayBench, "_closed", closed)
    monkeypatch.setattr(GatewayBench, "_note", lambda self, measured, phase: None)
    monkeypatch.setattr(
        "pdd.bench.gateway.tree_usage", lambda pid: SimpleNamespace(rss_bytes=2**20 * sum(sent))
    )
    bench = GatewayBench(
        GatewayOptions(memory_requests=1000), say=lambda text: None, environment={}
    )
    bench._request_loads(SimpleNamespace(scheduler_pid=1))
    assert sent[-2:] == [100, 900]
    assert bench.document["rss_requests"] == 1000
    assert bench.document["rss_mib_after_all"] - bench.document["rss_mib_after_tenth"] == 900
