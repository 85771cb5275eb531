"""Who a node is. A restarted node is another node: same uuid, next boot epoch."""

from dataclasses import dataclass
from enum import StrEnum
from typing import NewType

RequestId = NewType("RequestId", str)
"""Names one accepted request across all nodes. Engines use ids of their own."""

NodeName = NewType("NodeName", str)
"""The operator's name for a node, unique in a cluster, from its config file."""


class Role(StrEnum):
    """What a daemon does. A node (one engine) is either of the last two."""

    SCHEDULER = "scheduler"
    PREFILL = "prefill"
    DECODE = "decode"


class Forking(StrEnum):
    """What the choices of one prompt have in common on a node."""

    NONE = ""  # it runs one choice per request
    SHARED = "shared"  # the prompt's full blocks are there once
    APART = "apart"  # each choice has blocks of its own


class NodeState(StrEnum):
    """What a scheduler may give to a node."""

    READY = "ready"
    CORDONED = "cordoned"  # finishes what it has, takes nothing new
    DEGRADED = "degraded"  # works, slower than configured; the reason is told beside it
    LOST = "lost"  # its stream broke; nothing is sent to it until it joins again


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeIdentity:
    """A node in one life. ``boot_epoch`` grows by one at every start of the daemon.

    It stands in every ticket, so that a message meant for a node's former life is refused.
    """

    name: NodeName
    uuid: str
    boot_epoch: int

    def __str__(self) -> str:
        return f"{self.name} ({self.uuid[:8]}, boot {self.boot_epoch})"
