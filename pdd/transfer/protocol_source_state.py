"""What the sending side keeps: sequences, lanes, turns, early grants, and the memory of the past.

Only the ``protocol_source*`` modules read and write it. One step is under way at a time: ``now_s``
is its time, ``effects`` are what it has come to so far.
"""

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from pdd.core.identity import NodeIdentity
from pdd.transfer.protocol_timers import Timers
from pdd.transfer.protocol_values import Count, Effect
from pdd.transfer.settings import TransferSettings
from pdd.transfer.values import PeerId, Reason
from pdd.wire.control import Grant

K = TypeVar("K")
V = TypeVar("V")
REMEMBERED = 4096
FIRST_PROBE_S = 1.0


@dataclass(slots=True, kw_only=True)
class Lane:
    """One grant in force."""

    nonce: int
    key: str
    peer: PeerId
    attempt: int
    first_index: int
    target_block_ids: tuple[int, ...]
    held: frozenset[int]
    lease_at_s: float
    cursor: int  # next prompt block index to look at
    next_serial: int
    shared: bool
    is_short: bool = False  # the last blocks that it names will never exist here
    ended: bool = False
    queued: bool = False  # in its peer's turn queue
    # serial -> (first index, block count, chunk number)
    sent: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    next_number: int = 0
    again: deque[int] = field(default_factory=deque)  # serials to send once more
    resent: set[int] = field(default_factory=set)
    in_flight: set[int] = field(default_factory=set)
    probe_pause_s: float = FIRST_PROBE_S

    @property
    def end_index(self) -> int:
        """After the last prompt block that the grant names."""
        return self.first_index + len(self.target_block_ids)


@dataclass(slots=True, kw_only=True)
class Sequence:
    """What the user opened, with the blocks that it has appended so far."""

    key: str
    deadline_at_s: float
    first_index: int | None = None
    block_ids: list[int] = field(default_factory=list)
    last: bool = False
    nonce: int = 0  # of the lane in force, 0 = none
    lanes: set[int] = field(default_factory=set)  # every lane with sends in flight, and in force
    granted: bool = False  # somebody has asked for it
    sent_bytes: int = 0
    resume_by_s: float | None = None
    ending: Reason | None = None

    @property
    def end_index(self) -> int:
        """After the last prompt block that is computed."""
        return (self.first_index or 0) + len(self.block_ids)


@dataclass(slots=True, kw_only=True)
class PeerTurns:
    """Whose turn it is among the lanes to one peer."""

    in_flight: int = 0
    turns: deque[int] = field(default_factory=deque)  # nonces


@dataclass(slots=True, kw_only=True)
class SourceState:
    """See the module. ``pending``: by key, peer, grant and when its lease ends."""

    identity: NodeIdentity
    settings: TransferSettings
    block_bytes: Callable[[PeerId], int]
    sequences: dict[str, Sequence] = field(default_factory=dict)
    lanes: dict[int, Lane] = field(default_factory=dict)
    pending: OrderedDict[str, tuple[PeerId, Grant, float]] = field(default_factory=OrderedDict)
    peers: dict[PeerId, PeerTurns] = field(default_factory=dict)
    finished_keys: OrderedDict[str, None] = field(default_factory=OrderedDict)
    cancelled_keys: OrderedDict[str, None] = field(default_factory=OrderedDict)
    ended_nonces: OrderedDict[int, PeerId] = field(default_factory=OrderedDict)
    timers: Timers = field(init=False)
    effects: list[Effect] = field(default_factory=list)
    now_s: float = 0.0

    def __post_init__(self) -> None:
        self.timers = Timers(
            lambda whom: whom in self.lanes or whom in self.sequences or whom in self.pending
        )

    def count_refused(self, reason: Reason) -> None:
        """Something a peer asked for is not done."""
        self.effects.append(Count(name=f"refused_{reason.value}"))


def remember(memory: OrderedDict[K, V], item: K, what: V) -> None:
    """Keep ``item``; beyond ``REMEMBERED`` of them the oldest is forgotten."""
    memory[item] = what
    memory.move_to_end(item)
    if len(memory) > REMEMBERED:
        memory.popitem(last=False)
