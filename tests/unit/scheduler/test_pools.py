"""Columns of the nodes: they say what the nodes say, whatever happens to these.

That they do after any history is checked with every event of the property tests, by
``SchedulerCore.check``; here are the ways in which a node changes, one by one.
"""

from collections.abc import Callable

import numpy as np
import pytest

from pdd.core.identity import NodeName, NodeState, RequestId, Role
from pdd.scheduler.nodes import Node
from pdd.scheduler.policy.parts import (
    INBOUND_BYTES,
    LONG_COUNT,
    QUEUED,
    SEQUENCES,
    UNPROMISED,
    Table,
)
from pdd.scheduler.pools import Nodes
from tests.builders import Cluster, make_joined

NAME = NodeName("decode-0")
LEASE = RequestId("r1")


def members() -> Nodes:
    """Two decode nodes, whose columns were read."""
    nodes = Cluster("prefill-0", NAME, "decode-1").core.nodes
    nodes[NAME].lease(LEASE, blocks=10, claim=20, sequence_count=2, queued_tokens=100)
    nodes[NAME].expect(LEASE, size_bytes=4096)
    nodes.check()
    return nodes


def decodes(nodes: Nodes) -> Table:
    """What stands of decode nodes."""
    pools = nodes.pools()
    return pools.table[:, pools.decode.first :]


def test_a_lease_stands_in_the_columns_of_its_node_alone() -> None:
    nodes = members()
    assert nodes.pools().decode.names == ("decode-0", "decode-1")
    state = decodes(nodes)
    assert state[UNPROMISED].tolist() == [90, 100]
    assert state[SEQUENCES].tolist() == [2, 0]
    assert state[QUEUED].tolist() == [100, 0]
    assert state[INBOUND_BYTES].tolist() == [4096, 0]
    assert state[LONG_COUNT].tolist() == [0, 0]


@pytest.mark.parametrize(
    "change",
    [
        lambda node: node.lease(RequestId("x"), blocks=1, queued_tokens=5, is_long=True, now_s=9.0),
        lambda node: node.grow(LEASE, blocks=15),
        lambda node: node.shrink(LEASE, blocks=5, claim=8),
        lambda node: node.computed(LEASE, now_s=3.0),
        lambda node: node.received(LEASE),
        lambda node: node.release(LEASE),
    ],
)
def test_every_change_of_leases_is_seen_by_the_next_decision(
    change: Callable[[Node], object],
) -> None:
    nodes = members()
    before = decodes(nodes).copy()
    change(nodes[NAME])
    nodes.check()
    assert not np.array_equal(before, decodes(nodes))


@pytest.mark.parametrize("state", [NodeState.LOST, NodeState.CORDONED])
def test_a_node_that_takes_no_work_is_in_no_pool_until_it_does(state: NodeState) -> None:
    nodes = members()
    nodes[NAME].state = state
    nodes.check()
    assert nodes.pools().decode.names == ("decode-1",)
    nodes[NAME].state = NodeState.READY
    nodes.check()
    assert nodes.pools().decode.names == ("decode-0", "decode-1")


def test_a_node_that_changes_its_role_leaves_one_pool_and_enters_the_other() -> None:
    nodes = members()
    nodes[NAME].next_role = Role.PREFILL
    nodes.check()
    assert nodes.pools().decode.names == ("decode-1",)
    nodes[NAME].role, nodes[NAME].next_role = Role.PREFILL, None
    nodes.check()
    assert nodes.pools().prefill.names == ("prefill-0", "decode-0")


def test_a_former_life_of_a_node_changes_nothing() -> None:
    nodes = members()
    former = nodes[NAME]
    nodes[NAME] = Cluster(make_joined(NAME, boot_epoch=2)).core.nodes[NAME]
    assert decodes(nodes)[UNPROMISED].tolist() == [100, 100]
    former.release(LEASE)
    former.state = NodeState.LOST
    nodes.check()
    del nodes[NAME]
    nodes.check()
    assert nodes.pools().decode.names == ("decode-1",)
