"""Whether a switch made goodput worse. If it did, it is undone.

Compared are requests that ended in the ``guard_window_s`` before a move began and requests that
arrived after it was over. A load that grows makes more requests late whatever was switched, so
that fewer good ones alone prove nothing: the move is to blame when fewer requests are good by
``guard_loss_fraction`` or more, and most of what was lost is late by the pool that *gave* a node.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from pdd.core.identity import NodeName, Role
from pdd.scheduler.roles.goodput import Goodput, Outcome, Shares
from pdd.scheduler.roles.settings import RoleSettings

_PATIENCE_WINDOWS = 2
"""After so many windows with too few requests a move stands unjudged."""


@dataclass(slots=True, kw_only=True)
class Move:
    """Nodes that changed from ``source`` to ``target`` together, by the controller."""

    source: Role
    target: Role
    before: Shares
    open: set[NodeName] = field(default_factory=set)
    done: list[NodeName] = field(default_factory=list)
    over_s: float | None = None


@dataclass(slots=True, kw_only=True)
class Guard:
    """Watches the latest move. Until it is judged, the next one can only be its reverse."""

    settings: RoleSettings
    move: Move | None = None

    def begins(
        self,
        *,
        source: Role,
        target: Role,
        nodes: list[NodeName],
        goodput: Goodput,
        overdue: Sequence[Outcome],
        now_s: float,
    ) -> None:
        """A move begins. ``overdue``: see ``Goodput.shares``."""
        before = goodput.shares(
            ended_from_s=now_s - self.settings.guard_window_s,
            arrived_from_s=float("-inf"),
            overdue=overdue,
        )
        self.move = Move(source=source, target=target, before=before, open=set(nodes))

    def ended(self, node: NodeName, *, is_done: bool, now_s: float) -> None:
        """One of its switches is over."""
        move = self.move
        if move is None or node not in move.open:
            return
        move.open.discard(node)
        if is_done:
            move.done.append(node)
        if not move.open:
            move.over_s = now_s
            if not move.done:
                self.move = None

    def verdict(self, goodput: Goodput, *, overdue: Sequence[Outcome], now_s: float) -> str | None:
        """Why the move is to be undone; empty when it stands; None while it is not judged."""
        move = self.move
        if move is None:
            return ""
        if move.over_s is None or now_s - move.over_s < self.settings.guard_window_s:
            return None
        after = goodput.shares(
            ended_from_s=move.over_s, arrived_from_s=move.over_s, overdue=overdue
        )
        count_min = self.settings.guard_count_min
        if after.count < count_min:
            waited_s = now_s - move.over_s
            return "" if waited_s >= _PATIENCE_WINDOWS * self.settings.guard_window_s else None
        lost = move.before.good - after.good
        late = after.late[move.source] - move.before.late[move.source]
        limit = self.settings.guard_loss_fraction
        if move.before.count >= count_min and lost > limit and late > max(limit, lost / 2):
            return (
                f"good requests went from {move.before.good:.0%} to {after.good:.0%}, late by "
                f"{move.source} from {move.before.late[move.source]:.0%} to "
                f"{after.late[move.source]:.0%}"
            )
        return ""
