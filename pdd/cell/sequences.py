"""Which scheduler has which request, and on which nodes it runs: the soft part of the cell's state.

    holder ── SequenceHeld, SequenceEnded ──► soft entries of the log ──► every scheduler's table

The scheduler that has a request's client (its *holder*) says where it is; all others can then tell
an operator, send a client that comes to them on to it, and know a key that is in use. A row is what
its holder last said, in the order of the log. It is a hint: who acts on it asks the holder or the
nodes, and is told what is so now.

Soft: no snapshot and no state hash knows it, and nobody waits for it. What is missed comes back: a
scheduler that has just begun to follow the log says `RowsAsked`, and every holder says what it has
once more. Bounds: ``running_max`` rows of requests that run, beyond which the one that was said
longest ago is forgotten (it runs all the same, but only its holder can locate it); ``ended_max`` of
ended ones, of which the oldest goes first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, assert_never

from pdd.cell.codec import CODEC, Codec, EntryError, HardEntry, count, flag, kind, text

SOFT_VERSION = 1
"""Of what a soft entry holds. History: 1, first. Releases that know no such rows pass soft entries
by, so that they may be in a cell with ones that do."""
RUNNING_MAX = 100_000
ENDED_MAX = 10_000
KEY_BYTES_MAX = 16
HOW_LOST = "its scheduler was lost, or the word of its end"
"""How a request ended of which nobody tells any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceHeld:
    """``holder`` has this request, as it stands. ``key``: of its client, hashed with tenant and
    endpoint; empty where it gave none. ``prefill``, ``decode``: nodes of its present attempt; both
    empty while it waits for a place."""

    request_id: str
    holder: str
    tenant: str
    key: bytes
    generation: int
    prefill: str
    decode: str
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceEnded:
    """It is over at ``holder``; void if another one holds it by now. ``how``: for an operator."""

    request_id: str
    holder: str
    how: str
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HolderLost:
    """What this scheduler had is nobody's: nodes keep it for a while for whoever its clients come
    back to. ``is_final``: not any more, save what it has said to have since."""

    holder: str
    is_final: bool
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsAsked:
    """This scheduler does not know what was said before: say it again."""

    by: str


SoftOperation: TypeAlias = SequenceHeld | SequenceEnded | HolderLost | RowsAsked


def _key(name: str, value: Any) -> bytes:
    if type(value) is not bytes or len(value) > KEY_BYTES_MAX:
        raise EntryError(f"{name} is not a key of at most {KEY_BYTES_MAX} bytes")
    return value


SOFT_CODEC = Codec(
    {
        1: kind(
            SequenceHeld,
            request_id=text,
            holder=text,
            tenant=text,
            key=_key,
            generation=count,
            prefill=text,
            decode=text,
            at_ms=count,
        ),
        2: kind(SequenceEnded, request_id=text, holder=text, how=text, at_ms=count),
        3: kind(HolderLost, holder=text, is_final=flag, at_ms=count),
        4: kind(RowsAsked, by=text),
    },
    version=SOFT_VERSION,
)


def encode_rows(operations: Sequence[SoftOperation]) -> bytes:
    """A soft entry of the log."""
    return CODEC.encode_soft(SOFT_CODEC.encode(operations))


def size_bytes(operation: SoftOperation) -> int:
    """About what it takes in an entry."""
    match operation:
        case SequenceHeld():
            names = (operation.request_id, operation.holder, operation.tenant)
            return 40 + len(operation.prefill) + len(operation.decode) + sum(map(len, names))
        case SequenceEnded():
            return 20 + len(operation.request_id) + len(operation.holder) + len(operation.how)
        case HolderLost():
            return 20 + len(operation.holder)
        case RowsAsked():
            return 8 + len(operation.by)
        case _:
            assert_never(operation)


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceRow:
    """One request, as it was last said. ``ended``: how, empty while it runs. ``is_adrift``: its
    holder was lost; nodes may still have it."""

    holder: str
    tenant: str
    key: bytes
    generation: int
    prefill: str
    decode: str
    at_ms: int
    ended: str = ""
    is_adrift: bool = False


class SequenceTable:
    """Of one scheduler. Implements the ``Soft`` part of `pdd.cell.machine`."""

    def __init__(self, *, running_max: int = RUNNING_MAX, ended_max: int = ENDED_MAX) -> None:
        self._running_max = running_max
        self._ended_max = ended_max
        self._running: OrderedDict[str, SequenceRow] = OrderedDict()  # said longest ago first
        self._ended: OrderedDict[str, SequenceRow] = OrderedDict()
        self._by_key: dict[bytes, str] = {}
        self._asked: list[str] = []
        self.forgotten_count = 0
        """Rows of running requests that found no room."""
        self.has_gap = True
        """What was said until now is not known here: say `RowsAsked`, and set it to False."""

    def __len__(self) -> int:
        return len(self._running) + len(self._ended)

    @property
    def running_count(self) -> int:
        """Rows of requests that have not ended."""
        return len(self._running)

    def get(self, request_id: str) -> SequenceRow | None:
        """What is known of a request."""
        return self._running.get(request_id) or self._ended.get(request_id)

    def holder_of(self, key: bytes) -> str | None:
        """Who has the latest request of that key, or had it to its end."""
        request_id = self._by_key.get(key)
        row = None if request_id is None else self.get(request_id)
        return None if row is None else row.holder

    def take_asked(self) -> list[str]:
        """Schedulers that have asked for everything since the last call of this."""
        asked, self._asked = self._asked, []
        return asked

    # --- the log -----------------------------------------------------------------------------

    def apply(self, data: bytes) -> None:
        """What a soft entry holds; one that cannot be read (of a later release) changes nothing."""
        try:
            entry = SOFT_CODEC.decode(data)
        except EntryError:
            return
        if isinstance(entry, HardEntry):
            for operation in entry.operations:
                self._apply_one(operation)

    def begin(self) -> None:
        """The log goes on from a snapshot: something may have been missed. Rows stay, as hints."""
        self.has_gap = True

    def _apply_one(self, operation: SoftOperation) -> None:
        match operation:
            case SequenceHeld():
                self._hold(operation)
            case SequenceEnded():
                self._end(operation)
            case HolderLost():
                self._lose(operation)
            case RowsAsked():
                self._asked.append(operation.by)
            case _:
                assert_never(operation)

    def _hold(self, held: SequenceHeld) -> None:
        self._drop(held.request_id)
        self._running[held.request_id] = SequenceRow(
            holder=held.holder,
            tenant=held.tenant,
            key=held.key,
            generation=held.generation,
            prefill=held.prefill,
            decode=held.decode,
            at_ms=held.at_ms,
        )
        if held.key:
            self._by_key[held.key] = held.request_id
        if len(self._running) > self._running_max:
            self._drop(next(iter(self._running)))
            self.forgotten_count += 1

    def _end(self, ended: SequenceEnded) -> None:
        row = self._running.get(ended.request_id)
        if row is not None and row.holder == ended.holder:
            self._close(ended.request_id, row, how=ended.how, at_ms=ended.at_ms)

    def _lose(self, lost: HolderLost) -> None:
        for request_id, row in self._held_by(lost.holder):
            if not lost.is_final:
                self._running[request_id] = replace(row, is_adrift=True)
            elif row.is_adrift:
                self._close(request_id, row, how=HOW_LOST, at_ms=lost.at_ms)

    def _close(self, request_id: str, row: SequenceRow, *, how: str, at_ms: int) -> None:
        del self._running[request_id]
        self._ended[request_id] = replace(row, ended=how, at_ms=at_ms, is_adrift=False)
        if len(self._ended) > self._ended_max:
            self._drop(next(iter(self._ended)))

    def _held_by(self, holder: str) -> Iterable[tuple[str, SequenceRow]]:
        return [pair for pair in self._running.items() if pair[1].holder == holder]

    def _drop(self, request_id: str) -> None:
        row = self._running.pop(request_id, None) or self._ended.pop(request_id, None)
        if row is not None and self._by_key.get(row.key) == request_id:
            del self._by_key[row.key]
