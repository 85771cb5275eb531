"""Requests with several choices: one prompt, one lease, and an end for each."""

from dataclasses import replace
from typing import Any

import pytest

from pdd.core.errors import InvalidRequest
from pdd.core.frames import FinishReason
from pdd.core.identity import Forking, NodeName, RequestId
from pdd.core.requests import Path
from pdd.scheduler.effects import Cancel, Complete, Effect, Fail, GiveFirstToken, Submit
from pdd.scheduler.events import (
    DecodeReady,
    FirstTokenSampled,
    NodeLost,
    RequestArrived,
    RequestCancelled,
    SequenceFinished,
    SequenceGrew,
    SequenceStarted,
)
from pdd.scheduler.requests import Phase
from pdd.scheduler.settings import EstimateSettings, PathMode, PathSettings
from tests.builders import Cluster, make_finish, make_identity, make_joined, make_request

R1 = RequestId("r1")
PREFILL, DECODE = NodeName("prefill-0"), NodeName("decode-0")


def cluster_of(*extra: str, forking: Forking = Forking.SHARED, **settings: Any) -> Cluster:
    names = ("prefill-0", "decode-0", *extra)
    return Cluster(*(make_joined(name, forking=forking) for name in names), **settings)


def arrive(cluster: Cluster, n: int, **fields: Any) -> list[Effect]:
    request = replace(make_request(**fields), choice_count=n)
    return cluster.step(RequestArrived(request=request))


def first(choice: int, *, reason: FinishReason = FinishReason.HANDOVER) -> FirstTokenSampled:
    return FirstTokenSampled(
        request_id=R1,
        generation=0,
        node=PREFILL,
        token_id=70 + choice,
        finish=make_finish(reason, computed_prompt_tokens=40),
        choice_index=choice,
    )


def finished(choice: int, *, generation: int = 0, node: str = "decode-0") -> SequenceFinished:
    return SequenceFinished(
        request_id=R1,
        generation=generation,
        node=NodeName(node),
        finish=make_finish(transferred_bytes=99),
        choice_index=choice,
    )


def decoding(cluster: Cluster, n: int, **fields: Any) -> None:
    arrive(cluster, n, **fields)
    for choice in range(n):
        cluster.step(first(choice))
    cluster.step(DecodeReady(request_id=R1, generation=0))
    assert cluster.core.requests[R1].phase is Phase.DECODING


class TestLeases:
    @pytest.mark.parametrize(
        ("forking", "blocks"),
        # 40 prompt and 30 output tokens: 5 blocks, of which the prompt's 2 full ones can be shared
        [(Forking.SHARED, 2 + 4 * 3), (Forking.APART, 4 * 5)],
    )
    def test_they_count_each_choice_s_own_blocks_and_what_is_shared_once(
        self, forking: Forking, blocks: int
    ) -> None:
        cluster = cluster_of(forking=forking)
        arrive(cluster, 4, prompt_token_count=40, max_tokens=30)
        node = cluster.core.nodes[DECODE]
        assert node.leases[R1] == blocks
        assert node.sequence_count == 4

    def test_a_choice_that_ends_gives_back_its_part(self) -> None:
        cluster = cluster_of()
        decoding(cluster, 4, prompt_token_count=40, max_tokens=30)
        assert cluster.step(finished(2)) == []
        node = cluster.core.nodes[DECODE]
        assert (node.leases[R1], node.sequence_count) == (2 + 3 * 3, 3)
        assert cluster.step(finished(2)) == [], "told twice"
        assert node.sequence_count == 3

    def test_they_grow_for_all_choices_together(self) -> None:
        cluster = cluster_of(estimates=EstimateSettings(output_tokens=16.0))
        decoding(cluster, 2, prompt_token_count=32, max_tokens=400)
        request, node = cluster.core.requests[R1], cluster.core.nodes[DECODE]
        before = node.leases[R1]
        cluster.step(
            SequenceGrew(request_id=R1, generation=0, output_token_count=request.grows_at_tokens)
        )
        grown = node.blocks_for(32 + request.granted_tokens)
        assert node.leases[R1] == 2 + 2 * (grown - 2) > before


class TestFirstTokens:
    def test_they_go_to_the_decode_node_when_all_are_there(self) -> None:
        cluster = cluster_of()
        arrive(cluster, 3)
        assert cluster.step(first(1)) == []
        assert cluster.step(first(0)) == []
        assert cluster.step(first(1)) == [], "told twice"
        (give,) = cluster.step(first(2))
        assert isinstance(give, GiveFirstToken)
        assert give.token_ids == {0: 70, 1: 71, 2: 72}

    def test_one_that_ends_its_choice_does_not_go_on(self) -> None:
        cluster = cluster_of()
        arrive(cluster, 3)
        cluster.step(first(0))
        cluster.step(first(1, reason=FinishReason.STOP))
        (give,) = cluster.step(first(2))
        assert isinstance(give, GiveFirstToken)
        assert give.token_ids == {0: 70, 2: 72}
        assert cluster.core.nodes[DECODE].sequence_count == 2

    def test_where_all_end_there_is_nothing_to_decode(self) -> None:
        cluster = cluster_of()
        arrive(cluster, 2)
        cluster.step(first(0, reason=FinishReason.STOP))
        effects = cluster.step(first(1, reason=FinishReason.STOP))
        assert [type(effect) for effect in effects] == [Cancel, Complete]
        assert effects[0] == Cancel(node=DECODE, request_id=R1)


def test_the_request_ends_with_its_last_choice() -> None:
    cluster = cluster_of()
    decoding(cluster, 3)
    assert cluster.step(finished(1)) == []
    assert cluster.step(finished(0)) == []
    (told,) = cluster.step(finished(2))
    assert isinstance(told, Complete)
    assert told.plan.path is Path.DISAGGREGATED
    assert told.transferred_bytes == 99


@pytest.mark.parametrize(
    ("computed", "forked", "path"),
    [(44, 44, Path.DISAGGREGATED), (45, 44, Path.DISAGGREGATED), (84, 44, Path.LOCAL)],
    ids=["forks only", "and the last position", "and lost blocks"],
)
def test_what_forks_compute_again_is_told_and_is_no_lost_block(
    computed: int, forked: int, path: Path
) -> None:
    cluster = cluster_of()
    decoding(cluster, 2)
    cluster.step(finished(0))
    finish = make_finish(computed_prompt_tokens=computed, forked_prompt_tokens=forked)
    (told,) = cluster.step(replace(finished(1), finish=finish))
    assert isinstance(told, Complete)
    assert (told.plan.path, told.decode_computed_prompt_tokens) == (path, computed)


class TestANodeIsLost:
    def test_only_what_has_not_ended_is_resumed(self) -> None:
        cluster = cluster_of("decode-1")
        arrive(cluster, 4)
        held = next(n for n in ("decode-0", "decode-1") if R1 in cluster.core.nodes[n].leases)
        other = "decode-1" if held == "decode-0" else "decode-0"
        for choice in range(4):
            cluster.step(first(choice))
        cluster.step(DecodeReady(request_id=R1, generation=0))
        cluster.step(finished(2, node=held))
        effects = cluster.step(NodeLost(identity=make_identity(held), reason="x"))
        (submit,) = [effect for effect in effects if isinstance(effect, Submit)]
        assert (submit.node, submit.kind, submit.choices) == (other, "local", (0, 1, 3))
        cluster.step(SequenceStarted(request_id=R1, generation=1))
        for choice in (0, 1):
            assert cluster.step(finished(choice, generation=1, node=other)) == []
        (told,) = cluster.step(finished(3, generation=1, node=other))
        assert isinstance(told, Complete)

    def test_between_two_first_tokens_no_token_travels_a_second_time(self) -> None:
        """The client has one: what another node samples must not replace it."""
        cluster = cluster_of("prefill-1")
        arrive(cluster, 2)
        held = next(n for n in ("prefill-0", "prefill-1") if R1 in cluster.core.nodes[n].leases)
        cluster.step(replace(first(0), node=NodeName(held)))
        effects = cluster.step(NodeLost(identity=make_identity(held), reason="x"))
        (submit,) = [effect for effect in effects if isinstance(effect, Submit)]
        assert (submit.kind, submit.choices) == ("local", (0, 1))

    def test_before_any_token_all_begins_anew(self) -> None:
        cluster = cluster_of("prefill-1")
        arrive(cluster, 2)
        held = next(n for n in ("prefill-0", "prefill-1") if R1 in cluster.core.nodes[n].leases)
        effects = cluster.step(NodeLost(identity=make_identity(held), reason="x"))
        kinds = [effect.kind for effect in effects if isinstance(effect, Submit)]
        assert kinds == ["decode", "prefill"]


class TestRoom:
    def test_no_node_could_ever_run_so_many(self) -> None:
        cluster = cluster_of()
        (refused,) = arrive(cluster, 17)
        assert isinstance(refused, Fail)
        assert isinstance(refused.error, InvalidRequest)
        assert refused.error.field == "n"
        assert "17 choices want 17 sequences" in str(refused.error)
        assert "it holds 16 and 100" in str(refused.error)

    def test_no_node_has_the_blocks_for_so_many(self) -> None:
        cluster = cluster_of()
        (refused,) = arrive(cluster, 8, prompt_token_count=160, max_tokens=320)
        assert isinstance(refused, Fail)
        assert isinstance(refused.error, InvalidRequest)
        assert refused.error.field == "n"
        assert "8 sequences and 170 blocks" in str(refused.error)

    def test_nodes_that_run_one_choice_are_not_asked_for_more(self) -> None:
        cluster = cluster_of(forking=Forking.NONE)
        (refused,) = arrive(cluster, 2)
        assert isinstance(refused, Fail)
        assert "it runs one choice per request" in str(refused.error)
        cluster.step(make_joined("decode-1", forking=Forking.APART))
        effects = arrive(cluster, 2, request_id="r2")
        (submit,) = [effect for effect in effects if isinstance(effect, Submit)]
        assert (submit.node, submit.kind) == ("decode-1", "local"), "an old prefill node took part"

    def test_it_waits_until_there_are_sequences_for_all(self) -> None:
        cluster = cluster_of(path=PathSettings(mode=PathMode.LOCAL))
        for number in range(14):
            arrive(cluster, 1, request_id=f"other{number}")
        arrive(cluster, 3)
        assert cluster.core.requests[R1].phase is Phase.QUEUED
        effects = cluster.step(RequestCancelled(request_id=RequestId("other0")))
        assert [effect.node for effect in effects if isinstance(effect, Submit)] == [DECODE]


def test_a_cancel_is_one_for_all_choices() -> None:
    cluster = cluster_of()
    decoding(cluster, 5)
    assert cluster.step(RequestCancelled(request_id=R1)) == [Cancel(node=DECODE, request_id=R1)]
