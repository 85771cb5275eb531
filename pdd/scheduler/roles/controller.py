"""When a node should change its duty. Numbers in, a wish out; it knows no node.

The *pressure* of a pool is its load, in nodes, over what its nodes are to carry. A switch is wished
for when a pool is pressed (above 1) and the best split of the nodes makes the worse of the two
pressures smaller by ``gain_fraction``; the way there goes in steps. That is the hysteresis: a
switch back would make it larger, and is not wished for until the loads themselves have changed. On
top of it come ``sustain_s`` without a break, ``cooldown_s`` after each switch and the guard's rest.
A pool at its minimum never gives.
"""

from dataclasses import dataclass, field
from math import inf

from pdd.core.identity import Role
from pdd.scheduler.roles.settings import RoleSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolLoad:
    """One duty. ``load_nodes``: how many nodes its work would keep fully busy."""

    node_count: int
    load_nodes: float

    def pressure(self, target: float, *, change: int = 0) -> float:
        """1: used as intended; with ``change`` more nodes."""
        count = self.node_count + change
        if count <= 0:
            return inf if self.load_nodes > 0.0 else 0.0
        return self.load_nodes / (target * count)


Loads = dict[Role, PoolLoad]
"""Of both duties."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """``count`` nodes of ``source`` are to become ``target`` nodes."""

    source: Role
    target: Role
    count: int
    reason: str


def other(role: Role) -> Role:
    """The other duty."""
    return Role.DECODE if role is Role.PREFILL else Role.PREFILL


def best_wish(loads: Loads, settings: RoleSettings) -> tuple[Wish | None, str]:
    """What would help as things stand; else None and why not. Keeps nothing in mind."""
    target = max(
        (Role.PREFILL, Role.DECODE),
        key=lambda role: loads[role].pressure(settings.load_target(role)),
    )
    source = other(target)
    pressed, giving = loads[target], loads[source]
    before = pressed.pressure(settings.load_target(target))
    if before <= 1.0:
        return None, "no pool is pressed"
    spare = giving.node_count - settings.count_min(source)
    if spare <= 0:
        return None, (
            f"{target} is pressed ({before:.2f}), and {source} has {giving.node_count} nodes, the "
            f"least is {settings.count_min(source)}"
        )

    def after(count: int) -> float:
        return max(
            pressed.pressure(settings.load_target(target), change=count),
            giving.pressure(settings.load_target(source), change=-count),
        )

    best = min(range(1, spare + 1), key=lambda count: (after(count), count))
    what = (
        f"{target} pressure {before:.2f}, {source} "
        f"{giving.pressure(settings.load_target(source)):.2f}"
    )
    if after(best) > (1.0 - settings.gain_fraction) * before:
        return None, f"{what}: at best it would be {after(best):.2f}, too little gained"
    limit = max(int(settings.step_fraction * (pressed.node_count + giving.node_count)), 1)
    count = min(best, limit)
    reason = f"{what}: {best} more {target} leave {after(best):.2f}"
    return Wish(source=source, target=target, count=count, reason=reason), ""


def wanted_count(load: PoolLoad, role: Role, settings: RoleSettings) -> int:
    """Nodes that the load asks for, whoever provides them; at least the minimum."""
    nodes = load.load_nodes / settings.load_target(role)
    return max(int(-(-nodes // 1)), settings.count_min(role))


@dataclass(slots=True, kw_only=True)
class Controller:
    """Keeps in mind since when a wish stands, and how long to rest.

    ``idle_reason``: why nothing is being done; for operators.
    """

    settings: RoleSettings
    rests_until_s: float = 0.0
    undone_until_s: dict[Role, float] = field(default_factory=dict)
    """Targets that nothing may be switched to before, because it made things worse."""
    idle_reason: str = ""
    _wished: Role | None = None
    _since_s: float = 0.0

    def decide(self, loads: Loads, *, now_s: float) -> Wish | None:
        """A switch that is due now."""
        wish, self.idle_reason = best_wish(loads, self.settings)
        if wish is None or wish.target is not self._wished:
            self._wished = wish.target if wish is not None else None
            self._since_s = now_s
        if wish is None:
            return None
        stands_s = now_s - self._since_s
        undone_until_s = self.undone_until_s.get(wish.target, 0.0)
        if stands_s < self.settings.sustain_s:
            self.idle_reason = f"{wish.reason}; for {stands_s:.1f} s"
        elif now_s < self.rests_until_s:
            self.idle_reason = f"{wish.reason}; rests for {self.rests_until_s - now_s:.0f} s more"
        elif now_s < undone_until_s:
            self.idle_reason = (
                f"{wish.reason}; such a switch was undone, rests for {undone_until_s - now_s:.0f} s"
            )
        else:
            return wish
        return None

    def rest(self, *, now_s: float) -> None:
        """A switch has begun, ended or been abandoned."""
        self.rests_until_s = now_s + self.settings.cooldown_s
        self._wished = None

    def undone(self, target: Role, *, now_s: float) -> None:
        """Switching to ``target`` made things worse."""
        self.undone_until_s[target] = now_s + self.settings.guard_rest_s
