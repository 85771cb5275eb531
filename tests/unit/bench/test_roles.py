"""The mixed-shift load, its figures, and the picture; without a cluster."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from pdd.bench.goodput import Objectives
from pdd.bench.prompts import Calibration
from pdd.bench.roles import ENGINE, RolesOptions, set_split, text_seed
from pdd.bench.roles_figures import figures, summary_of
from pdd.bench.roles_load import SHAPES, output_s, phases_of, prompt_s, shifting_load
from pdd.bench.roles_picture import draw_roles
from pdd.bench.roles_watch import RoleWatch
from pdd.bench.samples import Outcome, Sample, columns
from pdd.bench.target import BodyMaker, BodyOptions, Endpoint
from pdd.cli.bench import bench
from pdd.core.identity import Role
from pdd.timing.roofline import work_of

HEAVIES = (Role.PREFILL, Role.DECODE)
PHASES = phases_of(HEAVIES, duration_s=10.0, load_nodes=2.0, engine=ENGINE)
OBJECTIVES = Objectives(ttft_s=1.0, tpot_s=0.1)


def test_each_phase_asks_for_so_many_nodes_of_its_heavy_duty() -> None:
    for seed in range(5):
        planned = shifting_load(PHASES, seed=seed)
        first = [one for one in planned if one.due_s < 10.0]
        second = [one for one in planned if one.due_s >= 10.0]
        assert all(one.due_s < 20.0 for one in second)
        prefill = len(first) * prompt_s(ENGINE, SHAPES[Role.PREFILL].input_tokens) / 10.0
        decode = len(second) * output_s(ENGINE, SHAPES[Role.DECODE]) / 10.0
        assert prefill == pytest.approx(2.0, rel=0.4), seed  # Poisson: 45 of them, more or less
        assert decode == pytest.approx(2.0, rel=0.4), seed
        assert [one.index for one in planned] == list(range(len(planned)))
        assert {one.output_tokens for one in first} == {SHAPES[Role.PREFILL].output_tokens}


def test_a_prompt_costs_its_chunks_and_an_output_its_share_of_full_steps() -> None:
    chunk = ENGINE.cost.step_s(work_of([(0, 512)])) + ENGINE.cost.step_s(work_of([(512, 600)]))
    assert prompt_s(ENGINE, 600) == pytest.approx(chunk)
    step = ENGINE.cost.step_s(work_of([(150, 151)] * ENGINE.sequence_count_max))
    assert output_s(ENGINE, SHAPES[Role.DECODE]) == pytest.approx(60 * step / 12)


def sample(index: int, due_s: float, *, ttft_s: float = 0.5, **fields: Any) -> Sample:
    defaults: dict[str, Any] = {
        "index": index,
        "due_s": due_s,
        "sent_s": due_s,
        "end_s": due_s + ttft_s + 0.05,
        "outcome": Outcome.OK,
        "event_times_s": (due_s + ttft_s, due_s + ttft_s + 0.05),
        "output_tokens": 2,
    }
    return Sample(**(defaults | fields))


def document() -> dict[str, Any]:
    """One late, one cut off and one failed request in the second phase."""
    samples = columns(
        [
            sample(0, 1.0),
            sample(1, 3.0),
            sample(2, 11.0),
            sample(3, 12.0, ttft_s=1.5),
            sample(4, 13.0, outcome=Outcome.FAILED, error="unfinished", event_times_s=()),
            sample(5, 14.0, outcome=Outcome.FAILED, error="disconnected", event_times_s=()),
        ]
    )
    pool = {"nodes": 2, "load_nodes": 1.0, "pressure": 0.7, "wanted": 2}
    switch = {
        "at_s": 4.0,
        "node": "decode-1",
        "target": "prefill",
        "by": "controller",
        "stage": "done",
    }
    runs = [
        {
            "seed": 1,
            "variant": variant,
            **figures(samples, OBJECTIVES, PHASES),
            "pools": [{"at_s": at_s, "prefill": pool, "decode": pool} for at_s in (0.0, 10.0)],
            "switches": [switch] if variant == "auto" else [],
        }
        for variant in ("auto", "2:2")
    ]
    return {
        "runs": runs,
        "summary": summary_of(runs),
        "load": {
            "node_count": 4,
            "load_nodes": 2.0,
            "objectives": {"ttft_s": 1.0, "tpot_s": 0.1},
            "phases": [
                {"heavy": one.heavy.value, "begin_s": one.begin_s, "duration_s": one.duration_s}
                for one in PHASES
            ],
        },
    }


def test_goodput_is_told_in_all_by_phase_and_over_time() -> None:
    run = document()["runs"][0]
    assert (run["sent"], run["good"], run["failed"], run["unfinished"]) == (6, 3, 1, 1)
    assert run["goodput_per_s"] == 0.15
    assert [(one["sent"], one["good"]) for one in run["phases"]] == [(2, 2), (4, 1)]
    assert sum(one["sent"] for one in run["timeline"]) == 6
    assert [one["good"] for one in run["timeline"]] == [1, 1, 0, 0, 0, 1, 0, 0, 0, 0]
    summary = document()["summary"]
    assert summary["auto"]["good_fraction"] == 0.5
    assert (summary["auto"]["switches"], summary["2:2"]["switches"]) == ([1], [0])


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_the_picture_names_every_switch(tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / f"roles{suffix}"
    draw_roles(path, document())
    assert path.stat().st_size > 1000


class FakeAdmin:
    """Nodes whose role is what was set last; some of them take a while."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.duties = dict.fromkeys(names, "decode")
        self.asked: list[tuple[str, str]] = []
        self.pending = 2
        self.polls = 0

    def set_role(self, node: str, role: str, *, message: str) -> None:
        self.asked.append((node, role))
        self.duties[node] = role

    def roles(self) -> Any:
        self.polls += 1
        self.pending -= 1
        nodes = [
            SimpleNamespace(node=name, role=role, next_role="decode" if self.pending > 0 else "")
            for name, role in self.duties.items()
        ]
        pools = [
            SimpleNamespace(role=role, load_nodes=1.0, pressure=0.5, wanted_count=2)
            for role in ("prefill", "decode")
        ]
        switch = SimpleNamespace(
            node="decode-1",
            source="decode",
            target="prefill",
            by="controller",
            stage="done",
            reason="r",
            age_s=0.0,
            held_request_count=0,
            duration_s=1.0,
        )
        old = SimpleNamespace(**{**vars(switch), "age_s": 1000.0})
        return SimpleNamespace(nodes=nodes, pools=pools, switches=[old, switch])


def test_a_split_is_set_decode_nodes_first_and_waited_for() -> None:
    admin = FakeAdmin(("decode-0", "decode-1", "prefill-0", "prefill-1"))
    admin.pending = 3
    set_split(admin, 3, 1)  # type: ignore[arg-type]
    assert admin.asked == [
        ("decode-0", "decode"),
        ("decode-1", "prefill"),
        ("prefill-0", "prefill"),
        ("prefill-1", "prefill"),
    ]
    assert admin.polls >= 3


def test_a_watch_tells_what_happened_while_it_was_open() -> None:
    admin = FakeAdmin(("decode-0", "prefill-0"))
    with RoleWatch(admin) as watch:  # type: ignore[arg-type]
        while not admin.polls:
            pass
    (row, *_) = watch.pools(origin_s=0.0)
    assert row["decode"]["nodes"] == (0 if row["changing"] else 2)
    (switch,) = watch.switches(origin_s=0.0)
    assert (switch["node"], switch["stage"]) == ("decode-1", "done")


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (("--fixed", "3"), "'3' is not P:D"),
        (("--fixed", "4:1"), "'4:1' is not a split of 4 nodes"),
        (("--fixed", "4:0"), "with a decode node"),
        (("--phases", "prefill,both"), "'both' is neither prefill nor decode"),
    ],
)
def test_wrong_options_are_refused_before_anything_starts(
    arguments: tuple[str, ...], fault: str
) -> None:
    done = CliRunner().invoke(bench, ["roles", *arguments])
    assert done.exit_code == 2
    assert fault in done.output


def test_auto_begins_with_half_of_the_nodes_in_each_pool() -> None:
    options = RolesOptions(node_count=5, fixed=((2, 3), (4, 1)))
    assert options.even == (2, 3)
    assert options.variants == ("auto", "2:3", "4:1")


def test_no_variant_finds_the_prompts_of_another_one_in_a_cache() -> None:
    seeds = {text_seed(seed, texts) for seed in (1, 2) for texts in ("auto", "2:2", "warm-up")}
    assert len(seeds) == 6
    (request, *_) = shifting_load(PHASES, seed=1)
    options = BodyOptions(endpoint=Endpoint.COMPLETIONS, model="m")
    calibration = Calibration(tokens_per_word=1.0, overhead_tokens=0.0, measured=True)
    texts = [
        BodyMaker(options, calibration=calibration, seed=seed).texts(request)[1] for seed in seeds
    ]
    assert len({text[:100] for text in texts}) == 6
    assert len({len(text.split()) for text in texts}) == 1
