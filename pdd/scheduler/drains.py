"""Cordon, uncordon and drain, by hand.

A cordoned node finishes what it has and is given nothing new; waiting requests go elsewhere. A
drain is a cordon that tells when the node holds nothing any more. It is tied to the node's name:
a node that restarts while it is cordoned comes back cordoned, and one may be cordoned before it
joins: the driver tells what was agreed on before this scheduler started.
"""

from pdd.core.identity import NodeState
from pdd.scheduler.cordons import Cordon
from pdd.scheduler.effects import Effect, NodeDrained
from pdd.scheduler.events import NodeCordoned, NodeUncordoned
from pdd.scheduler.nodes import Node
from pdd.scheduler.state import State


def cordon(state: State, event: NodeCordoned, now_s: float) -> list[Effect]:
    """Take a node out. Idempotent; a cordon may become a drain, and a drain stays one."""
    node = state.nodes.get(event.node)
    request_count = 0 if node is None else len(node.leases)
    present = state.cordons.get(event.node)
    if present is None:
        present = Cordon(
            message=event.message,
            is_drain=event.is_drain,
            since_s=now_s,
            request_count=request_count,
        )
        state.cordons[event.node] = present
    else:
        present.message = event.message or present.message
        if event.is_drain and not present.is_drain:
            present.is_drain = True
            present.since_s = now_s
            present.request_count = request_count
    if node is not None:
        apply_cordon(state, node)
    return []


def uncordon(state: State, event: NodeUncordoned) -> list[Effect]:
    """Give a node back. Idempotent."""
    if state.cordons.pop(event.node, None) is None:
        return []
    node = state.nodes.get(event.node)
    if node is not None and node.state is NodeState.CORDONED:
        node.state = NodeState.READY
        node.state_reason = ""
    return []


def apply_cordon(state: State, node: Node) -> None:
    """A member's state follows its cordon."""
    cordon = state.cordons.get(node.name)
    if cordon is not None and node.state is not NodeState.LOST:
        node.state = NodeState.CORDONED
        node.state_reason = cordon.reason


def tell_drained(state: State, now_s: float) -> list[Effect]:
    """Nodes that have just finished what they had. A node that was lost has nothing left either."""
    effects: list[Effect] = []
    for name, cordon in state.cordons.items():
        node = state.nodes.get(name)
        if not cordon.is_drain or cordon.drained_s is not None or node is None or node.leases:
            continue
        cordon.drained_s = now_s
        apply_cordon(state, node)
        effects.append(NodeDrained(identity=node.identity, drained_s=now_s - cordon.since_s))
    return effects
