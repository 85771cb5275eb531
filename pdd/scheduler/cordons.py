"""Nodes that an operator has taken out by hand, and when they have finished."""

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class Cordon:
    """Of one node's name: it holds for every life of the node, until it is lifted.

    ``request_count``: requests that the node held when the cordon, or the drain, began.
    ``drained_s``: when it held nothing any more; None before, and for a cordon that is no drain.
    """

    message: str
    is_drain: bool
    since_s: float
    request_count: int = 0
    drained_s: float | None = None

    @property
    def reason(self) -> str:
        """For a node's ``state_reason``."""
        what = "cordoned"
        if self.is_drain:
            what = "draining" if self.drained_s is None else "drained"
        return f"{what}: {self.message}" if self.message else what
