"""Cordon, uncordon and drain by hand."""

from pdd.core.errors import NodeUnavailable
from pdd.core.identity import NodeName, NodeState, RequestId, Role
from pdd.scheduler.effects import Effect, Fail, NodeDrained, Submit
from pdd.scheduler.events import (
    NodeCordoned,
    NodeLost,
    NodeReported,
    NodeUncordoned,
    RequestArrived,
    RequestCancelled,
)
from pdd.scheduler.nodes import not_ready_reason
from tests.builders import Cluster, make_identity, make_joined, make_request

DECODE_0 = NodeName("decode-0")


def arrive(cluster: Cluster, request_id: str) -> list[Effect]:
    return cluster.step(RequestArrived(request=make_request(request_id)))


def cordon(cluster: Cluster, *, is_drain: bool = False, message: str = "") -> list[Effect]:
    return cluster.step(NodeCordoned(node=DECODE_0, is_drain=is_drain, message=message))


def drained(effects: list[Effect]) -> list[NodeDrained]:
    return [effect for effect in effects if isinstance(effect, NodeDrained)]


def submits(effects: list[Effect]) -> list[str]:
    return [effect.node for effect in effects if isinstance(effect, Submit)]


def test_a_cordoned_node_keeps_what_it_has_and_gets_nothing_new() -> None:
    cluster = Cluster("decode-0")
    arrive(cluster, "a")
    assert cordon(cluster, message="swap NIC") == []
    node = cluster.core.nodes[DECODE_0]
    assert (node.state, node.state_reason) == (NodeState.CORDONED, "cordoned: swap NIC")
    assert RequestId("a") in node.leases
    cluster.step(make_joined("decode-1"))
    assert submits(arrive(cluster, "b")) == ["decode-1"]


def test_a_report_does_not_lift_a_cordon() -> None:
    cluster = Cluster("decode-0")
    cordon(cluster)
    report = NodeReported(
        node=DECODE_0, free_block_count=9, running_sequence_count=0, waiting_sequence_count=0
    )
    cluster.step(report)
    assert cluster.core.nodes[DECODE_0].state is NodeState.CORDONED


def test_uncordon_gives_it_work_at_once() -> None:
    cluster = Cluster(make_joined("decode-0"), make_joined("decode-1", max_num_seqs=1))
    cordon(cluster)
    arrive(cluster, "a")
    assert submits(arrive(cluster, "b")) == []
    assert submits(cluster.step(NodeUncordoned(node=DECODE_0))) == ["decode-0"]
    assert cluster.step(NodeUncordoned(node=DECODE_0)) == []


def test_a_drain_is_told_once_when_the_node_holds_nothing() -> None:
    cluster = Cluster("decode-0")
    arrive(cluster, "a")
    arrive(cluster, "b")
    assert drained(cordon(cluster, is_drain=True)) == []
    assert cluster.core.nodes[DECODE_0].state_reason == "draining"
    assert drained(cluster.step(RequestCancelled(request_id=RequestId("a")))) == []
    effects = cluster.step(RequestCancelled(request_id=RequestId("b")), after_s=3.0)
    assert drained(effects) == [
        NodeDrained(identity=make_identity("decode-0"), drained_s=3.0),
    ]
    assert cluster.core.nodes[DECODE_0].state_reason == "drained"
    assert drained(cordon(cluster, is_drain=True)) == [], "already drained"
    cordon_of = cluster.core.cordon_of(DECODE_0)
    assert cordon_of is not None
    assert cordon_of.request_count == 2


def test_an_idle_node_is_drained_at_once() -> None:
    assert len(drained(cordon(Cluster("decode-0"), is_drain=True))) == 1


def test_a_cordon_may_become_a_drain_and_says_so() -> None:
    cluster = Cluster("decode-0")
    assert drained(cordon(cluster)) == []
    assert len(drained(cordon(cluster, is_drain=True))) == 1


def test_a_node_that_restarts_while_it_is_cordoned_comes_back_cordoned() -> None:
    cluster = Cluster("decode-0")
    cordon(cluster, message="bad DIMM")
    cluster.step(make_joined("decode-0", boot_epoch=2))
    assert cluster.core.nodes[DECODE_0].state is NodeState.CORDONED
    cluster.step(NodeUncordoned(node=DECODE_0))
    cluster.step(make_joined("decode-0", boot_epoch=3))
    assert cluster.core.nodes[DECODE_0].state is NodeState.READY


def test_a_node_that_was_cordoned_before_it_joined_is_given_nothing() -> None:
    cluster = Cluster("decode-1")
    assert cordon(cluster, message="swap NIC") == []
    cluster.step(make_joined("decode-0"))
    node = cluster.core.nodes[DECODE_0]
    assert (node.state, node.state_reason) == (NodeState.CORDONED, "cordoned: swap NIC")
    assert submits(arrive(cluster, "a")) == ["decode-1"]
    cluster.step(NodeUncordoned(node=DECODE_0))
    assert cluster.core.nodes[DECODE_0].state is NodeState.READY


def test_a_drain_of_a_node_that_comes_back_with_nothing_is_over_when_it_joins() -> None:
    cluster = Cluster("decode-1")
    assert cordon(cluster, is_drain=True) == []
    assert [one.identity.name for one in drained(cluster.step(make_joined("decode-0")))] == [
        DECODE_0
    ]


def refusal(cluster: Cluster) -> str:
    (effect,) = arrive(cluster, "r")
    assert isinstance(effect, Fail)
    assert isinstance(effect.error, NodeUnavailable)
    return str(effect.error)


def test_with_every_decode_node_cordoned_a_refusal_says_so() -> None:
    cluster = Cluster("prefill-0", "decode-0", "decode-1")
    cordon(cluster, message="swap NIC")
    cluster.step(NodeCordoned(node=NodeName("decode-1"), is_drain=True, message=""))
    why = refusal(cluster)
    assert why == (
        "no decode node is ready: decode-0 and decode-1 are cordoned ('pdd node uncordon NODE' "
        "gives one back): try again later"
    )
    assert not_ready_reason(cluster.core.nodes.values(), Role.DECODE) in why
    cluster.step(NodeUncordoned(node=DECODE_0))
    assert not_ready_reason(cluster.core.nodes.values(), Role.DECODE) == ""


def test_a_refusal_tells_cordoned_nodes_from_lost_ones() -> None:
    cluster = Cluster("prefill-0", *(f"decode-{index}" for index in range(7)))
    for index in range(6):
        name = NodeName(f"decode-{index}")
        cluster.step(NodeCordoned(node=name, is_drain=False, message=""))
    cluster.step(NodeLost(identity=make_identity("decode-6"), reason="its stream broke"))
    assert refusal(cluster).startswith(
        "no decode node is ready: decode-0, decode-1, decode-2 and 3 more are cordoned "
        "('pdd node uncordon NODE' gives one back), decode-6 is lost: "
    )
