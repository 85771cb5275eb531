"""What can be said about a cell. All frozen; `codec` makes bytes of them.

Every operation is about a name and idempotent: said twice, it changes nothing the second time.
Times are Unix milliseconds, stamped by whoever proposes; replicas read no clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias


class Status(IntEnum):
    """What became of one operation. Numbers are in results on the wire: never reuse one."""

    APPLIED = 0
    DUPLICATE = 1  # it was so already
    STALE = 2  # of a former life of the node; nothing changed
    UNKNOWN = 3  # names what is not there; nothing changed
    FULL = 4  # a bound is reached; nothing changed


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberJoined:
    """A node, in one life. A later life (higher ``boot_epoch``), or another node under the same
    name (another ``uuid``), takes its place; an earlier life is refused as `Status.STALE`."""

    node: str
    uuid: str
    boot_epoch: int
    role: str
    address: str
    block_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberLeft:
    """A node is forgotten. Its cordon, which belongs to the name, stays."""

    node: str
    uuid: str
    boot_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cordoned:
    """An operator takes a node out; ``is_drain``: and waits until it has finished what it has.

    A cordon may become a drain, a drain stays one. An empty ``message`` leaves the former one.
    """

    node: str
    message: str
    is_drain: bool
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Uncordoned:
    """An operator gives a node back."""

    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleSet:
    """A node's name has this duty, ``prefill`` or ``decode``: by an operator's hand, until it is
    released, or as the role controller has left it. An empty ``message`` leaves the former one of
    the same."""

    node: str
    role: str
    is_by_hand: bool
    message: str
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleReleased:
    """A node's duty is what its configuration says, until somebody says more."""

    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OverrideSet:
    """``key`` of the configuration (``section.key``) has ``value`` (as in TOML) in this cell."""

    key: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OverrideRemoved:
    """The files' value holds again."""

    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaSet:
    """What one tenant may have at a time; None: no limit."""

    tenant: str
    running_requests_max: int | None
    tokens_per_minute_max: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaRemoved:
    """A tenant has no limits of its own any more."""

    tenant: str


Operation: TypeAlias = (
    MemberJoined
    | MemberLeft
    | Cordoned
    | Uncordoned
    | RoleSet
    | RoleReleased
    | OverrideSet
    | OverrideRemoved
    | QuotaSet
    | QuotaRemoved
)
