"""The figures of a run with arriving prompts, and their medians."""

import asyncio
import random
import time

import aiohttp
import pytest

from pdd.bench.interference import InterferenceSpec, _Clients
from pdd.bench.interference_figures import Case, Gap, Run, interference_document


def run_of(case: Case, *lengths_s: float, ttft_s: tuple[float, ...] = (1.0,)) -> Run:
    return Run(
        case=case,
        duration_s=10.0,
        gaps=[Gap(float(index), length) for index, length in enumerate(lengths_s)],
        token_count=len(lengths_s) + 1,
        arrivals=[(float(index), ttft) for index, ttft in enumerate(ttft_s)],
    )


def test_the_figures_of_one_run() -> None:
    run = run_of(Case.COLOCATED, *[0.02] * 97, 0.25, 0.3, 1.1, ttft_s=(2.0, 1.0, 4.0))
    assert run.figures() == {
        "gap_max_ms": 1100.0,
        "gaps_over_250ms": 2,
        "itl_p50_ms": 20.0,
        "itl_p99_ms": 300.0,
        "decode_tokens_per_s": 10.1,
        "ttft_p50_s": 2.0,
    }


def test_a_run_without_gaps_or_prompts_tells_nothing_of_them() -> None:
    figures = Run(case=Case.UNLOADED, duration_s=1.0).figures()
    assert figures["gap_max_ms"] is None
    assert figures["ttft_p50_s"] is None
    assert (figures["gaps_over_250ms"], figures["decode_tokens_per_s"]) == (0, 0.0)


def test_the_longest_gap_of_a_case_is_the_median_of_its_runs_longest_gaps() -> None:
    longest = (0.1, 0.9, 0.2)
    runs = [run_of(Case.DISAGGREGATED, 0.01, 0.02, gap) for gap in longest]
    runs += [run_of(case, 0.01) for case in (Case.COLOCATED, Case.UNLOADED)]
    document = interference_document(runs, spec={"seed": 1})
    assert document["disaggregated"]["gap_max_ms"] == 200.0
    assert document["colocated"]["gap_max_ms"] == 10.0
    assert [row["gap_max_ms"] for row in document["runs"][:3]] == [100.0, 900.0, 200.0]
    for case in ("disaggregated", "colocated", "unloaded"):
        assert list(document[case]) == [
            "gap_max_ms",
            "gaps_over_250ms",
            "itl_p50_ms",
            "itl_p99_ms",
            "decode_tokens_per_s",
            "ttft_p50_s",
        ]


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        (Case.DISAGGREGATED, ["--prefill 1", "--threads-per-node 1"]),
        (Case.COLOCATED, ["--prefill 0", "--threads-per-node 2", "max_num_batched_tokens=256"]),
    ],
)
def test_both_clusters_get_all_cores_between_them(case: Case, expected: list[str]) -> None:
    options = " ".join(InterferenceSpec(settings=("engine.block_size=64",)).up_options(case))
    assert all(part in options for part in [*expected, "engine.block_size=64"])


@pytest.mark.parametrize(("silence_s", "long_gaps"), [(5.0, [5.0]), (0.02, [])])
async def test_a_stall_that_outlasts_the_run_is_a_gap(
    monkeypatch: pytest.MonkeyPatch, silence_s: float, long_gaps: list[float]
) -> None:
    began_s = time.monotonic()
    run = Run(case=Case.COLOCATED, duration_s=10.0)

    async def ask(self, prompt_tokens, output_tokens, on_tokens):
        for at_s in (9.99 - silence_s, 10.0 - silence_s):
            on_tokens(1, began_s + at_s)
        await asyncio.Event().wait()

    monkeypatch.setattr(_Clients, "_ask", ask)
    async with aiohttp.ClientSession() as http:
        clients = _Clients(http, "http://nobody", random.Random(1))
        stream = asyncio.create_task(clients._stream(run, began_s))
        await asyncio.sleep(0)
        stream.cancel()
        await asyncio.wait([stream])
    assert run.token_count == 2
    assert [round(gap.length_s, 3) for gap in run.gaps] == [0.01, *long_gaps]
