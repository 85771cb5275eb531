"""When a prefix is pulled from the decode node, and what its two nodes are told then."""

from dataclasses import replace
from typing import Any

import pytest

from pdd.control.group_convert import plan_from_proto, plan_to_proto
from pdd.core.frames import FinishReason
from pdd.core.identity import Forking, NodeName, RequestId
from pdd.core.requests import Path, Plan, PlannedPull
from pdd.scheduler.effects import Announce, Complete, Submit
from pdd.scheduler.estimates import Estimates
from pdd.scheduler.events import (
    DecodeReady,
    FirstTokenSampled,
    RequestArrived,
    SequenceFinished,
)
from pdd.scheduler.policy.pull import PullInputs, decide_pull
from pdd.scheduler.requests import Phase
from pdd.scheduler.settings import (
    EstimateSettings,
    PathMode,
    PathSettings,
    PolicySettings,
    PullMode,
)
from tests.builders import BLOCK_SIZE, Cluster, make_finish, make_joined, make_request

P, D = NodeName("prefill-0"), NodeName("decode-0")
R1 = RequestId("r1")
BLOCK_BYTES = 1 << 20
PROMPT_TOKENS = 640


@pytest.mark.parametrize(
    ("mode", "tokens", "pull_s", "compute_s", "wait_s"),
    [
        (PullMode.AUTO, 512, 0.01, 0.10, 0.5),
        (PullMode.AUTO, 512, 0.10, 0.01, None),
        (PullMode.AUTO, 512, 0.10, 0.10, None),
        (PullMode.AUTO, 512, 0.30, 1.00, 2.0),
        (PullMode.AUTO, 512, 1.00, 90.0, 10.0),
        (PullMode.AUTO, 0, 0.0, 0.0, None),
        (PullMode.ALWAYS, 512, 0.10, 0.01, 0.5),
        (PullMode.ALWAYS, 0, 0.0, 0.0, None),
        (PullMode.NEVER, 512, 0.01, 0.10, None),
    ],
)
def test_what_comes_sooner_than_it_is_computed_is_pulled(
    mode: PullMode, tokens: int, pull_s: float, compute_s: float, wait_s: float | None
) -> None:
    inputs = PullInputs(end_tokens=600, tokens=tokens, pull_s=pull_s, compute_s=compute_s)
    expected = None if wait_s is None else PlannedPull(token_count=600, wait_s=wait_s)
    assert decide_pull(inputs, mode) == expected


class Directory:
    """Says what it is told."""

    def __init__(self, **held: int) -> None:
        self.held = {name.replace("_", "-"): blocks for name, blocks in held.items()}

    def is_known(self, node: NodeName) -> bool:
        return True

    def matches(self, keys: bytes) -> dict[NodeName, int]:
        return {NodeName(node): min(held, len(keys) // 16) for node, held in self.held.items()}


def cluster_of(*, pulls: tuple[bool, bool] = (True, True), **settings: Any) -> Cluster:
    """A decode node that holds 30 of the prompt's 40 blocks, of which the prefill node has 5."""
    path = {"mode": PathMode.DISAGGREGATED, "local_stall_s": 1e-6, **settings}
    return Cluster(
        make_joined("prefill-0", pulls=pulls[0], block_bytes=BLOCK_BYTES, forking=Forking.SHARED),
        make_joined("decode-0", pulls=pulls[1], block_bytes=BLOCK_BYTES, forking=Forking.SHARED),
        directory=Directory(prefill_0=5, decode_0=30),
        path=PathSettings(**path),
    )


def ask(cluster: Cluster, *, choice_count: int = 1) -> dict[str, Submit]:
    request = replace(make_request(prompt_token_count=PROMPT_TOKENS), choice_count=choice_count)
    keys = b"".join(index.to_bytes(16, "little") for index in range(PROMPT_TOKENS // BLOCK_SIZE))
    effects = cluster.step(RequestArrived(request=request, keys=keys))
    (announced,) = [effect for effect in effects if isinstance(effect, Announce)]
    assert announced.plan.path is Path.DISAGGREGATED
    return {effect.kind: effect for effect in effects if isinstance(effect, Submit)}


def test_both_nodes_are_told_of_a_pull_and_the_record_says_why() -> None:
    cluster = cluster_of()
    submits = ask(cluster)
    pull = PlannedPull(token_count=30 * BLOCK_SIZE, wait_s=0.5)
    assert (submits["prefill"].source, submits["prefill"].pull) == (D, pull)
    assert (submits["decode"].source, submits["decode"].pull) == (P, pull)
    (record,) = cluster.core.why(R1, now_s=cluster.now_s)
    assert "400 tokens come from decode-0" in record.reason
    assert record.path_inputs["pull_tokens"] == 400
    assert record.path_inputs["is_pull"] == 1
    assert record.path_inputs["pull_s"] < record.path_inputs["pull_compute_s"]
    # What it will not compute stands before nobody.
    assert cluster.core.nodes[P].queued_tokens == {R1: PROMPT_TOKENS - 30 * BLOCK_SIZE}


@pytest.mark.parametrize("pulls", [(False, True), (True, False), (False, False)])
def test_a_node_that_cannot_is_asked_for_nothing(pulls: tuple[bool, bool]) -> None:
    cluster = cluster_of(pulls=pulls, pull=PullMode.ALWAYS)
    submits = ask(cluster)
    assert submits["prefill"].source is None
    assert submits["prefill"].pull is None
    assert submits["decode"].pull is None
    (record,) = cluster.core.why(R1, now_s=cluster.now_s)
    assert record.path_inputs["pull_tokens"] == 0


def two_prefill_nodes(*, pulls: bool = True, **path: Any) -> Cluster:
    """One holds half of what the decode node holds and has 0.05 s to do, the other has nothing.

    Computing: 0.05 + 0.064 s against 0.128. Pulling: 0.05 + 0.032 and the pull against 0.032 and a
    longer pull.
    """
    first, later, decode = (
        make_joined(name, pulls=pulls, block_bytes=BLOCK_BYTES)
        for name in ("prefill-0", "prefill-1", "decode-0")
    )
    cluster = Cluster(
        first,
        decode,
        directory=Directory(prefill_0=20, decode_0=30),
        path=PathSettings(**{"mode": PathMode.DISAGGREGATED, "local_stall_s": 1e-6, **path}),
        policy=PolicySettings(prefill_scorers={"completion": 1.0}),
        estimates=EstimateSettings(prefill_tokens_per_s=5000.0, link_bytes_per_s=2e9),
    )
    cluster.step(RequestArrived(request=make_request("other", prompt_token_count=250)))
    cluster.step(later)
    return cluster


@pytest.mark.parametrize(
    ("changes", "chosen"),
    [
        ({}, "prefill-1"),
        ({"pull": PullMode.ALWAYS}, "prefill-1"),
        ({"pull": PullMode.NEVER}, "prefill-0"),
        ({"pulls": False}, "prefill-0"),
    ],
)
def test_the_prefill_node_is_chosen_by_what_it_could_pull(
    changes: dict[str, Any], chosen: str
) -> None:
    cluster = two_prefill_nodes(**changes)
    submits = ask(cluster)
    assert submits["prefill"].node == chosen
    (record,) = cluster.core.why(R1, now_s=cluster.now_s)
    # What it saves counts once: the path is decided by what is pulled in the end.
    remote_s = 0.032 + record.path_inputs["pull_s"] if chosen == "prefill-1" else 0.05 + 0.064
    assert record.path_inputs["remote_s"] == pytest.approx(remote_s, abs=1e-3)


def test_a_link_that_is_slower_than_computing_saves_nothing() -> None:
    cluster = two_prefill_nodes()
    for prefill in ("prefill-0", "prefill-1"):
        cluster.core.estimates.observe_pull(
            D,
            NodeName(prefill),
            size_bytes=BLOCK_BYTES,
            pull_s=100.0,
            is_complete=False,
            now_s=cluster.now_s,
        )
    submits = ask(cluster)
    assert submits["prefill"].node == P
    assert submits["prefill"].pull is None


def test_what_is_pulled_is_in_the_bill_and_teaches_the_link() -> None:
    cluster = cluster_of()
    ask(cluster)
    prefill_rate = cluster.core.estimates.prefill(P).sample_count
    facts = {
        "cached_tokens": 80,
        "computed_prompt_tokens": 160,
        "pulled_tokens": 400,
        "pulled_bytes": 25 * BLOCK_BYTES,
        "pull_s": 2.5,
    }
    cluster.step(
        FirstTokenSampled(
            request_id=R1,
            generation=0,
            node=P,
            token_id=7,
            finish=make_finish(FinishReason.HANDOVER, **facts),
        ),
        after_s=3.0,
    )
    cluster.step(DecodeReady(request_id=R1, generation=0))
    effects = cluster.step(
        SequenceFinished(request_id=R1, generation=0, node=D, finish=make_finish())
    )
    (told,) = [effect for effect in effects if isinstance(effect, Complete)]
    assert (told.pulled_tokens, told.pulled_bytes) == (400, 25 * BLOCK_BYTES)
    assert told.cached_tokens == 480, "none of these was computed for it"
    rate = cluster.core.estimates.link(D, P)
    assert rate.sample_count == 1
    assert rate.per_s < EstimateSettings().link_bytes_per_s / 2
    assert cluster.core.estimates.prefill(P).sample_count == prefill_rate, "it waited, too"


def test_a_pull_for_several_choices_teaches_the_link_once() -> None:
    cluster = cluster_of()
    ask(cluster, choice_count=3)
    facts = {"pulled_tokens": 400, "pulled_bytes": 25 * BLOCK_BYTES, "pull_s": 2.5}
    for choice in range(3):
        cluster.step(
            FirstTokenSampled(
                request_id=R1,
                generation=0,
                node=P,
                token_id=7,
                finish=make_finish(FinishReason.HANDOVER, **facts),
                choice_index=choice,
            )
        )
    assert cluster.core.requests[R1].phase is Phase.TRANSFERRING
    assert cluster.core.estimates.link(D, P).sample_count == 1


def test_a_pull_that_fails_counts_against_the_link_until_that_is_old() -> None:
    estimates = Estimates(EstimateSettings(link_bytes_per_s=1e9))
    size_bytes = 100 << 20
    fresh_s = estimates.pull_s(D, P, size_bytes=size_bytes, now_s=0.0)
    estimates.observe_pull(D, P, size_bytes=0, pull_s=5.0, is_complete=False, now_s=0.0)
    assert estimates.pull_s(D, P, size_bytes=size_bytes, now_s=1.0) > 5 * fresh_s
    assert estimates.pull_s(D, P, size_bytes=size_bytes, now_s=90.0) == fresh_s
    few = Estimates(EstimateSettings(link_bytes_per_s=1e9))
    few.observe_pull(D, P, size_bytes=100, pull_s=0.5, is_complete=True, now_s=0.0)
    assert few.pull_s(D, P, size_bytes=size_bytes, now_s=1.0) == fresh_s, "that was latency"


def test_a_pull_travels_from_the_leader_to_the_holder() -> None:
    for pull in (None, PlannedPull(token_count=480, wait_s=0.5)):
        plan = Plan(path=Path.DISAGGREGATED, prefill_node=P, decode_node=D, reason="why", pull=pull)
        assert plan_from_proto(plan_to_proto(plan)) == plan
