"""The order of those who wait, against the plainest way to say it."""

import random
from collections import Counter

import pytest

from pdd.core.identity import NodeName
from pdd.scheduler import waiting
from pdd.scheduler.requests import Phase, Request
from pdd.scheduler.state import State
from tests.builders import Cluster, make_request


def make_state(rng: random.Random, *, tenant_count: int) -> State:
    """A decode node without bounds, and 60 requests that wait for it, some of them interrupted."""
    cluster = Cluster("decode-0")
    state = cluster.core._state
    for index in range(60):
        request = Request(
            request=make_request(
                f"r{index}",
                tenant=f"t{rng.randrange(tenant_count)}",
                priority=rng.choice([-20, 0, 0, 0, 1, 3]),
            ),
            arrived_s=float(index),
            arrival_index=index,
            generation=int(rng.random() < 0.1),
        )
        state.requests[request.id] = request
        state.enqueue(request)
    return state


def expected_next(state: State, seen: set[str], now_s: float) -> Request:
    """The first of all that were not looked at, by class, then what its tenant holds."""
    held: Counter[str] = Counter()
    for request in state.requests.values():
        if request.decode is not None:
            held[request.request.tenant] += state.nodes[request.decode].leases[request.id]
    left = [state.requests[name] for name in state.queue if name not in seen]
    return min(
        left,
        key=lambda one: (
            *waiting._class(state, one, now_s),
            held[one.request.tenant],
            one.arrival_index,
        ),
    )


@pytest.mark.parametrize("seed", range(20))
def test_whoever_is_next_is_next_by_class_then_by_what_its_tenant_holds(seed: int) -> None:
    rng = random.Random(seed)
    state = make_state(rng, tenant_count=rng.choice([1, 2, 5, 60]))
    node = state.nodes[NodeName("decode-0")]
    seen: set[str] = set()
    now_s = 70.0
    turns = waiting.in_turn(state, now_s)
    while len(seen) < 60:
        wanted = expected_next(state, seen, now_s)
        request = next(turns)
        assert request is wanted, f"seed {seed}"
        seen.add(request.id)
        if rng.random() < 0.5:
            state.queue.remove(request.id)
            request.enter(Phase.PREFILLING)
            request.decode = node.name
            node.lease(request.id, blocks=rng.randrange(1, 9), queued_tokens=0)
    assert next(turns, None) is None
