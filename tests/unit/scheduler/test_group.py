"""A request at the scheduler that holds it and at the one that leads, one event at a time.

Random worlds of both together: tests/simulation/test_scheduler_group.py.
"""

from dataclasses import replace

import pytest

from pdd.core.errors import AdmissionRejected, InvalidRequest, NodeUnavailable
from pdd.core.frames import FinishReason
from pdd.core.identity import NodeName, RequestId
from pdd.core.requests import Path, Plan
from pdd.scheduler.effects import Announce, Cancel, Complete, Fail, Submit
from pdd.scheduler.events import (
    DecodeReady,
    FirstTokenSampled,
    RequestArrived,
    SequenceFinished,
    SequenceGrew,
    SequenceStarted,
)
from pdd.scheduler.group_events import (
    AttemptEnded,
    HolderLost,
    LeadershipChanged,
    PlaceGiven,
    PlaceTaken,
    RequestRefused,
    RequestTold,
)
from pdd.scheduler.requests import Phase
from tests.builders import Cluster, make_finish, make_request

R1 = RequestId("r1")
PREFILL, DECODE = NodeName("prefill-0"), NodeName("decode-0")
BOTH = Plan(path=Path.DISAGGREGATED, prefill_node=PREFILL, decode_node=DECODE, reason="why")
LOCAL = Plan(path=Path.LOCAL, prefill_node=None, decode_node=DECODE, reason="why")


def follower() -> Cluster:
    cluster = Cluster("prefill-0", "decode-0")
    cluster.step(LeadershipChanged(leads=False))
    return cluster


def given(plan: Plan = BOTH, *, generation: int = 0, granted_tokens: int = 16) -> PlaceGiven:
    return PlaceGiven(
        request_id=R1, generation=generation, plan=plan, granted_tokens=granted_tokens
    )


def first_token(generation: int = 0) -> FirstTokenSampled:
    return FirstTokenSampled(
        request_id=R1,
        generation=generation,
        node=PREFILL,
        token_id=7,
        finish=make_finish(FinishReason.HANDOVER),
    )


def test_without_a_leader_a_request_waits_and_with_its_place_it_runs_to_its_end() -> None:
    holder = follower()
    assert holder.step(RequestArrived(request=make_request())) == []
    effects = holder.step(given())
    assert [type(effect) for effect in effects] == [Announce, Submit, Submit]
    holder.step(first_token())
    holder.step(DecodeReady(request_id=R1, generation=0))
    ended = holder.step(
        SequenceFinished(request_id=R1, generation=0, node=DECODE, finish=make_finish())
    )
    assert [type(effect) for effect in ended] == [Complete]


def test_who_comes_to_lead_places_what_waits() -> None:
    holder = follower()
    holder.step(RequestArrived(request=make_request()))
    effects = holder.step(LeadershipChanged(leads=True))
    assert [type(effect) for effect in effects] == [Announce, Submit, Submit]


def test_who_comes_to_lead_refuses_what_no_node_could_ever_hold() -> None:
    holder = follower()
    holder.step(RequestArrived(request=make_request(prompt_token_count=9000)))
    (effect,) = holder.step(LeadershipChanged(leads=True))
    assert isinstance(effect, Fail)
    assert isinstance(effect.error, InvalidRequest)


def test_a_place_for_an_older_attempt_is_ignored_and_one_for_a_later_one_replaces_it() -> None:
    holder = follower()
    holder.step(RequestArrived(request=make_request()))
    holder.step(given())
    assert holder.step(given()) == []
    effects = holder.step(given(LOCAL, generation=2))
    assert {effect.node for effect in effects if isinstance(effect, Cancel)} == {PREFILL, DECODE}
    assert [effect.kind for effect in effects if isinstance(effect, Submit)] == ["local"]
    assert holder.core.requests[R1].generation == 2
    assert holder.step(given(generation=1)) == []


def test_a_shown_token_does_not_travel_whatever_the_leader_chose() -> None:
    holder = follower()
    holder.step(RequestArrived(request=make_request()))
    holder.step(given())
    holder.step(first_token())
    effects = holder.step(given(generation=1))
    assert not [effect for effect in effects if isinstance(effect, Submit)]
    request = holder.core.requests[R1]
    assert (request.phase, request.generation) == (Phase.QUEUED, 2)


def test_a_place_on_a_node_that_is_not_reached_waits_for_another_one() -> None:
    holder = follower()
    holder.step(RequestArrived(request=make_request()))
    away = Plan(path=Path.LOCAL, prefill_node=None, decode_node=NodeName("decode-9"), reason="")
    assert holder.step(given(away)) == []
    assert holder.core.requests[R1].generation == 1
    assert "decode-9" in holder.core.requests[R1].interruption


def test_one_whose_place_is_not_reached_goes_before_those_that_were_never_placed() -> None:
    holder = follower()
    for name in ("r0", "r1"):
        holder.step(RequestArrived(request=make_request(name)))
    holder.step(given(replace(BOTH, decode_node=NodeName("decode-9"))))  # checks the order
    assert holder.core.requests[R1].generation == 1
    effects = holder.step(LeadershipChanged(leads=True))
    assert next(one.request_id for one in effects if isinstance(one, Announce)) == R1


def test_what_the_leader_takes_is_cancelled_and_what_it_refuses_fails() -> None:
    holder = follower()
    holder.step(RequestArrived(request=make_request()))
    holder.step(given(LOCAL))
    taken = PlaceTaken(request_id=R1, generation=1, interruption="why", is_whole=True)
    assert holder.step(taken) == [Cancel(node=DECODE, request_id=R1)]
    assert holder.core.requests[R1].is_whole
    error = AdmissionRejected("full", retry_after_s=1.0)
    (effect,) = holder.step(RequestRefused(request_id=R1, error=error))
    assert isinstance(effect, Fail)
    assert effect.error is error


def test_output_grows_without_a_leader_by_what_a_leader_would_grant() -> None:
    holder = follower()
    holder.step(RequestArrived(request=make_request(max_tokens=400)))
    holder.step(given(LOCAL, granted_tokens=64))
    leader = Cluster("prefill-0", "decode-0")
    leader.step(told(max_tokens=400, phase=Phase.DECODING, plan=LOCAL, granted_tokens=64))
    for cluster in (holder, leader):
        cluster.step(SequenceGrew(request_id=R1, generation=0, output_token_count=48))
        request = cluster.core.requests[R1]
        assert (request.granted_tokens, request.grows_at_tokens) == (64, 49), "not near its end"
    grew = SequenceGrew(request_id=R1, generation=0, output_token_count=60)
    assert holder.step(grew) == []
    assert leader.step(grew) == []
    mine, theirs = holder.core.requests[R1], leader.core.requests[R1]
    assert mine.granted_tokens == theirs.granted_tokens > 64
    assert mine.grows_at_tokens == theirs.grows_at_tokens > 60


def told(
    *,
    holder: str = "s1",
    phase: Phase = Phase.QUEUED,
    plan: Plan | None = None,
    granted_tokens: int = 16,
    generation: int = 0,
    output_token_count: int = 0,
    max_tokens: int = 16,
    prompt_token_count: int = 32,
) -> RequestTold:
    return RequestTold(
        request=make_request(max_tokens=max_tokens, prompt_token_count=prompt_token_count),
        holder=holder,
        phase=phase,
        plan=plan,
        granted_tokens=granted_tokens,
        generation=generation,
        output_token_count=output_token_count,
    )


def test_a_leader_places_what_another_scheduler_holds_and_refuses_what_it_never_could() -> None:
    leader = Cluster("prefill-0", "decode-0")
    assert [type(effect) for effect in leader.step(told())] == [Submit, Submit]
    assert leader.core.requests[R1].holder == "s1"
    leader.step(HolderLost(holder="s1"))
    assert not leader.core.requests
    (effect,) = leader.step(told(prompt_token_count=9000))
    assert isinstance(effect, Fail)
    assert isinstance(Cluster().step(told())[0].error, NodeUnavailable)  # type: ignore[union-attr]


@pytest.mark.parametrize("phase", [Phase.PREFILLING, Phase.TRANSFERRING, Phase.DECODING])
def test_a_leader_believes_what_runs_and_gives_its_blocks_to_nobody(phase: Phase) -> None:
    leader = Cluster("prefill-0", "decode-0")
    leader.step(told(phase=phase, plan=BOTH, output_token_count=1))
    request = leader.core.requests[R1]
    assert (request.phase, request.decode) == (phase, DECODE)
    assert leader.core.nodes[DECODE].leases == {R1: 3}
    assert bool(leader.core.nodes[PREFILL].leases) == (phase is not Phase.DECODING)


def test_where_two_leaders_promised_the_same_blocks_what_runs_keeps_what_it_fills() -> None:
    leader = Cluster("prefill-0", "decode-0")
    leader.step(RequestArrived(request=make_request("big", prompt_token_count=1400)))
    leader.step(
        told(
            max_tokens=400,
            granted_tokens=400,
            phase=Phase.DECODING,
            plan=LOCAL,
            output_token_count=10,
        )
    )
    request = leader.core.requests[R1]
    assert request.phase is Phase.DECODING
    assert (request.granted_tokens, request.grows_at_tokens) == (42, 27)


def test_what_fits_nowhere_under_a_new_leader_waits_for_its_next_attempt() -> None:
    leader = Cluster("prefill-0", "decode-0")
    leader.step(RequestArrived(request=make_request("big", prompt_token_count=1560)))
    leader.step(told(phase=Phase.DECODING, plan=LOCAL, output_token_count=10))
    request = leader.core.requests[R1]
    assert (request.phase, request.generation) == (Phase.QUEUED, 1)


def test_an_attempt_that_its_holder_gave_up_is_placed_anew_and_costs_no_try() -> None:
    leader = Cluster("prefill-0", "decode-0")
    leader.step(told())
    effects = leader.step(AttemptEnded(request_id=R1, generation=0, why="lost", has_output=True))
    assert [effect.kind for effect in effects if isinstance(effect, Submit)] == ["local"]
    assert leader.core.requests[R1].failed_attempt_count == 0
    assert leader.step(AttemptEnded(request_id=R1, generation=0, why="lost")) == []


def test_who_leads_no_longer_forgets_what_others_hold_and_goes_on_with_its_own() -> None:
    leader = Cluster("prefill-0", "decode-0")
    leader.step(told())
    leader.step(RequestArrived(request=make_request("mine")))
    assert leader.step(LeadershipChanged(leads=False)) == []
    assert list(leader.core.requests) == ["mine"]
    assert leader.core.requests[RequestId("mine")].phase is Phase.PREFILLING


def test_a_holder_promises_no_more_than_the_new_leader_and_grows_from_there() -> None:
    holder = follower()
    holder.step(RequestArrived(request=make_request(max_tokens=400)))
    holder.step(given(LOCAL, granted_tokens=400))
    assert holder.step(given(LOCAL, granted_tokens=42)) == []
    request = holder.core.requests[R1]
    assert (request.granted_tokens, request.grows_at_tokens) == (42, 27)
    assert holder.core.nodes[DECODE].leases == {R1: 5}
    assert holder.step(given(LOCAL, granted_tokens=100)) == [], "it asks when it needs more"
    assert request.granted_tokens == 42
    holder.core.check()


def test_who_comes_to_lead_gives_no_block_out_twice() -> None:
    holder = follower()
    for name in ("r1", "r2", "r3"):
        holder.step(RequestArrived(request=make_request(name, prompt_token_count=640)))
        holder.step(replace(given(LOCAL), request_id=RequestId(name)))
    assert holder.core.nodes[DECODE].unleased_block_count() < 0, "two leaders were there"
    effects = holder.step(LeadershipChanged(leads=True))
    assert effects == [Cancel(node=DECODE, request_id=RequestId("r3"))]
    assert holder.core.requests[RequestId("r3")].phase is Phase.QUEUED
    holder.core.check()


def test_output_that_cannot_be_continued_keeps_a_place_that_was_promised_twice() -> None:
    holder = follower()
    for name in ("r1", "r2", "r3"):
        request = make_request(name, prompt_token_count=640, presence_penalty=1.0)
        holder.step(RequestArrived(request=request))
        holder.step(replace(given(LOCAL), request_id=RequestId(name)))
        holder.step(SequenceStarted(request_id=RequestId(name), generation=0))
    assert holder.step(LeadershipChanged(leads=True)) == []
    holder.step(RequestArrived(request=make_request("r4")))
    assert holder.core.requests[RequestId("r4")].phase is Phase.QUEUED, "nothing more is promised"
