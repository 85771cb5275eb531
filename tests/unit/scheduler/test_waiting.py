"""The order of those who wait, against the plainest way to say it."""

import random
from collections import Counter
from typing import Any

import pytest

from pdd.core.identity import NodeName, RequestId
from pdd.scheduler import waiting
from pdd.scheduler.effects import Effect, Submit
from pdd.scheduler.events import RequestArrived, RequestCancelled, Tick
from pdd.scheduler.requests import Phase, Request
from pdd.scheduler.settings import PolicySettings
from pdd.scheduler.state import State
from tests.builders import BLOCK_SIZE, Cluster, make_joined, make_request


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


def expected_next(state: State, seen: dict[str, bool], now_s: float, oldest: list[str]) -> Request:
    """The first of all that were not looked at. ``seen``: who was, and whether it was placed;
    ``oldest``: tenants, the one that has waited longest first."""
    held: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    for request in state.requests.values():
        tenant = request.request.tenant
        if request.decode is not None:
            held[tenant] += state.nodes[request.decode].leases[request.id]
        refused[tenant] += not request.generation and not seen.get(request.id, True)
    left = [state.requests[name] for name in state.queue if name not in seen]
    interrupted = [request for request in left if request.generation]
    if interrupted:
        return min(interrupted, key=lambda one: one.arrival_index)
    return min(
        left,
        key=lambda one: (
            refused[one.request.tenant],
            held[one.request.tenant],
            oldest.index(one.request.tenant),
            waiting._class(state, one, now_s),
            one.arrival_index,
        ),
    )


@pytest.mark.parametrize("seed", range(20))
def test_whoever_is_next_is_next_by_what_its_tenant_holds_then_by_class(seed: int) -> None:
    rng = random.Random(seed)
    state = make_state(rng, tenant_count=rng.choice([1, 2, 5, 60]))
    new = [request for request in state.requests.values() if not request.generation]
    oldest = list(dict.fromkeys(request.request.tenant for request in new))
    node = state.nodes[NodeName("decode-0")]
    seen: dict[str, bool] = {}
    now_s = 70.0
    turns = waiting.in_turn(state, now_s)
    while len(seen) < 60:
        wanted = expected_next(state, seen, now_s, oldest)
        request = next(turns)
        assert request is wanted, f"seed {seed}"
        seen[request.id] = rng.random() < 0.5
        if seen[request.id]:
            state.queue.remove(request.id)
            request.enter(Phase.PREFILLING)
            request.decode = node.name
            node.lease(request.id, blocks=rng.randrange(1, 9), queued_tokens=0)
    assert next(turns, None) is None


class TestTenants:
    """Each holds and asks for as much of a node of 100 blocks as the test says."""

    def cluster(self, **changes: Any) -> Cluster:
        policy = PolicySettings(large_share_fraction=1.0)
        return Cluster(make_joined("decode-0", **changes), policy=policy, node_silence_s=1e6)

    def ask(
        self, cluster: Cluster, name: str, *, tenant: str, blocks: int = 3, priority: int = 0
    ) -> list[str]:
        """Who is placed by that."""
        request = make_request(
            name,
            tenant=tenant,
            priority=priority,
            prompt_token_count=BLOCK_SIZE * (blocks - 1),
            max_tokens=BLOCK_SIZE,
        )
        return placed(cluster.step(RequestArrived(request=request)))

    def end(self, cluster: Cluster, name: str) -> list[str]:
        """Who is placed in its room."""
        return placed(cluster.step(RequestCancelled(request_id=RequestId(name))))

    def test_a_tenant_that_calls_everything_urgent_gets_its_share_and_no_more(self) -> None:
        cluster = self.cluster(max_num_seqs=2)
        self.ask(cluster, "loud-0", tenant="loud")
        self.ask(cluster, "loud-1", tenant="loud")
        for index in range(2, 20):
            self.ask(cluster, f"loud-{index}", tenant="loud", priority=-8)
        self.ask(cluster, "calm-0", tenant="calm")
        assert self.end(cluster, "loud-0") == ["calm-0"]
        assert self.end(cluster, "loud-1") == ["loud-2"]

    def test_a_tenant_that_has_waited_long_with_many_keeps_nobody_out(self) -> None:
        cluster = self.cluster(max_num_seqs=2)
        for index in range(20):
            self.ask(cluster, f"many-{index}", tenant="many")
        cluster.step(Tick(), after_s=100.0)
        self.ask(cluster, "few-0", tenant="few")
        assert self.end(cluster, "many-0") == ["many-2"], "room was kept for that one"
        assert self.end(cluster, "many-1") == ["few-0"]

    def test_within_a_tenant_the_urgent_one_goes_first_and_others_age(self) -> None:
        cluster = self.cluster(max_num_seqs=1)
        self.ask(cluster, "running", tenant="a")
        self.ask(cluster, "old", tenant="a")
        cluster.step(Tick(), after_s=35.0)
        self.ask(cluster, "urgent", tenant="a", priority=-4)
        self.ask(cluster, "urgent-too", tenant="a", priority=-3)
        assert self.end(cluster, "running") == ["urgent"]
        assert self.end(cluster, "urgent") == ["old"]

    def test_one_without_room_hides_nobody_however_many_it_sends(self) -> None:
        """More than are looked at in one step wait before the one that fits."""
        cluster = self.cluster()
        self.ask(cluster, "running", tenant="other", blocks=50)
        assert self.ask(cluster, "filling", tenant="other", blocks=40) == ["filling"]
        for index in range(100):
            self.ask(cluster, f"big-{index}", tenant="big", blocks=60)
        self.ask(cluster, "small", tenant="small", blocks=20)
        assert self.end(cluster, "filling") == ["small"]

    def test_room_that_is_kept_stays_kept_when_another_tenant_holds_less(self) -> None:
        cluster = self.cluster()
        self.ask(cluster, "a-running", tenant="a", blocks=50)
        self.ask(cluster, "b-running", tenant="b", blocks=40)
        self.ask(cluster, "a-waits", tenant="a", blocks=45)
        for _ in range(3):
            cluster.step(Tick(), after_s=2.0)
        self.ask(cluster, "c-waits", tenant="c", blocks=30, priority=-8)
        cluster.step(Tick())
        assert self.end(cluster, "b-running") == ["a-waits"]


def placed(effects: list[Effect]) -> list[str]:
    return [effect.request.request_id for effect in effects if isinstance(effect, Submit)]
