"""Which nodes exchange blocks with which, and who must be told of whom.

A node connects to its peers when it hears of them, so that no request pays for the set-up. The
effects of a join stand before the submits of the same step and travel on the same stream: a node
knows its peer before the first job that needs it.
"""

from pdd.core.identity import NodeState, Role
from pdd.scheduler.effects import DismissPeer, Effect, IntroducePeers
from pdd.scheduler.nodes import Node
from pdd.scheduler.state import State

EXCHANGES = frozenset({(Role.PREFILL, Role.DECODE), (Role.DECODE, Role.PREFILL)})
"""Pairs of roles whose nodes exchange blocks. Blocks may go either way between two peers, so that
a pair of decode nodes, once sequences move between them, needs a line here and nothing else."""


def introduce(state: State, node: Node) -> list[Effect]:
    """A node has joined: it hears of all its peers, they hear of it."""
    peers = peers_of(state, node)
    effects: list[Effect] = [
        IntroducePeers(node=node.name, peers=tuple(peer.identity for peer in peers), complete=True)
    ]
    effects += [
        IntroducePeers(node=peer.name, peers=(node.identity,), complete=False) for peer in peers
    ]
    return effects


def dismiss(state: State, node: Node) -> list[Effect]:
    """A node is lost: its peers close their connections to this life of it."""
    return [DismissPeer(node=peer.name, peer=node.identity) for peer in peers_of(state, node)]


def change_peers(state: State, node: Node, before: list[Node]) -> list[Effect]:
    """A node's duties have changed: it and its new peers hear of each other, it and those that are
    none any more part. ``before``: its peers until now."""
    after = peers_of(state, node)
    gained = [peer for peer in after if all(peer is not one for one in before)]
    parted = [peer for peer in before if all(peer is not one for one in after)]
    effects: list[Effect] = []
    if gained:
        peers = tuple(peer.identity for peer in gained)
        effects.append(IntroducePeers(node=node.name, peers=peers, complete=False))
    effects += [
        IntroducePeers(node=peer.name, peers=(node.identity,), complete=False) for peer in gained
    ]
    for peer in parted:
        effects.append(DismissPeer(node=node.name, peer=peer.identity))
        effects.append(DismissPeer(node=peer.name, peer=node.identity))
    return effects


def peers_of(state: State, node: Node) -> list[Node]:
    """With whom it exchanges blocks. A node that changes its duty has the peers of both."""
    return [
        other
        for other in state.nodes.values()
        if other.name != node.name
        and other.state is not NodeState.LOST
        and any((one, two) in EXCHANGES for one in node.duties for two in other.duties)
    ]
