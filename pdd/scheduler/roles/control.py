"""With every tick: measure, judge the latest move, wish, choose nodes."""

from pdd.core.identity import Role
from pdd.scheduler.effects import Effect
from pdd.scheduler.nodes import Node
from pdd.scheduler.roles import demand, ends
from pdd.scheduler.roles.book import RoleNews, SwitchBy, SwitchStage
from pdd.scheduler.roles.controller import Wish
from pdd.scheduler.roles.guard import Move
from pdd.scheduler.roles.settings import RoleMode
from pdd.scheduler.roles.switches import begin, misfit
from pdd.scheduler.state import State


def control(state: State, now_s: float) -> list[Effect]:
    """Once with every tick, at the scheduler that leads."""
    book = state.roles
    measured = demand.measure(state, now_s=now_s)
    book.smooth.observe(measured.nodes, now_s=now_s)
    book.waits_for_prefill = measured.waits_for_prefill
    if book.settings.mode is RoleMode.OFF:
        return []
    if book.switches:
        book.controller.idle_reason = "a switch is on its way"
        return []
    if (move := book.guard.move) is not None:
        why = book.guard.verdict(book.goodput, overdue=ends.overdue(state, now_s), now_s=now_s)
        if why is not None:
            book.guard.move = None
        if why:
            return _undo(state, move, why, now_s)
    wish = book.controller.decide(demand.loads(state), now_s=now_s)
    if wish is None:
        return []
    if book.guard.move is not None and wish.target is book.guard.move.target:
        book.controller.idle_reason = f"{wish.reason}; watches what the latest switch brings first"
        return []
    return _grant(state, wish, now_s)


def _grant(state: State, wish: Wish, now_s: float) -> list[Effect]:
    book = state.roles
    nodes, left_alone = _choose(state, wish, now_s)
    if not nodes:
        book.controller.idle_reason = f"{wish.reason}; no {wish.source} node can: {left_alone}"
        return []
    book.controller.rest(now_s=now_s)
    if book.settings.mode is RoleMode.ADVISE:
        return [_advice(state, node, wish, now_s) for node in nodes]
    book.guard.begins(
        source=wish.source,
        target=wish.target,
        nodes=[node.name for node in nodes],
        goodput=book.goodput,
        overdue=ends.overdue(state, now_s),
        now_s=now_s,
    )
    effects: list[Effect] = []
    for node in nodes:
        effects += begin(
            state, node, wish.target, by=SwitchBy.CONTROLLER, reason=wish.reason, now_s=now_s
        )
    return effects


def _choose(state: State, wish: Wish, now_s: float) -> tuple[list[Node], str]:
    """The nodes that go: such as come home before others, then those that hold the least. Also why
    the last one looked at cannot."""
    able: list[Node] = []
    why = "none takes work"
    for node in state.nodes.values():
        if node.role is not wish.source or not node.takes_work:
            continue
        if fault := misfit(state, node, wish.target):
            why = f"{node.name} {fault}"
        elif now_s < state.roles.rests_until_s.get(node.name, 0.0):
            why = f"{node.name} rests after a switch that was abandoned"
        else:
            able.append(node)
    able.sort(
        key=lambda node: (
            node.home_role is not wish.target,
            node.usable_block_count - node.unleased_block_count(),
            node.name,
        )
    )
    return able[: wish.count], why


def _advice(state: State, node: Node, wish: Wish, now_s: float) -> RoleNews:
    return state.roles.keep(
        RoleNews(
            node=node.name,
            source=wish.source,
            target=wish.target,
            by=SwitchBy.CONTROLLER,
            stage=SwitchStage.ADVISED,
            reason=wish.reason,
            at_s=now_s,
            held_count=len(node.leases),
        )
    )


def _undo(state: State, move: Move, why: str, now_s: float) -> list[Effect]:
    """Send back whoever of the move is still there and nobody else's meanwhile."""
    state.roles.controller.undone(move.target, now_s=now_s)
    state.roles.controller.rest(now_s=now_s)
    effects: list[Effect] = []
    for name in move.done:
        node = state.nodes.get(name)
        if node is None or not node.takes_work or node.role is not move.target:
            continue
        spare = _count(state, move.target) - state.roles.settings.count_min(move.target)
        if name in state.roles.hand or spare <= 0:
            continue
        effects += begin(
            state, node, move.source, by=SwitchBy.GUARD, reason=f"undone: {why}", now_s=now_s
        )
    return effects


def _count(state: State, role: Role) -> int:
    return sum(node.role is role and node.takes_work for node in state.nodes.values())
