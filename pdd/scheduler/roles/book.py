"""Everything that is kept about roles. Part of the scheduler's state."""

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum

from pdd.core.identity import NodeName, Role
from pdd.scheduler.roles.controller import Controller
from pdd.scheduler.roles.goodput import Goodput
from pdd.scheduler.roles.guard import Guard
from pdd.scheduler.roles.settings import RoleSettings
from pdd.scheduler.roles.smooth import SmoothLoads

_HISTORY_COUNT_MAX = 256
"""Beyond it the oldest are forgotten here; the log has them."""


class SwitchBy(StrEnum):
    """Who wants a switch."""

    OPERATOR = "operator"
    CONTROLLER = "controller"
    GUARD = "guard"
    CONFIGURATION = "configuration"  # an operator has given the node back


class SwitchStage(StrEnum):
    """What there is to tell of a switch."""

    ADVISED = "advised"
    BEGUN = "begun"
    DONE = "done"
    ABANDONED = "abandoned"


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """One node on its way from one duty to another. Times on the driver's clock."""

    source: Role
    target: Role
    by: SwitchBy
    reason: str
    since_s: float
    deadline_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleNews:
    """Something happened to a node's duty. An effect: the driver logs it.

    ``held_count``: requests that it holds. ``duration_s``: since the switch began.
    """

    node: NodeName
    source: Role
    target: Role
    by: SwitchBy
    stage: SwitchStage
    reason: str
    at_s: float
    held_count: int = 0
    duration_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HandRole:
    """What an operator has set for a node's name, over restarts, until it is given back."""

    role: Role
    message: str = ""


@dataclass(slots=True, kw_only=True)
class RoleBook:
    """``waits_for_prefill``: see ``demand.Measured``, as of the latest tick.

    ``hand``: by operators. ``given``: by the controller. ``switches``: on their way. ``waits``: why
    a role that is set is not taken yet. ``rests_until_s``: of nodes whose switch was abandoned.
    ``last``: the latest news of each node.
    """

    settings: RoleSettings
    controller: Controller
    guard: Guard
    goodput: Goodput
    smooth: SmoothLoads
    waits_for_prefill: bool = False
    hand: dict[NodeName, HandRole] = field(default_factory=dict)
    given: dict[NodeName, Role] = field(default_factory=dict)
    switches: dict[NodeName, Switch] = field(default_factory=dict)
    waits: dict[NodeName, str] = field(default_factory=dict)
    rests_until_s: dict[NodeName, float] = field(default_factory=dict)
    last: dict[NodeName, RoleNews] = field(default_factory=dict)
    history: deque[RoleNews] = field(default_factory=lambda: deque(maxlen=_HISTORY_COUNT_MAX))
    counts: dict[tuple[Role, SwitchBy, SwitchStage], int] = field(default_factory=dict)

    @classmethod
    def of(cls, settings: RoleSettings) -> "RoleBook":
        """An empty one."""
        return cls(
            settings=settings,
            controller=Controller(settings=settings),
            guard=Guard(settings=settings),
            goodput=Goodput(settings=settings),
            smooth=SmoothLoads(window_s=settings.window_s),
        )

    def keep(self, news: RoleNews) -> RoleNews:
        """Add to what is remembered."""
        self.history.append(news)
        self.last[news.node] = news
        key = (news.target, news.by, news.stage)
        self.counts[key] = self.counts.get(key, 0) + 1
        return news

    def forget(self, node: NodeName) -> None:
        """It is no member any more. What an operator has set for its name stays."""
        for table in (self.given, self.waits, self.rests_until_s, self.last):
            table.pop(node, None)

    def role_at_join(self, node: NodeName, home_role: Role, *, is_pinned: bool) -> Role:
        """The duty with which a node begins: it holds nothing, and takes it at once."""
        if is_pinned:
            return home_role
        hand = self.hand.get(node)
        return hand.role if hand is not None else self.given.get(node, home_role)
