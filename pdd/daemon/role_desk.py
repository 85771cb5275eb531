"""What operators, logs and autoscalers hear of roles, and what operators say about them."""

import time

import structlog

from pdd.cell.codec import TEXT_MAX_CHARS
from pdd.cell.operations import Operation, RoleReleased, RoleSet, Status
from pdd.cell.state import ROLES_MAX
from pdd.control.role_operator import RoleRefused, RoleUnknown
from pdd.core.identity import NodeName, Role
from pdd.core.ports import Clock
from pdd.daemon.agreement import Agreement, AgreementUnavailable
from pdd.daemon.operator_desk import known_node
from pdd.rpc.v1 import cluster_pb2
from pdd.scheduler.core import SchedulerCore
from pdd.scheduler.nodes import Node
from pdd.scheduler.roles.book import RoleNews, SwitchBy, SwitchStage
from pdd.scheduler.roles.controller import wanted_count
from pdd.scheduler.roles.settings import RoleMode

log = structlog.get_logger(__name__)

AUTO = "auto"
DUTIES = (Role.PREFILL, Role.DECODE)
_OF_THE_CONTROLLER = (SwitchBy.CONTROLLER, SwitchBy.GUARD)


class RoleDesk:
    """Implements ``RoleOperator``."""

    def __init__(self, *, core: SchedulerCore, clock: Clock, agreement: Agreement) -> None:
        self._core = core
        self._clock = clock
        self._agreement = agreement

    async def set_role(self, name: str, role: str, *, message: str) -> bool:
        """See ``RoleOperator``. What is agreed on reaches the core before this returns."""
        hand = self._agreement.state.roles.get(name)
        if role == AUTO:
            if hand is None or not hand.is_by_hand:
                known_node(self._core, name)
                return False
            await self._say(self._given_back(name))
            log.info("node_role_given_back", node=name)
            return True
        node = known_node(self._core, name)
        if role not in DUTIES:
            raise RoleUnknown(f"role is {role!r}; a node can be prefill, decode or {AUTO}")
        duty = Role(role)
        if why := self._core.role_refusal(node.name, duty):
            raise RoleRefused(why)
        is_changed = hand is None or not hand.is_by_hand or hand.role != role
        await self._say(_role_set(name, duty, is_by_hand=True, message=message))
        if is_changed:
            log.info("node_role_set", node=name, role=role, why=message)
        return is_changed

    def agreed_on(self, news: RoleNews) -> RoleSet | None:
        """What the other schedulers, and this one's next life, are to know of a switch: that the
        controller, or its guard, has left a node with another duty. The one that leads says it; the
        others do likewise when they hear of it, and finish at their own time."""
        is_done = news.stage is SwitchStage.DONE and news.by in _OF_THE_CONTROLLER
        row = self._agreement.state.roles.get(news.node)
        is_known = row is not None and row.role == news.target
        if not is_done or is_known or not self._core.leads:
            return None
        return _role_set(news.node, news.target, is_by_hand=False, message=news.reason)

    def forgotten(self, name: str) -> RoleReleased | None:
        """A node is no member any more: what the controller has left it with goes, too."""
        row = self._agreement.state.roles.get(name)
        return None if row is None or row.is_by_hand else RoleReleased(node=name)

    def _given_back(self, name: str) -> Operation:
        """To the controller as it is, or to its configuration."""
        node = self._core.nodes.get(NodeName(name))
        if node is None or self._core.roles.settings.mode is not RoleMode.AUTO:
            return RoleReleased(node=name)
        duty = node.next_role or node.role
        return _role_set(name, duty, is_by_hand=False, message="given back by hand")

    async def _say(self, operation: Operation) -> None:
        """Raises AgreementUnavailable."""
        if await self._agreement.say(operation) is Status.FULL:
            raise AgreementUnavailable(
                f"{ROLES_MAX} nodes have a role set, the most; give some back that are gone"
            )

    def role_of(self, name: str) -> cluster_pb2.NodeRole:
        """See ``RoleOperator``."""
        node = self._core.nodes.get(NodeName(name))
        return _absent(name) if node is None else self.duty(node)

    def duty(self, node: Node) -> cluster_pb2.NodeRole:
        """Which duty a member has, and who decided that."""
        book = self._core.roles
        hand, switch = book.hand.get(node.name), book.switches.get(node.name)
        last = book.last.get(node.name)
        by, reason = SwitchBy.CONFIGURATION, ""
        if switch is not None:
            by, reason = switch.by, switch.reason
        elif hand is not None and hand.role is node.role:
            by, reason = SwitchBy.OPERATOR, hand.message
        elif node.name in book.given and last is not None:
            by = last.by
        if last is not None and switch is None:
            ago_s = self._clock() - last.at_s
            reason = reason or f"{last.stage} {ago_s:.0f} s ago by {last.by}: {last.reason}"
        return cluster_pb2.NodeRole(
            node=node.name,
            role=node.role,
            next_role=node.next_role or "",
            configured_role=node.home_role,
            decided_by=by,
            reason=reason,
            is_pinned=node.is_pinned,
            held_request_count=len(node.leases),
            waits_for=book.waits.get(node.name, ""),
        )

    def roles(self) -> cluster_pb2.GetRolesResponse:
        """See ``RoleOperator``."""
        book, now_s = self._core.roles, self._clock()
        return cluster_pb2.GetRolesResponse(
            mode=book.settings.mode,
            idle_reason=book.controller.idle_reason,
            pools=self.pools(),
            nodes=[
                *(self.duty(node) for _, node in sorted(self._core.nodes.items())),
                *(_absent(name) for name in self._absentees()),
            ],
            switches=[
                cluster_pb2.RoleSwitch(
                    node=news.node,
                    source=news.source,
                    target=news.target,
                    by=news.by,
                    stage=news.stage,
                    reason=news.reason,
                    age_s=max(now_s - news.at_s, 0.0),
                    held_request_count=news.held_count,
                    duration_s=news.duration_s,
                )
                for news in book.history
            ],
        )

    def _absentees(self) -> list[str]:
        """So that a role that is set for a node which does not come can be seen, and given back."""
        roles = self._agreement.state.roles
        return [
            name
            for name in roles.names()
            if roles[name].is_by_hand and NodeName(name) not in self._core.nodes
        ]

    def pools(self) -> list[cluster_pb2.RolePool]:
        """Both duties, as the controller sees them."""
        loads, settings = self._core.role_loads(), self._core.roles.settings
        return [
            cluster_pb2.RolePool(
                role=role,
                node_count=loads[role].node_count,
                load_nodes=loads[role].load_nodes,
                pressure=loads[role].pressure(settings.load_target(role)),
                wanted_count=wanted_count(loads[role], role, settings),
                count_min=settings.count_min(role),
            )
            for role in DUTIES
        ]

    def switch_counts(self) -> dict[tuple[Role, SwitchBy, SwitchStage], int]:
        """Since the start, by target, who and what. To be read only."""
        return self._core.roles.counts

    def late_fractions(self) -> tuple[float, dict[Role, float]]:
        """Of the requests that ended within the guard's window: those that met the objectives, and
        those that were late by each duty."""
        window_s = self._core.roles.settings.guard_window_s
        shares = self._core.roles.goodput.shares(
            ended_from_s=self._clock() - window_s, arrived_from_s=float("-inf")
        )
        return shares.good, shares.late


def _role_set(name: str, role: Role, *, is_by_hand: bool, message: str) -> RoleSet:
    return RoleSet(
        node=name,
        role=role,
        is_by_hand=is_by_hand,
        message=message[:TEXT_MAX_CHARS],
        at_ms=time.time_ns() // 1_000_000,
    )


def _absent(name: str) -> cluster_pb2.NodeRole:
    return cluster_pb2.NodeRole(
        node=name, decided_by=SwitchBy.OPERATOR, waits_for="it is not here at the moment"
    )


def log_news(news: RoleNews) -> None:
    """Every switch, with its reason."""
    say = log.warning if news.stage is SwitchStage.ABANDONED else log.info
    say(
        "node_role_changed",
        node=news.node,
        stage=news.stage,
        source=news.source,
        target=news.target,
        by=news.by,
        why=news.reason,
        held_request_count=news.held_count,
        duration_s=round(news.duration_s, 1),
    )
