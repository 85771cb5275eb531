"""Loads over time."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import exp

from pdd.core.identity import Role


@dataclass(slots=True, kw_only=True)
class SmoothLoads:
    """In nodes, by duty. What was observed ``window_s`` ago still counts a third."""

    window_s: float
    nodes: dict[Role, float] = field(default_factory=dict)
    _seen_s: float | None = None

    def observe(self, nodes: Mapping[Role, float], *, now_s: float) -> None:
        """As it is now. The first look counts nothing: it covers no time."""
        kept = 1.0
        if self._seen_s is not None:
            kept = exp(-max(now_s - self._seen_s, 0.0) / self.window_s)
        self._seen_s = now_s
        for role, value in nodes.items():
            self.nodes[role] = kept * self.nodes.get(role, 0.0) + (1.0 - kept) * value
