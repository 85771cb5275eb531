"""What operators, logs and autoscalers hear of roles, and what operators say about them."""

from collections.abc import Callable

import structlog

from pdd.control.cluster_server import UnknownNode
from pdd.control.role_operator import RoleRefused, RoleUnknown
from pdd.core.identity import NodeName, Role
from pdd.core.ports import Clock
from pdd.rpc.v1 import cluster_pb2
from pdd.scheduler.core import SchedulerCore
from pdd.scheduler.events import Event, NodeRoleReleased, NodeRoleSet
from pdd.scheduler.nodes import Node
from pdd.scheduler.roles.book import RoleNews, SwitchBy, SwitchStage
from pdd.scheduler.roles.controller import wanted_count

log = structlog.get_logger(__name__)

AUTO = "auto"
DUTIES = (Role.PREFILL, Role.DECODE)


class RoleDesk:
    """Implements ``RoleOperator``."""

    def __init__(self, *, core: SchedulerCore, clock: Clock, step: Callable[[Event], None]) -> None:
        """``step``: gives an event to the core and obeys what comes out."""
        self._core = core
        self._clock = clock
        self._step = step

    async def set_role(self, name: str, role: str, *, message: str) -> bool:
        """See ``RoleOperator``."""
        node = self._known(name)
        hand = self._core.roles.hand.get(node)
        if role == AUTO:
            if hand is None:
                return False
            log.info("node_role_given_back", node=name)
            self._step(NodeRoleReleased(node=node))
            return True
        if role not in DUTIES:
            raise RoleUnknown(f"role is {role!r}; a node can be prefill, decode or {AUTO}")
        duty = Role(role)
        if why := self._core.role_refusal(node, duty):
            raise RoleRefused(why)
        if hand is not None and hand.role is duty:
            return False
        log.info("node_role_set", node=name, role=role, why=message)
        self._step(NodeRoleSet(node=node, role=duty, message=message))
        return True

    def role_of(self, name: str) -> cluster_pb2.NodeRole:
        """See ``RoleOperator``."""
        return self.duty(self._core.nodes[self._known(name)])

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
            nodes=[self.duty(node) for _, node in sorted(self._core.nodes.items())],
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

    def _known(self, name: str) -> NodeName:
        node = NodeName(name)
        if node not in self._core.nodes:
            there = ", ".join(sorted(self._core.nodes)) or "none"
            raise UnknownNode(f"no node {name!r}; there are {there}")
        return node


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
