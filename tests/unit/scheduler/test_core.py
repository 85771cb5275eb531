"""What each event does: SchedulerCore, one table row at a time."""

from dataclasses import replace
from typing import Any

import pytest

from pdd.core.errors import (
    AdmissionRejected,
    DeadlineExceeded,
    InvalidRequest,
    NodeUnavailable,
    RequestFailed,
)
from pdd.core.frames import FinishReason
from pdd.core.identity import NodeName, NodeState, RequestId
from pdd.core.requests import Path
from pdd.scheduler.effects import (
    Announce,
    Cancel,
    Complete,
    Disconnect,
    DismissPeer,
    Effect,
    Fail,
    ForgetNode,
    GiveFirstToken,
    IntroducePeers,
    Submit,
)
from pdd.scheduler.events import (
    DecodeReady,
    FailureKind,
    FirstTokenSampled,
    JobFailed,
    NodeLost,
    NodeReported,
    RequestArrived,
    RequestCancelled,
    SequenceFinished,
    SequenceStarted,
    Tick,
)
from pdd.scheduler.requests import Phase
from tests.builders import Cluster, make_finish, make_identity, make_joined, make_request

R1 = RequestId("r1")
HANDOVER = FinishReason.HANDOVER


def arrive(cluster: Cluster, request_id: str = "r1", **fields: Any) -> list[Effect]:
    return cluster.step(RequestArrived(request=make_request(request_id, **fields)))


def first_token(
    node: str = "prefill-0",
    *,
    request_id: str = "r1",
    generation: int = 0,
    reason: FinishReason = HANDOVER,
    **facts: Any,
) -> FirstTokenSampled:
    return FirstTokenSampled(
        request_id=RequestId(request_id),
        generation=generation,
        node=NodeName(node),
        token_id=7,
        finish=make_finish(reason, **facts),
    )


def ready(*, generation: int = 0) -> DecodeReady:
    return DecodeReady(request_id=R1, generation=generation)


def started(*, request_id: str = "r1", generation: int = 0) -> SequenceStarted:
    return SequenceStarted(request_id=RequestId(request_id), generation=generation)


def finished(
    node: str = "decode-0", *, request_id: str = "r1", generation: int = 0, **facts: Any
) -> SequenceFinished:
    return SequenceFinished(
        request_id=RequestId(request_id),
        generation=generation,
        node=NodeName(node),
        finish=make_finish(**facts),
    )


def failed(
    node: str = "decode-0",
    *,
    request_id: str = "r1",
    generation: int = 0,
    kind: FailureKind = FailureKind.ENGINE,
) -> JobFailed:
    return JobFailed(
        request_id=RequestId(request_id),
        generation=generation,
        node=NodeName(node),
        message="something broke",
        kind=kind,
    )


def lost(name: str, *, boot_epoch: int = 1) -> NodeLost:
    return NodeLost(identity=make_identity(name, boot_epoch=boot_epoch), reason="connection lost")


def places_of(cluster: Cluster, role: str, request_id: str = "r1") -> tuple[str, str]:
    """``(node of a role that has the request, the other one of two)``; equals are told by hash."""
    first, second = f"{role}-0", f"{role}-1"
    has_first = RequestId(request_id) in cluster.core.nodes[NodeName(first)].leases
    return (first, second) if has_first else (second, first)


def outline(effects: list[Effect]) -> list[tuple[str, ...]]:
    """Effects in short: their names, where they go, and what they start.

    What is said about peers is left out; ``test_peers`` is about that.
    """
    short: list[tuple[str, ...]] = []
    for effect in effects:
        match effect:
            case Submit():
                short.append(("submit", effect.node, effect.kind, str(effect.generation)))
            case Cancel() | GiveFirstToken():
                short.append((type(effect).__name__.lower(), effect.node))
            case Fail():
                short.append(("fail", type(effect.error).__name__))
            case IntroducePeers() | DismissPeer():
                pass
            case _:
                short.append((type(effect).__name__.lower(),))
    return short


def only(effects: list[Effect], kind: type) -> Any:
    """The one effect of a kind."""
    (one,) = [effect for effect in effects if isinstance(effect, kind)]
    return one


def decoding(**fields: Any) -> Cluster:
    """A request that decodes on decode-0 after a transfer."""
    cluster = Cluster("prefill-0", "decode-0")
    arrive(cluster, **fields)
    cluster.step(first_token())
    cluster.step(ready())
    return cluster


class TestTheLifeOfARequest:
    def test_the_decode_node_hears_of_it_before_the_prefill_node(self) -> None:
        cluster = Cluster("prefill-0", "decode-0")
        effects = arrive(cluster)
        assert outline(effects) == [
            ("announce",),
            ("submit", "decode-0", "decode", "0"),
            ("submit", "prefill-0", "prefill", "0"),
        ]
        assert effects[1].source == "prefill-0"  # type: ignore[union-attr]
        assert only(effects, Announce).plan.path is Path.DISAGGREGATED

    def test_the_first_token_goes_to_the_decode_node(self) -> None:
        cluster = Cluster("prefill-0", "decode-0")
        arrive(cluster)
        (give,) = cluster.step(first_token())
        assert give == GiveFirstToken(
            node=NodeName("decode-0"), request_id=R1, generation=0, token_ids={0: 7}
        )

    def test_the_prefill_node_holds_its_lease_until_the_decode_node_is_ready(self) -> None:
        cluster = Cluster("prefill-0", "decode-0")
        arrive(cluster)
        cluster.step(first_token())
        assert R1 in cluster.core.nodes[NodeName("prefill-0")].leases
        assert outline(cluster.step(ready())) == [("cancel", "prefill-0")]
        assert R1 not in cluster.core.nodes[NodeName("prefill-0")].leases
        assert cluster.step(ready()) == []

    def test_its_end_comes_once_with_what_the_nodes_counted(self) -> None:
        cluster = Cluster("prefill-0", "decode-0")
        arrive(cluster)
        cluster.step(first_token(cached_tokens=16, computed_prompt_tokens=16))
        cluster.step(ready())
        done = finished(transferred_bytes=8192, computed_prompt_tokens=1)
        complete = only(cluster.step(done), Complete)
        assert complete.cached_tokens == 16
        assert complete.transferred_bytes == 8192
        assert complete.decode_computed_prompt_tokens == 1
        assert complete.prompt_token_count == 32
        assert cluster.step(done) == []
        assert not cluster.core.requests
        assert not any(node.leases for node in cluster.core.nodes.values())

    def test_a_prompt_that_the_decode_node_had_to_compute_is_told_as_local(self) -> None:
        for computed, path in ((1, Path.DISAGGREGATED), (2, Path.LOCAL)):
            complete = only(decoding().step(finished(computed_prompt_tokens=computed)), Complete)
            assert complete.plan.path is path
            assert complete.prompt_recomputed == (path is Path.LOCAL)
            assert complete.plan.prefill_node == "prefill-0", "it gave the first token"

    def test_a_first_token_that_ends_the_output_frees_the_decode_node(self) -> None:
        cluster = Cluster("prefill-0", "decode-0")
        arrive(cluster)
        effects = cluster.step(first_token(reason=FinishReason.STOP, cached_tokens=16))
        assert outline(effects) == [("cancel", "decode-0"), ("complete",)]
        assert only(effects, Complete).cached_tokens == 16
        assert only(effects, Complete).transferred_bytes == 0

    def test_one_asked_token_needs_the_prefill_node_alone(self) -> None:
        cluster = Cluster("prefill-0", "decode-0")
        effects = arrive(cluster, max_tokens=1)
        assert outline(effects) == [("announce",), ("submit", "prefill-0", "local", "0")]
        assert only(effects, Announce).plan.decode_node is None
        cluster.step(started())
        complete = only(cluster.step(finished("prefill-0", cached_tokens=16)), Complete)
        assert complete.cached_tokens == 16

    def test_a_local_request_counts_its_own_prompt(self) -> None:
        cluster = Cluster("decode-0")
        assert outline(arrive(cluster)) == [("announce",), ("submit", "decode-0", "local", "0")]
        assert cluster.step(started()) == []
        complete = only(
            cluster.step(finished(cached_tokens=16, computed_prompt_tokens=16)), Complete
        )
        assert complete.plan.path is Path.LOCAL
        assert complete.cached_tokens == 16
        assert complete.decode_computed_prompt_tokens == 16

    def test_time_left_is_told_to_the_nodes(self) -> None:
        cluster = Cluster("decode-0", "prefill-0")
        arrive(cluster, deadline_s=60.0)
        effects = cluster.step(lost("decode-0"), after_s=20.0)
        assert outline(effects) == [("cancel", "prefill-0")]
        effects = cluster.step(make_joined("decode-1"), after_s=10.0)
        assert {e.deadline_s for e in effects if isinstance(e, Submit)} == {30.0}


class TestAdmission:
    def test_without_a_decode_node_it_is_refused_at_once(self) -> None:
        effects = arrive(Cluster("prefill-0"))
        error = only(effects, Fail).error
        assert isinstance(error, NodeUnavailable)
        assert "no decode node is ready" in str(error)

    def test_a_request_that_fits_no_node_is_the_clients_fault(self) -> None:
        cluster = Cluster("prefill-0", "decode-0")
        error = only(arrive(cluster, prompt_token_count=1500, max_tokens=101), Fail).error
        assert isinstance(error, InvalidRequest)
        assert error.field == "max_tokens"
        assert "1601" in str(error)
        assert "1600" in str(error)

    def test_a_request_longer_than_the_model_is_the_clients_fault(self) -> None:
        cluster = Cluster(make_joined("decode-0", max_model_len=100))
        error = only(arrive(cluster, prompt_token_count=90, max_tokens=11), Fail).error
        assert isinstance(error, InvalidRequest)
        assert "101" in str(error)
        assert "100" in str(error)

    @pytest.mark.parametrize("others", [(), ("prefill-0",)])
    def test_one_that_only_a_lost_node_could_hold_may_come_again(
        self, others: tuple[str, ...]
    ) -> None:
        cluster = Cluster(make_joined("decode-0", block_count=11), "decode-1", *others)
        cluster.step(lost("decode-1"))
        error = only(arrive(cluster, prompt_token_count=1000), Fail).error
        assert isinstance(error, NodeUnavailable)
        assert "decode-1" in str(error)
        error = only(arrive(cluster, prompt_token_count=1600), Fail).error
        assert isinstance(error, InvalidRequest), "not even decode-1 could"

    def test_it_waits_while_every_decode_node_is_full_and_runs_when_room_comes(self) -> None:
        cluster = Cluster("prefill-0", "decode-0")
        arrive(cluster, "big", prompt_token_count=1500, max_tokens=100)
        assert arrive(cluster, "r2") == []
        assert cluster.core.queued_request_count == 1
        effects = cluster.step(RequestCancelled(request_id=RequestId("big")))
        assert outline(effects) == [
            ("cancel", "prefill-0"),
            ("cancel", "decode-0"),
            ("announce",),
            ("submit", "decode-0", "decode", "0"),
            ("submit", "prefill-0", "prefill", "0"),
        ]

    def test_sequences_are_bounded_as_well_as_blocks(self) -> None:
        cluster = Cluster(make_joined("decode-0", max_num_seqs=2))
        for name in ("a", "b", "c"):
            arrive(cluster, name)
        assert cluster.core.queued_request_count == 1

    def test_a_small_request_passes_one_that_finds_no_room(self) -> None:
        cluster = Cluster("decode-0")
        arrive(cluster, "running", prompt_token_count=800)
        arrive(cluster, "head", prompt_token_count=1000)
        assert only(arrive(cluster, "small"), Submit).request.request_id == "small"

    def test_a_full_queue_says_when_to_come_back(self) -> None:
        cluster = Cluster("decode-0", queue_request_count_max=2)
        arrive(cluster, "running", prompt_token_count=1500, max_tokens=100)
        arrive(cluster, "a")
        arrive(cluster, "b")
        error = only(arrive(cluster, "c"), Fail).error
        assert isinstance(error, AdmissionRejected)
        assert error.retry_after_s > 0
        assert "2" in str(error)
        assert RequestId("c") not in cluster.core.requests

    def test_the_wait_follows_from_how_fast_requests_end(self) -> None:
        cluster = Cluster("decode-0", queue_request_count_max=4)
        for index in range(8):
            arrive(cluster, f"quick-{index}")
            cluster.step(started(request_id=f"quick-{index}"))
            cluster.step(finished(request_id=f"quick-{index}"), after_s=2.0)
        arrive(cluster, "running", prompt_token_count=1500, max_tokens=100)
        for index in range(4):
            arrive(cluster, f"waiting-{index}")
        error = only(arrive(cluster, "refused"), Fail).error
        assert isinstance(error, AdmissionRejected)
        assert error.retry_after_s == pytest.approx(4 * 2.0, rel=0.2)

    def test_an_id_in_use_is_a_bug_of_the_caller(self) -> None:
        cluster = Cluster("decode-0")
        arrive(cluster)
        with pytest.raises(AssertionError, match="r1 is in use"):
            arrive(cluster)


def arrive_with(cluster: Cluster, request_id: str, *, priority: int) -> list[Effect]:
    request = replace(make_request(request_id), priority=priority)
    return cluster.step(RequestArrived(request=request))


def places(cluster: Cluster, *, holder: str = "running") -> list[str]:
    """Who is placed, in order, when the one that holds all room ends."""
    effects = cluster.step(RequestCancelled(request_id=RequestId(holder)))
    return [effect.request.request_id for effect in effects if isinstance(effect, Submit)]


class TestPriority:
    def full_cluster(self) -> Cluster:
        cluster = Cluster("decode-0")
        arrive(cluster, "running", prompt_token_count=1500, max_tokens=100)
        return cluster

    def test_lower_runs_earlier_and_equals_run_by_arrival(self) -> None:
        cluster = self.full_cluster()
        waiting = {"a": 0, "b": -1, "c": 5, "d": -1, "e": 0, "f": -2}
        for name, priority in waiting.items():
            assert arrive_with(cluster, name, priority=priority) == []
        assert places(cluster) == ["f", "b", "d", "a", "e", "c"]

    def test_nobody_starves_within_a_class(self) -> None:
        """One leaves, one comes, for ever: whoever waits moves up each time."""
        cluster = Cluster(make_joined("decode-0", max_num_seqs=1))
        placed = ["r0"]
        arrive_with(cluster, "r0", priority=3)
        for index in range(1, 4):
            arrive_with(cluster, f"r{index}", priority=3)
        for index in range(4, 40):
            arrive_with(cluster, f"r{index}", priority=3)
            placed += places(cluster, holder=placed[-1])
        assert placed == [f"r{index}" for index in range(37)]

    def test_an_interrupted_request_goes_before_every_new_one(self) -> None:
        cluster = Cluster(make_joined("decode-0", max_num_seqs=1))
        arrive_with(cluster, "old", priority=9)
        arrive_with(cluster, "urgent", priority=-9)
        effects = cluster.step(lost("decode-0"))
        effects += cluster.step(make_joined("decode-0", boot_epoch=2, max_num_seqs=1))
        assert only(effects, Submit).request.request_id == "old"

    def test_an_urgent_request_is_refused_by_a_full_queue_too(self) -> None:
        cluster = Cluster("decode-0", queue_request_count_max=1)
        arrive(cluster, "running", prompt_token_count=1500, max_tokens=100)
        arrive_with(cluster, "waiting", priority=9)
        error = only(arrive_with(cluster, "urgent", priority=-9), Fail).error
        assert isinstance(error, AdmissionRejected)


class TestCancellation:
    @pytest.mark.parametrize(
        ("news", "expected"),
        [
            ([], [("cancel", "prefill-0"), ("cancel", "decode-0")]),
            ([first_token()], [("cancel", "prefill-0"), ("cancel", "decode-0")]),
            ([first_token(), ready()], [("cancel", "decode-0")]),
        ],
        ids=["prefilling", "transferring", "decoding"],
    )
    def test_every_node_that_works_for_it_is_told(
        self, news: list[Any], expected: list[tuple[str, ...]]
    ) -> None:
        cluster = Cluster("prefill-0", "decode-0")
        arrive(cluster)
        for event in news:
            cluster.step(event)
        assert outline(cluster.step(RequestCancelled(request_id=R1))) == expected
        assert cluster.step(RequestCancelled(request_id=R1)) == []
        assert cluster.step(finished()) == []

    def test_a_waiting_request_leaves_the_queue(self) -> None:
        cluster = Cluster("decode-0")
        arrive(cluster, "running", prompt_token_count=1500, max_tokens=100)
        arrive(cluster, "r1")
        assert cluster.step(RequestCancelled(request_id=R1)) == []
        assert cluster.core.queued_request_count == 0


class TestLosingANode:
    def test_prefill_lost_before_the_first_token_starts_the_prompt_elsewhere(self) -> None:
        cluster = Cluster("prefill-0", "prefill-1", "decode-0")
        arrive(cluster)
        has_it, other = places_of(cluster, "prefill")
        effects = cluster.step(lost(has_it))
        assert outline(effects) == [
            ("cancel", "decode-0"),
            ("submit", "decode-0", "decode", "1"),
            ("submit", other, "prefill", "1"),
        ]

    def test_prefill_lost_during_the_transfer_goes_on_where_the_client_is(self) -> None:
        cluster = Cluster("prefill-0", "decode-0")
        arrive(cluster)
        cluster.step(first_token())
        effects = cluster.step(lost("prefill-0"))
        assert outline(effects) == [("cancel", "decode-0"), ("submit", "decode-0", "local", "1")]

    def test_prefill_lost_after_the_transfer_changes_nothing(self) -> None:
        cluster = decoding()
        assert outline(cluster.step(lost("prefill-0"))) == []
        assert only(cluster.step(finished()), Complete)

    def test_decode_lost_mid_stream_goes_on_on_another_decode_node(self) -> None:
        cluster = decoding()
        cluster.step(make_joined("decode-1"))
        assert outline(cluster.step(lost("decode-0"))) == [("submit", "decode-1", "local", "1")]
        cluster.step(started(generation=1))
        complete = only(cluster.step(finished("decode-1", generation=1)), Complete)
        assert complete.plan.path is Path.LOCAL
        assert complete.plan.reason == "resumed after a node was lost"

    def test_decode_lost_with_no_other_waits_for_one(self) -> None:
        cluster = decoding()
        assert outline(cluster.step(lost("decode-0"))) == []
        assert cluster.core.queued_request_count == 1
        effects = cluster.step(make_joined("decode-0", boot_epoch=2), after_s=30.0)
        assert outline(effects) == [("submit", "decode-0", "local", "1")]

    def test_output_that_looks_back_cannot_change_engines(self) -> None:
        cluster = Cluster("decode-0", "decode-1")
        arrive(cluster, presence_penalty=0.5)
        cluster.step(started())
        error = only(cluster.step(lost(places_of(cluster, "decode")[0])), Fail).error
        assert isinstance(error, RequestFailed)
        assert "presence_penalty" in str(error)

    def test_output_that_looks_back_may_still_start_anew(self) -> None:
        cluster = Cluster("decode-0", "decode-1")
        arrive(cluster, presence_penalty=0.5)
        has_it, other = places_of(cluster, "decode")
        assert outline(cluster.step(lost(has_it))) == [("submit", other, "local", "1")]

    def test_the_oldest_of_the_lost_nodes_requests_goes_first(self) -> None:
        cluster = Cluster("decode-0")
        for name in ("a", "b", "c"):
            arrive(cluster, name)
        cluster.step(lost("decode-0"))
        effects = cluster.step(make_joined("decode-1"))
        assert [e.request.request_id for e in effects if isinstance(e, Submit)] == ["a", "b", "c"]

    def test_a_loss_of_a_former_life_is_ignored(self) -> None:
        cluster = Cluster("prefill-0", make_joined("decode-0", boot_epoch=2))
        arrive(cluster)
        assert cluster.step(lost("decode-0", boot_epoch=1)) == []
        assert cluster.core.nodes[NodeName("decode-0")].state is NodeState.READY

    def test_a_newer_life_ends_the_former_and_what_it_ran(self) -> None:
        cluster = Cluster("decode-0")
        arrive(cluster)
        effects = cluster.step(make_joined("decode-0", boot_epoch=2))
        assert outline(effects) == [("disconnect",), ("submit", "decode-0", "local", "1")]
        assert only(effects, Disconnect).identity == make_identity("decode-0", boot_epoch=1)

    def test_the_same_life_attached_again_is_not_cut_off(self) -> None:
        cluster = Cluster("decode-0")
        arrive(cluster)
        effects = cluster.step(make_joined("decode-0"))
        assert outline(effects) == [("submit", "decode-0", "local", "1")]

    def test_a_silent_node_is_lost_by_the_clock(self) -> None:
        cluster = Cluster("decode-0", "decode-1", node_silence_s=10.0)
        arrive(cluster)
        has_it, other = places_of(cluster, "decode")
        report = NodeReported(
            node=NodeName(other),
            free_block_count=100,
            running_sequence_count=0,
            waiting_sequence_count=0,
        )
        assert cluster.step(report, after_s=8.0) == []
        effects = cluster.step(Tick(), after_s=2.5)
        assert outline(effects) == [("disconnect",), ("submit", other, "local", "1")]
        assert only(effects, Disconnect).identity.name == has_it
        assert "silent for 10.5 s" in only(effects, Disconnect).reason

    def test_reports_of_a_lost_node_do_not_bring_it_back(self) -> None:
        cluster = Cluster("decode-0")
        cluster.step(lost("decode-0"))
        cluster.step(
            NodeReported(
                node=NodeName("decode-0"),
                free_block_count=1,
                running_sequence_count=0,
                waiting_sequence_count=0,
            )
        )
        assert cluster.core.nodes[NodeName("decode-0")].state is NodeState.LOST

    def test_a_lost_node_is_listed_for_a_while_and_then_forgotten(self) -> None:
        cluster = Cluster("decode-0", lost_node_memory_s=600.0)
        arrive(cluster)
        cluster.step(lost("decode-0"), after_s=1.0)
        assert cluster.step(Tick(), after_s=598.0) == []
        assert list(cluster.core.nodes) == ["decode-0"]
        effects = cluster.step(Tick(), after_s=1.0)
        assert only(effects, ForgetNode).node == "decode-0"
        assert not cluster.core.nodes
        cluster.step(make_joined("decode-0", boot_epoch=2))
        assert cluster.core.nodes[NodeName("decode-0")].takes_work

    def test_a_node_that_came_back_is_not_forgotten(self) -> None:
        cluster = Cluster("decode-0", lost_node_memory_s=5.0, node_silence_s=10.0)
        cluster.step(lost("decode-0"))
        cluster.step(make_joined("decode-0", boot_epoch=2), after_s=1.0)
        assert cluster.step(Tick(), after_s=9.0) == []

    def test_lost_nodes_are_bounded_in_number(self) -> None:
        cluster = Cluster(lost_node_count_max=2)
        for index in range(5):
            cluster.step(make_joined(f"decode-{index}"), after_s=0.5)
            cluster.step(lost(f"decode-{index}"))
        cluster.step(Tick())
        assert list(cluster.core.nodes) == ["decode-3", "decode-4"]

    def test_a_degraded_node_still_works_and_says_why(self) -> None:
        cluster = Cluster("decode-0")
        for reason, state in (("slow NIC", NodeState.DEGRADED), ("", NodeState.READY)):
            cluster.step(
                NodeReported(
                    node=NodeName("decode-0"),
                    free_block_count=1,
                    running_sequence_count=2,
                    waiting_sequence_count=3,
                    degraded_reason=reason,
                )
            )
            node = cluster.core.nodes[NodeName("decode-0")]
            assert (node.state, node.state_reason, node.takes_work) == (state, reason, True)


class TestJobFailures:
    def test_an_invalid_request_is_not_tried_again(self) -> None:
        cluster = Cluster("prefill-0", "decode-0")
        arrive(cluster)
        effects = cluster.step(failed("prefill-0", kind=FailureKind.INVALID))
        assert ("fail", "InvalidRequest") in outline(effects)
        assert ("cancel", "decode-0") in outline(effects)

    def test_a_deadline_on_a_node_is_not_the_clients_fault(self) -> None:
        cluster = Cluster("prefill-0", "decode-0")
        arrive(cluster, deadline_s=3.0)
        effects = cluster.step(failed(kind=FailureKind.DEADLINE), after_s=2.9)
        error = only(effects, Fail).error
        assert isinstance(error, DeadlineExceeded)
        assert "3 s" in str(error)

    def test_a_failed_engine_is_not_asked_again_while_another_is_there(self) -> None:
        cluster = Cluster("decode-0", "decode-1")
        arrive(cluster)
        has_it, other = places_of(cluster, "decode")
        assert outline(cluster.step(failed(has_it)))[-1] == ("submit", other, "local", "1")

    def test_a_dying_engine_does_not_use_up_all_attempts_before_its_node_is_lost(self) -> None:
        cluster = Cluster("decode-0")
        arrive(cluster)
        effects = cluster.step(failed("decode-0"))
        assert outline(effects) == [("cancel", "decode-0")]
        assert cluster.step(Tick(), after_s=0.25) == []
        cluster.step(lost("decode-0"))
        effects = cluster.step(make_joined("decode-0", boot_epoch=2), after_s=0.25)
        assert outline(effects) == [("submit", "decode-0", "local", "1")]

    def test_the_only_node_gets_it_again_after_a_pause(self) -> None:
        cluster = Cluster("decode-0")
        arrive(cluster)
        cluster.step(failed("decode-0"))
        assert outline(cluster.step(Tick(), after_s=2.0)) == [("submit", "decode-0", "local", "1")]

    def test_others_do_not_wait_for_a_request_that_pauses(self) -> None:
        cluster = Cluster("decode-0")
        arrive(cluster)
        cluster.step(failed("decode-0"))
        assert outline(arrive(cluster, "r2"))[-1] == ("submit", "decode-0", "local", "0")

    def test_attempts_are_bounded(self) -> None:
        cluster = Cluster("decode-0", attempt_count_max=3)
        arrive(cluster)
        for generation in range(2):
            cluster.step(failed(generation=generation))
            cluster.step(Tick(), after_s=5.0)
        error = only(cluster.step(failed(generation=2)), Fail).error
        assert isinstance(error, RequestFailed)
        assert "gave up after 3 failed attempts" in str(error)
        assert "something broke" in str(error)

    def test_lost_nodes_do_not_count_as_failed_attempts(self) -> None:
        """A rolling restart of more nodes than a request has attempts."""
        cluster = Cluster("decode-0", attempt_count_max=2)
        arrive(cluster)
        cluster.step(started())
        for generation in range(6):
            cluster.step(lost(f"decode-{generation}"))
            effects = cluster.step(make_joined(f"decode-{generation + 1}"))
            assert only(effects, Submit).generation == generation + 1
        assert only(cluster.step(finished("decode-6", generation=6)), Complete)

    def test_an_older_attempts_failure_is_ignored(self) -> None:
        cluster = Cluster("decode-0", "decode-1")
        arrive(cluster)
        has_it, _ = places_of(cluster, "decode")
        cluster.step(failed(has_it))
        assert cluster.step(failed(has_it)) == []

    def test_a_prefill_node_that_fails_after_its_part_is_ignored(self) -> None:
        assert decoding().step(failed("prefill-0")) == []

    def test_a_node_that_has_no_part_in_it_is_ignored(self) -> None:
        cluster = Cluster("prefill-0", "decode-0", "decode-1")
        arrive(cluster)
        _, other = places_of(cluster, "decode")
        for event in (
            failed(other),
            first_token(other),
            first_token("nobody"),
            finished(other),
        ):
            assert cluster.step(event) == []
        assert cluster.core.requests[R1].phase is Phase.PREFILLING


class TestTheQueueAfterALoss:
    def test_a_request_that_no_present_node_can_hold_does_not_block_the_others(self) -> None:
        small = make_joined("decode-1", block_count=11)
        cluster = Cluster(make_joined("decode-0"), small)
        arrive(cluster, "big", prompt_token_count=1500, max_tokens=50)
        cluster.step(lost("decode-0"))
        assert cluster.core.queued_request_count == 1
        assert outline(arrive(cluster, "r1"))[-1] == ("submit", "decode-1", "local", "0")
        effects = cluster.step(make_joined("decode-2"))
        assert [e.request.request_id for e in effects if isinstance(e, Submit)] == ["big"]


class TestDeadlines:
    @pytest.mark.parametrize("node_count", [0, 1])
    def test_waiting_or_running_it_ends_with_an_error(self, node_count: int) -> None:
        cluster = Cluster("decode-0")
        arrive(cluster, deadline_s=5.0)
        if node_count == 0:
            cluster.step(lost("decode-0"))
        assert not any(isinstance(e, Fail) for e in cluster.step(Tick(), after_s=4.9))
        error = only(cluster.step(Tick(), after_s=0.1), Fail).error
        assert isinstance(error, DeadlineExceeded)
        assert "5 s" in str(error)


class TestStageTimes:
    def test_they_cut_the_clients_latency_where_the_scheduler_saw_it(self) -> None:
        cluster = Cluster("prefill-0", "decode-0")
        arrive(cluster, "big", prompt_token_count=1500, max_tokens=100)
        arrive(cluster)
        cluster.step(RequestCancelled(request_id=RequestId("big")), after_s=1.0)
        cluster.step(first_token(queue_s=0.25), after_s=2.0)
        cluster.step(ready(), after_s=0.5)
        times = only(cluster.step(finished(), after_s=4.0), Complete).times
        assert (times.queue_s, times.prefill_s) == (1.25, 1.75)
        assert (times.transfer_s, times.decode_s) == (0.5, 4.0)

    def test_a_local_request_has_no_transfer(self) -> None:
        cluster = Cluster("decode-0")
        arrive(cluster)
        cluster.step(started(), after_s=2.0)
        times = only(cluster.step(finished(queue_s=0.5), after_s=4.0), Complete).times
        assert (times.queue_s, times.prefill_s) == (0.5, 1.5)
        assert (times.transfer_s, times.decode_s) == (0.0, 4.0)

    def test_a_failover_counts_as_decoding_and_nothing_counts_twice(self) -> None:
        cluster = decoding()  # at once
        cluster.step(lost("decode-0"), after_s=4.0)
        cluster.step(make_joined("decode-1"), after_s=8.0)
        cluster.step(started(generation=1), after_s=2.0)
        done = finished("decode-1", generation=1, queue_s=1.0)
        times = only(cluster.step(done, after_s=1.0), Complete).times
        assert times.queue_s + times.prefill_s + times.transfer_s + times.decode_s == 15.0
        assert times.decode_s == 15.0

    def test_cached_tokens_of_a_resumed_request_do_not_exceed_its_prompt(self) -> None:
        cluster = decoding()
        cluster.step(make_joined("decode-1"))
        cluster.step(lost("decode-0"))
        cluster.step(started(generation=1))
        done = finished("decode-1", generation=1, cached_tokens=48)
        assert only(cluster.step(done), Complete).cached_tokens == 32
