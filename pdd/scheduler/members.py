"""Nodes come, report, fall silent and are forgotten."""

from pdd.core.identity import NodeState, Role
from pdd.scheduler.adoption import adopt
from pdd.scheduler.attempts import try_again
from pdd.scheduler.drains import apply_cordon
from pdd.scheduler.effects import Disconnect, Effect, ForgetNode
from pdd.scheduler.events import BlocksEvicted, CacheCleared, NodeJoined, NodeLost, NodeReported
from pdd.scheduler.nodes import Node
from pdd.scheduler.peers import dismiss, introduce
from pdd.scheduler.requests import Phase
from pdd.scheduler.roles import switches
from pdd.scheduler.state import State


def node_joined(state: State, event: NodeJoined, now_s: float) -> list[Effect]:
    """A node attached; what its former stream or life had is given up first."""
    effects: list[Effect] = []
    former = state.nodes.get(event.identity.name)
    if former is not None and former.state is not NodeState.LOST:
        if former.identity != event.identity:
            reason = "a newer life has joined"
            effects.append(Disconnect(identity=former.identity, reason=reason))
        effects += _lose(state, former, "a newer life of it has joined", now_s)
    node = state.nodes[event.identity.name] = Node(
        identity=event.identity,
        role=_duty_at_join(state, event),
        home_role=event.role,
        is_pinned=event.is_pinned,
        address=event.address,
        block_count=event.block_count,
        block_size=event.block_size,
        max_model_len=event.max_model_len,
        max_num_seqs=event.max_num_seqs,
        block_bytes=event.block_bytes,
        forking=event.forking,
        pulls=event.pulls,
        seen_s=now_s,
        free_block_count=event.block_count - 1,
    )
    apply_cordon(state, node)
    effects += introduce(state, node)
    for held in event.held:
        effects += adopt(state, node, held, now_s)
    return effects + switches.follow(state, node, now_s)


def _duty_at_join(state: State, event: NodeJoined) -> Role:
    """What it is to do; a node that still runs outputs goes on as a decode node, and changes when
    they have ended."""
    wanted = state.roles.role_at_join(event.identity.name, event.role, is_pinned=event.is_pinned)
    if event.is_pinned or not any(one.request.sampling.max_tokens > 1 for one in event.held):
        return wanted
    return Role.DECODE


def node_reported(state: State, event: NodeReported, now_s: float) -> list[Effect]:
    """A member is alive and says what its engine counts."""
    node = state.nodes.get(event.node)
    if node is None or node.state is NodeState.LOST:
        return []
    node.seen_s = now_s
    node.free_block_count = event.free_block_count
    node.running_sequence_count = event.running_sequence_count
    node.waiting_sequence_count = event.waiting_sequence_count
    if node.state in (NodeState.READY, NodeState.DEGRADED):
        node.state = NodeState.DEGRADED if event.degraded_reason else NodeState.READY
        node.state_reason = event.degraded_reason
    return []


def node_lost(state: State, event: NodeLost, now_s: float) -> list[Effect]:
    """A stream broke. Late news of a former life changes nothing."""
    node = state.nodes.get(event.identity.name)
    if node is None or node.identity != event.identity or node.state is NodeState.LOST:
        return []
    return _lose(state, node, event.reason, now_s)


def _lose(state: State, node: Node, reason: str, now_s: float) -> list[Effect]:
    node.state = NodeState.LOST
    node.state_reason = reason
    # Its last report tells of work that is not the cluster's any more; nobody will correct it.
    node.running_sequence_count = node.waiting_sequence_count = 0
    node.free_block_count = node.usable_block_count
    effects: list[Effect] = []
    for request_id in list(node.leases):
        request = state.requests[request_id]
        if request.phase is Phase.DECODING and node.name != request.runs_on():
            node.release(request_id)
            continue
        effects += try_again(state, request, f"node {node.name} was lost: {reason}")
    return effects + dismiss(state, node) + switches.lost(state, node, now_s)


def forget_lost(state: State, now_s: float) -> list[Effect]:
    """So that names which never come back do not pile up here, in listings and in metrics."""
    lost = [node for node in state.nodes.values() if node.state is NodeState.LOST]
    lost.sort(key=lambda node: node.seen_s)
    excess_count = max(len(lost) - state.settings.lost_node_count_max, 0)
    effects: list[Effect] = []
    for index, node in enumerate(lost):
        if index < excess_count or now_s - node.seen_s >= state.settings.lost_node_memory_s:
            assert not node.leases, f"{node.name} is lost and holds leases"
            del state.nodes[node.name]
            state.estimates.forget(node.name)
            state.roles.forget(node.name)
            effects.append(ForgetNode(node=node.name))
    return effects


def drop_silent(state: State, now_s: float) -> list[Effect]:
    """A node that says nothing is as good as lost."""
    effects: list[Effect] = []
    for node in list(state.nodes.values()):
        silent_s = now_s - node.seen_s
        if node.state is not NodeState.LOST and silent_s > state.settings.node_silence_s:
            reason = f"silent for {silent_s:.1f} s"
            effects.append(Disconnect(identity=node.identity, reason=reason))
            effects += _lose(state, node, reason, now_s)
    return effects


def blocks_evicted(state: State, event: BlocksEvicted) -> list[Effect]:
    """A node no longer holds some prefixes: it has lost the preference for them."""
    node = state.nodes.get(event.identity.name)
    if node is not None and node.identity == event.identity:
        state.policy.forget_prefix(node, event.keys)
    return []


def cache_cleared(state: State, event: CacheCleared) -> list[Effect]:
    """A node holds no prefix any more."""
    node = state.nodes.get(event.identity.name)
    if node is not None and node.identity == event.identity:
        node.cache_generation += 1
    return []
