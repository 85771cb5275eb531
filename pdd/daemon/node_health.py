"""Why a node is slower or less safe than it should be, gathered from those who know."""

from collections.abc import Callable

import structlog

log = structlog.get_logger(__name__)


class NodeHealth:
    """All calls on the event loop; ``look`` once per heartbeat."""

    def __init__(self, *sources: Callable[[], str]) -> None:
        """``sources``: each a reason, or nothing while all is well. The weightiest first."""
        self._sources = sources
        self._said = ""

    @property
    def degraded_reason(self) -> str:
        """All reasons there are now; empty when the node is as it should be."""
        return "; ".join(filter(None, (source() for source in self._sources)))

    def look(self) -> None:
        """Log what has changed: each reason once, not every second."""
        reason = self.degraded_reason
        if reason == self._said:
            return
        self._said = reason
        if reason:
            log.warning("node_degraded", reason=reason)
        else:
            log.info("node_recovered")
