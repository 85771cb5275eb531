"""What a scheduler that is gone has left on a node is taken over; nobody is promised it twice."""

from typing import Any

import pytest

from pdd.core.errors import RequestFailed
from pdd.core.frames import EngineFacts, Finish, FinishReason
from pdd.core.identity import NodeName, RequestId
from pdd.core.requests import Path, Plan
from pdd.scheduler.effects import Announce, Cancel, Complete, Fail, Submit
from pdd.scheduler.events import (
    FailureKind,
    HeldSequence,
    JobFailed,
    OutputRecovered,
    RequestArrived,
    RequestCancelled,
    SequenceFinished,
    SequenceGrew,
)
from pdd.scheduler.group_events import RequestTold
from pdd.scheduler.requests import Phase
from tests.builders import Cluster, make_finish, make_joined, make_request

D0 = NodeName("decode-0")
R1 = RequestId("r1")


def held(
    request_id: str = "r1", *, outputs: int = 5, generation: int = 2, **changes: Any
) -> HeldSequence:
    fields = {
        "keys": b"",
        "generation": generation,
        "output_token_count": outputs,
        "prefill_node": NodeName("prefill-9"),
        "first_facts": EngineFacts(cached_tokens=3),
        "arrived_age_s": 9.0,
        "placed_age_s": 8.0,
        "first_token_age_s": 6.0,
        "ready_age_s": 5.0,
        "ended_age_s": None,
    }
    request = {key: changes.pop(key) for key in list(changes) if key not in fields}
    return HeldSequence(request=make_request(request_id, **request), **{**fields, **changes})


def joined(*sequences: HeldSequence, **changes: Any) -> Any:
    return make_joined("decode-0", held=sequences, **changes)


def grew(count: int) -> SequenceGrew:
    return SequenceGrew(request_id=R1, generation=2, output_token_count=count)


def test_what_runs_there_holds_its_blocks_from_the_first_moment_on() -> None:
    cluster = Cluster()
    effects = cluster.step(joined(held(max_tokens=400)))
    (announced,) = [effect for effect in effects if isinstance(effect, Announce)]
    assert (announced.plan.path, announced.plan.prefill_node) == (Path.DISAGGREGATED, "prefill-9")
    assert cluster.core.requests[R1].phase is Phase.DECODING
    assert cluster.core.nodes[D0].leases[R1] == 5  # 32 + 5 + 2 * 16 tokens
    cluster.step(grew(40))
    assert cluster.core.nodes[D0].leases[R1] > 5
    assert cluster.core.requests[R1].generation == 2


def test_its_end_is_the_end_of_the_request_and_its_times_run_from_its_arrival() -> None:
    cluster = Cluster(joined(held()))
    finish = make_finish(transferred_bytes=77)
    (done,) = cluster.step(
        SequenceFinished(request_id=R1, generation=2, node=D0, finish=finish), after_s=1.0
    )
    assert isinstance(done, Complete)
    times = done.times
    assert sum((times.queue_s, times.prefill_s, times.transfer_s, times.decode_s)) == pytest.approx(
        10.0
    )
    assert (times.queue_s, times.transfer_s) == (1.0, 1.0)
    assert (done.cached_tokens, done.transferred_bytes) == (3, 77)
    assert cluster.core.requests == {}


def test_nothing_is_placed_into_blocks_that_are_in_use_there() -> None:
    cluster = Cluster("prefill-0")
    cluster.step(RequestArrived(request=make_request("r2", max_tokens=32)))
    effects = cluster.step(joined(held(max_tokens=16), block_count=7))
    assert not any(isinstance(effect, Submit) for effect in effects), "4 blocks are left, not 6"


def test_a_request_that_is_known_goes_on_as_it_was_planned_here() -> None:
    cluster = Cluster("prefill-0", "decode-1")
    cluster.step(RequestArrived(request=make_request("r1")))
    effects = cluster.step(joined(held()))
    assert Cancel(node=D0, request_id=R1) in effects
    assert R1 not in cluster.core.nodes[D0].leases


def test_without_room_it_is_cancelled_there_and_planned_anew() -> None:
    cluster = Cluster()
    effects = cluster.step(joined(held(prompt_token_count=32), block_count=3))
    assert Cancel(node=D0, request_id=R1) in effects
    assert cluster.core.requests[R1].phase is Phase.QUEUED
    assert cluster.core.requests[R1].generation == 3


def test_a_client_that_does_not_come_back_frees_it() -> None:
    cluster = Cluster(joined(held()))
    assert cluster.step(RequestCancelled(request_id=R1)) == [Cancel(node=D0, request_id=R1)]
    assert cluster.core.nodes[D0].leases == {}


def recovered(sequence: HeldSequence, **changes: Any) -> OutputRecovered:
    return OutputRecovered(node=D0, held=sequence, **{"finish": None, **changes})


def test_an_end_that_was_read_is_told_with_the_time_at_which_it_was() -> None:
    cluster = Cluster(joined())
    event = recovered(held(ended_age_s=2.0), finish=make_finish(FinishReason.LENGTH))
    announced, done = cluster.step(event)
    assert isinstance(announced, Announce)
    assert isinstance(done, Complete)
    times = done.times
    assert sum((times.queue_s, times.prefill_s, times.transfer_s, times.decode_s)) == pytest.approx(
        7.0
    )
    assert cluster.core.nodes[D0].leases == {}


def test_what_was_stopped_goes_before_everybody_new() -> None:
    cluster = Cluster("prefill-0", joined())
    effects = cluster.step(recovered(held()))
    (submit,) = [effect for effect in effects if isinstance(effect, Submit)]
    assert (submit.kind, submit.generation) == ("local", 3)


def test_output_that_cannot_be_continued_elsewhere_fails_with_the_reason() -> None:
    cluster = Cluster("prefill-0", joined())
    effects = cluster.step(recovered(held(presence_penalty=1.0)))
    (failed,) = [effect for effect in effects if isinstance(effect, Fail)]
    assert isinstance(failed.error, RequestFailed)
    assert "presence_penalty" in str(failed.error)
    assert cluster.core.requests == {}


def test_without_a_first_token_any_request_may_begin_anew() -> None:
    cluster = Cluster("prefill-0", joined())
    effects = cluster.step(
        recovered(held(outputs=0, presence_penalty=1.0, first_token_age_s=None, ready_age_s=None))
    )
    assert [effect.generation for effect in effects if isinstance(effect, Submit)] == [3]


def test_a_node_that_gives_a_request_back_is_not_to_blame() -> None:
    cluster = Cluster(joined(held()))
    effects = cluster.step(
        JobFailed(
            request_id=R1, generation=2, node=D0, message="not held", kind=FailureKind.STOPPED
        )
    )
    (submit,) = [effect for effect in effects if isinstance(effect, Submit)]
    assert (submit.node, submit.generation) == (D0, 3)


@pytest.mark.parametrize("finish", [None, make_finish(FinishReason.LENGTH)])
def test_a_leader_that_knows_it_as_a_lost_schedulers_ends_it_or_plans_it_all_the_same(
    finish: Finish | None,
) -> None:
    leader = Cluster("prefill-0", joined())
    told = RequestTold(
        request=make_request("r1"),
        holder="s1",
        phase=Phase.DECODING,
        plan=Plan(path=Path.LOCAL, prefill_node=None, decode_node=D0, reason="why"),
        granted_tokens=16,
        generation=2,
        output_token_count=5,
    )
    leader.step(told)
    effects = leader.step(recovered(held(), finish=finish))
    wanted = Submit if finish is None else Complete
    assert [type(effect) for effect in effects] == [Announce, wanted]
    assert (R1 in leader.core.nodes[D0].leases) == (finish is None), "a place for it, once"
    assert all(not request.holder for request in leader.core.requests.values())
