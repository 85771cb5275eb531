"""What the receiving side keeps: wants and lanes.

Only the ``protocol_target*`` modules read and write it. One step is under way at a time: ``now_s``
is its time, ``effects`` are what it has come to so far.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pdd.core.identity import NodeIdentity
from pdd.transfer.protocol_timers import Timers
from pdd.transfer.protocol_values import Count, Effect
from pdd.transfer.settings import TransferSettings
from pdd.transfer.values import PeerId, Reason, TargetCancelled, TargetFailed
from pdd.wire.record import Record


@dataclass(slots=True, kw_only=True)
class Want:
    """What the user opened: reserved blocks, and which of them are filled."""

    key: str
    peer: PeerId
    first_index: int
    block_ids: tuple[int, ...]
    deadline_at_s: float
    opened_at_s: float
    accepted_at_s: float | None = None
    verified: set[int] = field(default_factory=set)  # prompt block indices
    attempt: int = 0
    nonce: int = 0
    transferred_bytes: int = 0
    retried: set[int] = field(default_factory=set)
    shared: bool = False
    ending: TargetFailed | TargetCancelled | None = None

    def missing(self) -> tuple[int, ...]:
        """Prompt block indices that have not arrived."""
        end = self.first_index + len(self.block_ids)
        return tuple(i for i in range(self.first_index, end) if i not in self.verified)


@dataclass(slots=True, kw_only=True)
class Outstanding:
    """An announced chunk whose receives are not all final."""

    record: Record
    direct: bool


@dataclass(slots=True, kw_only=True)
class Lane:
    """One attempt to fill a want. ``again``: by serial, first index and block count asked for."""

    nonce: int
    key: str
    peer: PeerId
    live: bool = True
    answered: bool = False
    chunks_seen: bool = False
    ended: bool = False  # END came in band
    record_posted: bool = False
    next_serial: int = 0
    outstanding: dict[int, Outstanding] = field(default_factory=dict)
    announced: set[int] = field(default_factory=set)  # indices in outstanding chunks
    again: dict[int, tuple[int, int]] = field(default_factory=dict)
    repeat_pause_s: float = 0.0
    cancel_reason: Reason = Reason.CANCELLED


@dataclass(slots=True, kw_only=True)
class TargetState:
    """See the module; for the functions see ``protocol_target.TargetProtocol``."""

    identity: NodeIdentity
    address: bytes
    block_bytes: Callable[[PeerId], int]
    connection_of: Callable[[PeerId], int]
    settings: TransferSettings
    lands_direct: Callable[[PeerId, Record, Sequence[int]], bool]
    new_nonce: Callable[[], int]
    wants: dict[str, Want] = field(default_factory=dict)
    lanes: dict[int, Lane] = field(default_factory=dict)
    timers: Timers = field(init=False)
    effects: list[Effect] = field(default_factory=list)
    now_s: float = 0.0

    def __post_init__(self) -> None:
        self.timers = Timers(lambda whom: whom in self.lanes or whom in self.wants)

    def count_refused(self, reason: Reason) -> None:
        """Something a peer said is not accepted."""
        self.effects.append(Count(name=f"refused_{reason.value}"))
