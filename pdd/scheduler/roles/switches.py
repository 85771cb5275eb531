"""How a node changes its duty, and who may ask for it. The package's docstring draws it."""

from pdd.core.identity import NodeName, NodeState, Role
from pdd.scheduler.effects import Effect
from pdd.scheduler.events import NodeRoleGiven, NodeRoleReleased, NodeRoleSet
from pdd.scheduler.nodes import Node
from pdd.scheduler.peers import change_peers, peers_of
from pdd.scheduler.roles.book import HandRole, RoleNews, Switch, SwitchBy, SwitchStage
from pdd.scheduler.roles.settings import RoleMode
from pdd.scheduler.state import State


def refusal(state: State, node: Node, role: Role) -> str:
    """Why an operator cannot have this; empty where nothing speaks against it."""
    if node.is_pinned and role is not node.home_role:
        return (
            f"{node.name} is pinned to {node.home_role} by node.pin_role in its configuration; "
            "change that and restart it"
        )
    if node.role is role or node.next_role is role:
        return ""
    if _is_last_decode(state, node):
        return (
            f"{node.name} is the last decode node that takes work; without one nothing is served: "
            "add or uncordon another one first"
        )
    return ""


def set_by_hand(state: State, event: NodeRoleSet, now_s: float) -> list[Effect]:
    """An operator has set a role for a node's name. Idempotent."""
    book = state.roles
    book.hand[event.node] = HandRole(role=event.role, message=event.message)
    book.rests_until_s.pop(event.node, None)
    node = state.nodes.get(event.node)
    return [] if node is None else follow(state, node, now_s)


def given(state: State, event: NodeRoleGiven, now_s: float) -> list[Effect]:
    """What the controller has left a node with; means nothing where there is none. Idempotent."""
    book = state.roles
    if book.settings.mode is not RoleMode.AUTO:
        return []
    book.given[event.node] = event.role
    node = state.nodes.get(event.node)
    return [] if node is None else follow(state, node, now_s)


def release(state: State, event: NodeRoleReleased, now_s: float) -> list[Effect]:
    """An operator has given a node back: to the controller, which leaves it as it is until it has a
    reason; without a controller, to its configuration. Idempotent."""
    book = state.roles
    if book.hand.pop(event.node, None) is None:
        return []
    book.waits.pop(event.node, None)
    node = state.nodes.get(event.node)
    if node is None:
        return []
    if book.settings.mode is RoleMode.AUTO:
        book.given[event.node] = node.next_role or node.role
    return follow(state, node, now_s)


def follow_all(state: State, now_s: float) -> list[Effect]:
    """Begin what is wanted and could not begin before."""
    effects: list[Effect] = []
    for node in list(state.nodes.values()):
        effects += follow(state, node, now_s)
    return effects


def follow(state: State, node: Node, now_s: float) -> list[Effect]:
    """Take a node towards the duty that it is to have."""
    book = state.roles
    if node.state is NodeState.LOST:
        return []
    hand = book.hand.get(node.name)
    wanted = book.role_at_join(node.name, node.home_role, is_pinned=node.is_pinned)
    by = SwitchBy.OPERATOR if hand is not None else SwitchBy.CONFIGURATION
    if hand is not None:
        reason = hand.message or "set by hand"
    elif node.name in book.given:
        by, reason = SwitchBy.CONTROLLER, "as the controller has left it before"
    else:
        reason = "given back by hand, to its configuration"
    switch = book.switches.get(node.name)
    if switch is not None:
        if hand is not None and switch.target is not wanted:
            return _abandon(state, node, f"{by} has set {wanted}", now_s)
        return []
    if node.role is wanted:
        book.waits.pop(node.name, None)
        if hand is not None and hand.role is not wanted:
            book.waits[node.name] = "its configuration pins it (node.pin_role)"
        return []
    if now_s < book.rests_until_s.get(node.name, 0.0):
        return []
    if _is_last_decode(state, node):
        book.waits[node.name] = "it is the last decode node that takes work"
        return []
    return begin(state, node, wanted, by=by, reason=reason, now_s=now_s)


def begin(
    state: State, node: Node, target: Role, *, by: SwitchBy, reason: str, now_s: float
) -> list[Effect]:
    """The node takes nothing new from now on. It meets its new peers at once, so that no request
    pays for the connections."""
    assert node.role is not target, f"{node.name} is a {target} node"
    assert node.next_role is None, f"{node.name} is on its way"
    book = state.roles
    switch = Switch(
        source=node.role,
        target=target,
        by=by,
        reason=reason,
        since_s=now_s,
        deadline_s=now_s + book.settings.switch_deadline_s,
    )
    book.switches[node.name] = switch
    book.waits.pop(node.name, None)
    before = peers_of(state, node)
    node.next_role = target
    effects = change_peers(state, node, before)
    news = _news(node, switch, SwitchStage.BEGUN, reason, now_s)
    return [*effects, book.keep(news)]


def advance(state: State, now_s: float) -> list[Effect]:
    """After every event, while there are switches: who holds nothing any more has its new duty."""
    effects: list[Effect] = []
    for name, switch in list(state.roles.switches.items()):
        node = state.nodes[name]
        if _leaves_no_decode(state, node, switch):
            effects += _abandon(state, node, "it has become the last decode node", now_s)
        elif not node.leases:
            effects += _finish(state, node, switch, now_s)
        elif now_s >= switch.deadline_s:
            limit_s = state.roles.settings.switch_deadline_s
            held = len(node.leases)
            effects += _abandon(
                state, node, f"{held} requests still run after {limit_s:g} s", now_s
            )
    return effects


def lost(state: State, node: Node, now_s: float) -> list[Effect]:
    """A node is gone; it has nothing to finish."""
    if node.name not in state.roles.switches:
        return []
    return _abandon(state, node, "the node was lost", now_s)


def misfit(state: State, node: Node, target: Role) -> str:
    """Why the controller leaves a node alone; empty if it may have it.

    An engine's sizes are fixed when it starts. A node that holds less than the smallest one of the
    pool would make requests wait that this pool could hold.
    """
    if node.is_pinned:
        return "pinned by its configuration"
    if node.name in state.roles.hand:
        return "set by hand"
    others = [one for one in state.nodes.values() if one.role is target]
    for what, have, least in (
        ("tokens", node.token_count_max(), [one.token_count_max() for one in others]),
        ("sequences", node.max_num_seqs, [one.max_num_seqs for one in others]),
    ):
        if least and have < min(least):
            return f"holds {have} {what}, the smallest {target} node {min(least)}"
    return ""


def _finish(state: State, node: Node, switch: Switch, now_s: float) -> list[Effect]:
    book = state.roles
    del book.switches[node.name]
    before = peers_of(state, node)
    node.role = switch.target
    node.next_role = None
    effects = change_peers(state, node, before)
    if switch.by in (SwitchBy.CONTROLLER, SwitchBy.GUARD):
        book.given[node.name] = switch.target
    book.guard.ended(node.name, is_done=True, now_s=now_s)
    book.controller.rest(now_s=now_s)
    news = _news(node, switch, SwitchStage.DONE, switch.reason, now_s)
    return [*effects, book.keep(news)]


def _abandon(state: State, node: Node, why: str, now_s: float) -> list[Effect]:
    book = state.roles
    switch = book.switches.pop(node.name)
    before = peers_of(state, node)
    node.next_role = None
    effects: list[Effect] = []
    if node.state is not NodeState.LOST:  # else its peers have been told that it is gone
        effects += change_peers(state, node, before)
    book.rests_until_s[node.name] = now_s + book.settings.cooldown_s
    book.guard.ended(node.name, is_done=False, now_s=now_s)
    book.controller.rest(now_s=now_s)
    news = _news(node, switch, SwitchStage.ABANDONED, why, now_s)
    return [*effects, book.keep(news)]


def _news(node: Node, switch: Switch, stage: SwitchStage, why: str, now_s: float) -> RoleNews:
    return RoleNews(
        node=node.name,
        source=switch.source,
        target=switch.target,
        by=switch.by,
        stage=stage,
        reason=why,
        at_s=now_s,
        held_count=len(node.leases),
        duration_s=now_s - switch.since_s,
    )


def _other_decode_works(state: State, name: NodeName) -> bool:
    return any(
        node.role is Role.DECODE and node.takes_work and node.name != name
        for node in state.nodes.values()
    )


def _is_last_decode(state: State, node: Node) -> bool:
    return (
        node.role is Role.DECODE and node.takes_work and not _other_decode_works(state, node.name)
    )


def _leaves_no_decode(state: State, node: Node, switch: Switch) -> bool:
    """Whether it would take work, were it not on its way, and no other decode node does."""
    return (
        switch.source is Role.DECODE
        and node.state in (NodeState.READY, NodeState.DEGRADED)
        and not _other_decode_works(state, node.name)
    )
