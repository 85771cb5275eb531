"""300 universes: every property after every event, then liveness and linearizability."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.simulation.raft.checker import Violation, check
from tests.simulation.raft.node import SimNode
from tests.simulation.raft.world import World

SEED_COUNT = 300
SEEDS_PER_TEST = 20
TOTALS: Counter[str] = Counter()


@pytest.mark.parametrize("first", range(0, SEED_COUNT, SEEDS_PER_TEST))
def test_every_property_holds_in_every_universe(first: int) -> None:
    for seed in range(first, first + SEEDS_PER_TEST):
        world = World(seed).run()
        TOTALS.update(world.counts)
        TOTALS["universes"] += 1
        TOTALS["operations"] += len(world.clients.history)


def test_the_universes_contain_what_they_are_for() -> None:
    """Faults that never happen prove nothing."""
    if TOTALS["universes"] < SEED_COUNT:
        pytest.skip("needs all universes of this file to have been played in this process")
    for fact, least in {
        "operations": 10_000,
        "boots": 1_000,
        "blocked": 10_000,
        "disk_failed": 50,
        "InstallSnapshot": 100,
        "TimeoutNow": 50,
        "reads": 2_000,
        "reads_aborted": 50,
        "outcome_unknown": 200,
        "given_up": 100,
        "refused_uncommitted_full": 5,
        "refused_reads_full": 50,
        "refused_transferring": 50,
    }.items():
        assert TOTALS[fact] >= least, f"{fact}: {TOTALS[fact]}"


def test_a_seed_replays_bit_for_bit() -> None:
    first, second = World(7).run(), World(7).run()
    assert first.trace == second.trace
    assert first.digest == second.digest != World(8).run().digest


def test_a_seed_does_not_depend_on_the_hash_order_of_the_process() -> None:
    digests = []
    for hash_seed in ("1", "2"):
        finished = subprocess.run(
            [sys.executable, "-m", "tests.simulation.raft.run", "--digest", "0:6"],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            cwd=Path(__file__).parents[3],
            check=True,
            capture_output=True,
            text=True,
        )
        digests.append(finished.stdout)
    assert digests[0] == digests[1]
    assert len(digests[0].splitlines()) == 6


def test_a_failing_seed_prints_itself_and_how_to_replay_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail_later(node: SimNode) -> None:
        check(node.world.now_ms < 700, 3, "made up")

    monkeypatch.setattr(SimNode, "tick", fail_later)
    with pytest.raises(Violation, match="property 3: made up") as caught:
        World(12345).run()
    text = str(caught.value)
    assert "seed 12345 at 7" in text
    assert "python -m tests.simulation.raft.run 12345" in text
    assert "the last events:" in text
