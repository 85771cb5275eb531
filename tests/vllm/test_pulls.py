"""Prefill nodes that pull prefixes while clients leave and rewrite what was said: no wrong text."""

from tests.vllm.cluster import Cluster
from tests.vllm.pull_turns import PullTurns, difference, pulls_of

TURNS = 6
"""Of each of the four conversations."""


def test_random_turns_and_clients_that_leave_never_show_a_wrong_text(pulling: Cluster) -> None:
    seed = 20261130
    turns = PullTurns(pulling, seed=seed)
    turns.run(turns=TURNS)
    print(f"seed {seed}: {dict(turns.counts)}, {pulls_of(pulling)}")
    assert turns.faults == []
    assert turns.counts["pulls"] > 0
    assert min(turns.counts[kind] for kind in ("rewrites", "leaves", "deletes")) > 0
    # The comparison sees another prompt's answer.
    first, others = turns.compared[0], turns.compared[1:]
    seen = sum(bool(difference(first.answer, other.plain)) for other in others)
    assert seen >= len(others) - 1
    pulling.wait_until_idle(within_s=30.0)
