"""Nodes change their duty: by hand, by the controller, and what goes wrong meanwhile."""

from typing import Any

import pytest

from pdd.core.frames import EngineFacts, FinishReason
from pdd.core.identity import NodeName, NodeState, RequestId, Role
from pdd.scheduler.effects import DismissPeer, Effect, IntroducePeers, Submit
from pdd.scheduler.events import (
    DecodeReady,
    FirstTokenSampled,
    HeldSequence,
    NodeCordoned,
    NodeLost,
    NodeRoleGiven,
    NodeRoleReleased,
    NodeRoleSet,
    NodeUncordoned,
    RequestArrived,
    SequenceFinished,
    Tick,
)
from pdd.scheduler.group_events import LeadershipChanged
from pdd.scheduler.nodes import Node
from pdd.scheduler.requests import Phase
from pdd.scheduler.roles.book import RoleNews, SwitchBy, SwitchStage
from pdd.scheduler.roles.settings import RoleMode, RoleSettings
from tests.builders import Cluster, make_finish, make_identity, make_joined, make_request

PREFILL, DECODE = Role.PREFILL, Role.DECODE
BEGUN, DONE = SwitchStage.BEGUN, SwitchStage.DONE
ABANDONED, ADVISED = SwitchStage.ABANDONED, SwitchStage.ADVISED


def make_cluster(*nodes: Any, **roles: Any) -> Cluster:
    return Cluster(*nodes, roles=RoleSettings(**roles))


def node_of(cluster: Cluster, name: str) -> Node:
    return cluster.core.nodes[NodeName(name)]


def set_role(cluster: Cluster, name: str, role: Role) -> list[Effect]:
    return cluster.step(NodeRoleSet(node=NodeName(name), role=role, message="by hand"))


def arrive(cluster: Cluster, request_id: str, **request: Any) -> dict[str, str]:
    """Where its jobs went: kind to node."""
    effects = cluster.step(RequestArrived(request=make_request(request_id, **request)))
    return {effect.kind: effect.node for effect in effects if isinstance(effect, Submit)}


def prefilled(cluster: Cluster, request_id: str) -> list[Effect]:
    """Its prompt is computed and its blocks are over: it decodes."""
    request = cluster.core.requests[RequestId(request_id)]
    assert request.prefill is not None
    cluster.step(
        FirstTokenSampled(
            request_id=request.id,
            generation=request.generation,
            node=request.prefill,
            token_id=7,
            finish=make_finish(FinishReason.HANDOVER),
        )
    )
    return cluster.step(DecodeReady(request_id=request.id, generation=request.generation))


def finish(cluster: Cluster, request_id: str) -> list[Effect]:
    request = cluster.core.requests[RequestId(request_id)]
    node = request.runs_on()
    assert node is not None
    return cluster.step(
        SequenceFinished(
            request_id=request.id,
            generation=request.generation,
            node=node,
            finish=make_finish(),
            output_token_count=16,
        )
    )


def news(effects: list[Effect]) -> list[tuple[str, SwitchStage]]:
    return [(one.node, one.stage) for one in effects if isinstance(one, RoleNews)]


def test_an_idle_node_has_its_new_duty_at_once() -> None:
    cluster = make_cluster("prefill-0", "decode-0", "decode-1")
    effects = set_role(cluster, "decode-1", PREFILL)
    # it is introduced and has changed within one event
    assert news(effects) == [("decode-1", BEGUN), ("decode-1", DONE)]
    assert node_of(cluster, "decode-1").role is PREFILL
    assert node_of(cluster, "decode-1").home_role is DECODE
    assert set_role(cluster, "decode-1", PREFILL) == []
    cluster.step(NodeLost(identity=make_identity("prefill-0"), reason="test"))
    assert arrive(cluster, "a") == {"decode": "decode-0", "prefill": "decode-1"}


def test_a_decode_node_finishes_what_it_has_before_it_computes_prompts() -> None:
    cluster = make_cluster("decode-0", "prefill-0")
    arrive(cluster, "old")
    prefilled(cluster, "old")
    cluster.step(make_joined("decode-1"))
    effects = set_role(cluster, "decode-0", PREFILL)
    assert news(effects) == [("decode-0", BEGUN)]
    assert node_of(cluster, "decode-0").role is DECODE
    assert not node_of(cluster, "decode-0").takes_work
    # new work of either kind goes elsewhere; the old one runs on
    assert arrive(cluster, "new") == {"decode": "decode-1", "prefill": "prefill-0"}
    assert cluster.core.requests[RequestId("old")].phase is Phase.DECODING
    effects = finish(cluster, "old")
    assert news(effects) == [("decode-0", DONE)]
    assert node_of(cluster, "decode-0").role is PREFILL


def test_a_prefill_node_hands_over_what_it_computes_before_it_decodes() -> None:
    cluster = make_cluster("prefill-0", "decode-0")
    arrive(cluster, "a")
    assert news(set_role(cluster, "prefill-0", DECODE)) == [("prefill-0", BEGUN)]
    assert arrive(cluster, "b") == {"local": "decode-0"}, "the last prefill node may go"
    assert news(prefilled(cluster, "a")) == [("prefill-0", DONE)]
    cluster.step(NodeCordoned(node=NodeName("decode-0")))
    assert arrive(cluster, "c") == {"local": "prefill-0"}


def test_peers_follow_duties_and_new_ones_are_met_before_they_are_needed() -> None:
    cluster = make_cluster("prefill-0", "decode-0", "decode-1")
    arrive(cluster, "a")
    held_by = cluster.core.requests[RequestId("a")].decode
    assert held_by is not None
    stays = "decode-1" if held_by == "decode-0" else "decode-0"
    prefilled(cluster, "a")
    effects = set_role(cluster, held_by, PREFILL)
    met = {
        (one.node, peer.name)
        for one in effects
        if isinstance(one, IntroducePeers)
        for peer in one.peers
    }
    assert met == {(held_by, stays), (stays, held_by)}
    assert not any(isinstance(one, DismissPeer) for one in effects), "its old work needs prefill-0"
    effects = finish(cluster, "a")
    parted = {(one.node, one.peer.name) for one in effects if isinstance(one, DismissPeer)}
    assert parted == {(held_by, "prefill-0"), ("prefill-0", held_by)}


def test_a_node_that_changes_has_the_peers_of_both_duties_when_it_is_lost() -> None:
    cluster = make_cluster("prefill-0", "decode-0", "decode-1")
    arrive(cluster, "a")
    held_by = cluster.core.requests[RequestId("a")].decode
    assert held_by is not None
    set_role(cluster, held_by, PREFILL)
    effects = cluster.step(NodeLost(identity=make_identity(held_by), reason="power"))
    told = {one.node for one in effects if isinstance(one, DismissPeer)}
    assert told == {"prefill-0", "decode-0", "decode-1"} - {held_by}


def test_a_node_that_dies_in_mid_switch_comes_back_with_what_was_set() -> None:
    cluster = make_cluster("decode-0", "prefill-0")
    arrive(cluster, "a")
    prefilled(cluster, "a")
    cluster.step(make_joined("decode-1"))
    set_role(cluster, "decode-0", PREFILL)
    effects = cluster.step(NodeLost(identity=make_identity("decode-0"), reason="power"))
    assert news(effects) == [("decode-0", ABANDONED)]
    assert cluster.core.requests[RequestId("a")].decode == "decode-1", "it goes on elsewhere"
    assert cluster.core.roles.switches == {}
    cluster.step(make_joined("decode-0", boot_epoch=2))
    assert node_of(cluster, "decode-0").role is PREFILL


def test_a_role_set_by_hand_waits_for_a_node_that_is_not_there() -> None:
    cluster = make_cluster("decode-1")
    set_role(cluster, "decode-0", PREFILL)  # as the schedulers have agreed, before it joins
    cluster.step(make_joined("decode-0"))
    assert node_of(cluster, "decode-0").role is PREFILL


def test_a_switch_that_takes_too_long_is_abandoned_and_tried_again_later() -> None:
    cluster = make_cluster("decode-0", "prefill-0", switch_deadline_s=30.0, cooldown_s=60.0)
    arrive(cluster, "a")
    prefilled(cluster, "a")
    cluster.step(make_joined("decode-1", max_num_seqs=1))
    set_role(cluster, "decode-0", PREFILL)
    cluster.step(make_joined("decode-1", max_num_seqs=1))  # a sign of life, as of the others below
    cluster.now_s += 30.0
    for node in cluster.core.nodes.values():
        node.seen_s = cluster.now_s
    effects = cluster.step(Tick())
    told = [one for one in effects if isinstance(one, RoleNews)]
    assert [one.stage for one in told] == [ABANDONED]
    assert told[0].reason == "1 requests still run after 30 s"
    assert node_of(cluster, "decode-0").takes_work
    assert node_of(cluster, "decode-0").role is DECODE
    for after_s, stages in ((59.0, []), (1.0, [BEGUN])):
        cluster.now_s += after_s
        for node in cluster.core.nodes.values():
            node.seen_s = cluster.now_s
        assert [one.stage for one in cluster.step(Tick()) if isinstance(one, RoleNews)] == stages


def test_the_last_decode_node_stays() -> None:
    cluster = make_cluster("prefill-0", "decode-0")
    name = NodeName("decode-0")
    assert "the last decode node" in cluster.core.role_refusal(name, PREFILL)
    assert news(set_role(cluster, "decode-0", PREFILL)) == []
    assert node_of(cluster, "decode-0").role is DECODE
    assert "the last decode node" in cluster.core.roles.waits[name]
    # as soon as there is another one, what was set is done
    cluster.step(make_joined("decode-1"))
    assert news(cluster.step(Tick())) == [("decode-0", BEGUN), ("decode-0", DONE)]
    assert cluster.core.roles.waits == {}


@pytest.mark.parametrize("how", ["lost", "cordoned"])
def test_a_node_in_mid_switch_goes_back_when_it_becomes_the_last_decode_node(how: str) -> None:
    cluster = make_cluster("decode-0", "prefill-0")
    arrive(cluster, "a")
    prefilled(cluster, "a")
    cluster.step(make_joined("decode-1"))
    set_role(cluster, "decode-0", PREFILL)
    if how == "lost":
        effects = cluster.step(NodeLost(identity=make_identity("decode-1"), reason="power"))
    else:
        effects = cluster.step(NodeCordoned(node=NodeName("decode-1")))
    assert news(effects) == [("decode-0", ABANDONED)]
    assert arrive(cluster, "b")["decode"] == "decode-0", "in the same moment"


def test_a_cordoned_node_changes_too_and_stays_cordoned() -> None:
    cluster = make_cluster("prefill-0", "decode-0")
    for name in ("prefill-0", "decode-0"):
        cluster.step(NodeCordoned(node=NodeName(name)))
    assert news(set_role(cluster, "decode-0", PREFILL)) == [("decode-0", BEGUN), ("decode-0", DONE)]
    assert node_of(cluster, "decode-0").state is NodeState.CORDONED


def test_a_pinned_node_says_so() -> None:
    cluster = make_cluster("prefill-0", "decode-0", make_joined("decode-1", is_pinned=True))
    name = NodeName("decode-1")
    assert "node.pin_role" in cluster.core.role_refusal(name, PREFILL)
    assert cluster.core.role_refusal(name, DECODE) == ""
    assert news(set_role(cluster, "decode-1", PREFILL)) == []
    assert "pins it" in cluster.core.roles.waits[name]
    cluster.step(make_joined("decode-1", boot_epoch=2, is_pinned=True))
    assert node_of(cluster, "decode-1").role is DECODE


def test_given_back_a_node_follows_its_configuration_where_no_controller_is() -> None:
    cluster = make_cluster("prefill-0", "decode-0", "decode-1")
    set_role(cluster, "decode-1", PREFILL)
    effects = cluster.step(NodeRoleReleased(node=NodeName("decode-1")))
    assert news(effects) == [("decode-1", BEGUN), ("decode-1", DONE)]
    assert node_of(cluster, "decode-1").role is DECODE
    assert cluster.step(NodeRoleReleased(node=NodeName("decode-1"))) == []


def test_given_back_a_node_stays_as_it_is_until_the_controller_has_a_reason() -> None:
    cluster = make_cluster("prefill-0", "decode-0", "decode-1", mode=RoleMode.AUTO)
    set_role(cluster, "decode-1", PREFILL)
    assert cluster.step(NodeRoleReleased(node=NodeName("decode-1"))) == []
    cluster.step(make_joined("decode-1", boot_epoch=2))
    assert node_of(cluster, "decode-1").role is PREFILL


FAST: dict[str, Any] = {
    "window_s": 1.0,
    "sustain_s": 1.0,
    "cooldown_s": 5.0,
    "guard_window_s": 5.0,
    "guard_count_min": 4,
}


def make_pressed(mode: RoleMode, *more: Any, **roles: Any) -> Cluster:
    """Decode is full of long outputs, two prefill nodes have nothing to do."""
    cluster = make_cluster(
        "prefill-0",
        "prefill-1",
        make_joined("decode-0", max_num_seqs=4),
        *more,
        mode=mode,
        **{**FAST, **roles},
    )
    for index in range(4):
        arrive(cluster, f"r{index}", prompt_token_count=16)
        prefilled(cluster, f"r{index}")
    return cluster


def pass_s(cluster: Cluster, seconds: float) -> list[RoleNews]:
    """Ticks; every node reports."""
    told: list[RoleNews] = []
    for _ in range(round(seconds * 4)):
        for node in cluster.core.nodes.values():
            node.seen_s = cluster.now_s
        effects = cluster.step(Tick(), after_s=0.25)
        told += [one for one in effects if isinstance(one, RoleNews)]
    return told


def test_off_nothing_is_switched_and_the_load_is_measured() -> None:
    cluster = make_pressed(RoleMode.OFF)
    assert pass_s(cluster, 30.0) == []
    assert cluster.core.role_loads()[DECODE].load_nodes == pytest.approx(1.0, abs=0.01)


def test_advise_says_it_and_does_nothing() -> None:
    cluster = make_pressed(RoleMode.ADVISE)
    told = pass_s(cluster, 4.0)
    assert [(one.stage, one.target, one.by) for one in told] == [
        (ADVISED, DECODE, SwitchBy.CONTROLLER)
    ]
    assert "decode pressure" in told[0].reason
    assert node_of(cluster, told[0].node).role is PREFILL
    assert len(pass_s(cluster, 5.0)) <= 1, "not with every tick"


def test_auto_switches_a_node_and_waiting_requests_have_it_at_once() -> None:
    cluster = make_pressed(RoleMode.AUTO)
    assert arrive(cluster, "waits") == {}
    told = pass_s(cluster, 4.0)
    assert [one.stage for one in told] == [BEGUN, DONE]
    request = cluster.core.requests[RequestId("waits")]
    assert request.decode == told[0].node
    assert cluster.core.roles.given == {told[0].node: DECODE}


def test_the_controller_leaves_the_least_number_of_nodes() -> None:
    cluster = make_pressed(RoleMode.AUTO, prefill_count_min=2)
    assert pass_s(cluster, 30.0) == []
    assert "the least is 2" in cluster.core.roles.controller.idle_reason


@pytest.mark.parametrize(
    ("node", "why"),
    [
        ({"is_pinned": True}, "pinned"),
        ({"max_num_seqs": 3}, "holds 3 sequences, the smallest decode node 4"),
        ({"max_model_len": 64}, "holds 64 tokens"),
    ],
)
def test_the_controller_leaves_alone_what_does_not_fit(node: dict[str, Any], why: str) -> None:
    cluster = make_pressed(RoleMode.AUTO, make_joined("prefill-1", boot_epoch=2, **node))
    cluster.step(make_joined("prefill-0", boot_epoch=2, **node))
    assert pass_s(cluster, 10.0) == []
    assert why in cluster.core.roles.controller.idle_reason


def test_the_controller_leaves_alone_what_an_operator_has_set() -> None:
    cluster = make_pressed(RoleMode.AUTO)
    for name in ("prefill-0", "prefill-1"):
        assert set_role(cluster, name, PREFILL) == []
    assert pass_s(cluster, 10.0) == []
    assert "set by hand" in cluster.core.roles.controller.idle_reason
    cluster.step(NodeRoleReleased(node=NodeName("prefill-1")))
    assert [one.node for one in pass_s(cluster, 4.0)] == ["prefill-1"] * 2


def test_an_operators_word_ends_a_switch_of_the_controller() -> None:
    cluster = make_pressed(RoleMode.AUTO)
    cluster.step(make_joined("decode-1", max_num_seqs=4))
    arrive(cluster, "on-its-way")  # decode-1; its prompt is with a prefill node
    for index in range(3):
        arrive(cluster, f"s{index}")
        prefilled(cluster, f"s{index}")
    busy = cluster.core.requests[RequestId("on-its-way")].prefill
    assert busy is not None
    idle = "prefill-1" if busy == "prefill-0" else "prefill-0"
    cluster.step(NodeLost(identity=make_identity(idle), reason="test"))
    for name in ("prefill-7", "prefill-8", "prefill-9"):
        cluster.step(make_joined(name))
        set_role(cluster, name, PREFILL)  # so that the controller takes the busy one
    told = pass_s(cluster, 5.0)
    assert [(one.node, one.stage) for one in told] == [(busy, BEGUN)]
    effects = set_role(cluster, busy, PREFILL)
    assert news(effects) == [(busy, ABANDONED)]
    assert node_of(cluster, busy).takes_work


def test_an_operator_may_make_a_switch_of_the_controller_their_own() -> None:
    cluster = make_pressed(RoleMode.AUTO)
    told = pass_s(cluster, 4.0)
    assert set_role(cluster, told[0].node, DECODE) == [], "it is so already"
    cluster.step(NodeCordoned(node=NodeName("decode-0")))
    assert node_of(cluster, told[0].node).role is DECODE


def test_a_switch_that_made_prompts_late_is_undone() -> None:
    """Before it, requests were good; after it, prompts take longer than they may."""
    cluster = make_pressed(RoleMode.AUTO, ttft_s=1.0, tpot_s=10.0)
    for index in range(4):
        finish(cluster, f"r{index}")
        arrive(cluster, f"more{index}", prompt_token_count=16)
        prefilled(cluster, f"more{index}")
    told = pass_s(cluster, 4.0)
    assert [one.stage for one in told] == [BEGUN, DONE]
    moved = told[0].node
    for index in range(6):
        arrive(cluster, f"late{index}", prompt_token_count=16)
    pass_s(cluster, 1.5)  # their prompts take so long
    for index in range(6):
        prefilled(cluster, f"late{index}")
        finish(cluster, f"late{index}")
    told = pass_s(cluster, 6.0)
    assert [(one.node, one.stage, one.target) for one in told] == [(moved, BEGUN, PREFILL)] + [
        (moved, DONE, PREFILL)
    ] * bool(len(told) > 1)
    assert told[0].by is SwitchBy.GUARD
    assert "good requests went from 100% to 0%" in told[0].reason


def test_the_way_back_needs_no_verdict() -> None:
    """The mix turns right after a switch: nobody waits for the guard to see that."""
    cluster = make_pressed(RoleMode.AUTO, guard_window_s=1000.0)
    told = pass_s(cluster, 4.0)
    assert [one.target for one in told] == [DECODE, DECODE]
    for index in range(4):
        finish(cluster, f"r{index}")
    for index in range(8):
        arrive(cluster, f"prompt{index}", max_tokens=1)
    told = pass_s(cluster, 10.0)
    assert [(one.stage, one.target, one.by) for one in told] == [
        (BEGUN, PREFILL, SwitchBy.CONTROLLER),
        (DONE, PREFILL, SwitchBy.CONTROLLER),
    ]


def held(request_id: str, *, max_tokens: int = 16) -> HeldSequence:
    return HeldSequence(
        request=make_request(request_id, max_tokens=max_tokens),
        keys=b"",
        generation=0,
        output_token_count=4,
        prefill_node=NodeName("prefill-0"),
        first_facts=EngineFacts(),
        arrived_age_s=2.0,
        placed_age_s=2.0,
        first_token_age_s=1.0,
        ready_age_s=1.0,
        ended_age_s=None,
    )


def test_what_runs_after_the_end_of_a_scheduler_is_finished_before_the_change() -> None:
    """The next life of the scheduler knows what was set; the node still runs an output."""
    cluster = make_cluster("decode-1", "prefill-0")
    set_role(cluster, "decode-0", PREFILL)
    effects = cluster.step(make_joined("decode-0", held=(held("old"),)))
    assert news(effects) == [("decode-0", BEGUN)]
    node = node_of(cluster, "decode-0")
    assert (node.role, node.next_role, list(node.leases)) == (DECODE, PREFILL, ["old"])
    assert arrive(cluster, "new") == {"decode": "decode-1", "prefill": "prefill-0"}
    assert news(finish(cluster, "old")) == [("decode-0", DONE)]


def test_a_node_that_comes_back_first_is_needed_as_it_is() -> None:
    cluster = make_cluster("prefill-0")
    set_role(cluster, "decode-0", PREFILL)
    assert news(cluster.step(make_joined("decode-0", held=(held("old"),)))) == []
    assert arrive(cluster, "new")["decode"] == "decode-0"
    cluster.step(make_joined("decode-1"))
    assert news(cluster.step(Tick())) == [("decode-0", BEGUN)]


def test_a_scheduler_that_does_not_lead_follows_and_decides_nothing() -> None:
    cluster = make_pressed(RoleMode.AUTO)
    cluster.step(LeadershipChanged(leads=False))
    assert pass_s(cluster, 10.0) == []
    # the leader has done it, and said so
    effects = cluster.step(NodeRoleGiven(node=NodeName("prefill-1"), role=DECODE))
    assert news(effects) == [("prefill-1", BEGUN), ("prefill-1", DONE)]
    # what waits for another decode node is tried again here too
    cluster.step(NodeRoleReleased(node=NodeName("prefill-1")))
    cluster.step(NodeCordoned(node=NodeName("prefill-1")))
    assert news(set_role(cluster, "decode-0", PREFILL)) == []
    cluster.step(NodeUncordoned(node=NodeName("prefill-1")))
    assert [(one.node, one.stage) for one in pass_s(cluster, 0.25)] == [("decode-0", BEGUN)]
