"""The decisions of the last hour, by request; ``pdd why REQUEST`` reads them.

Bounds: an hour, requests, and bytes; beyond any the oldest requests are forgotten. Of one request
at most 16 records are kept, the first among them: it says how it began.
"""

from collections import OrderedDict

from pdd.core.identity import RequestId
from pdd.scheduler.decision_record import (
    Decision,
    DecisionRecord,
    Outcome,
    Packed,
    decided_s,
    head,
    pack,
    size_bytes,
    unpack,
)

_RECORD_COUNT_PER_REQUEST_MAX = 16
_ENTRY_BYTES = 320
"""What a request takes here besides its packed records: its id, an entry, a tuple."""


class DecisionLog:
    """Packs decisions as they come, and unpacks those that somebody asks for."""

    def __init__(self, *, memory_s: float, count_max: int, size_bytes_max: int) -> None:
        """``count_max``: requests; ``size_bytes_max``: about what all their records may take."""
        self._memory_s = memory_s
        self._count_max = count_max
        self._size_bytes_max = size_bytes_max
        self._size_bytes = 0
        self._due_s = 0.0
        """Before then none is old enough to go."""
        self._kept: OrderedDict[RequestId, tuple[Packed, ...]] = OrderedDict()

    def keep(self, decision: Decision) -> None:
        """Add one. A request that waits for the same attempt as before only counts up."""
        kept = self._kept.pop(decision.request_id, ())
        self._size_bytes -= _size_bytes(kept)
        repeated_count = 0
        if kept and decision.outcome is Outcome.WAITS:
            last = head(kept[-1])
            if last.outcome is Outcome.WAITS and last.generation == decision.generation:
                repeated_count = last.repeated_count + 1
                kept = kept[:-1]
        if len(kept) >= _RECORD_COUNT_PER_REQUEST_MAX:
            kept = kept[:1] + kept[2:]
        kept = (*kept, pack(decision, repeated_count=repeated_count))
        self._kept[decision.request_id] = kept
        self._size_bytes += _size_bytes(kept)
        while len(self._kept) > self._count_max or self._size_bytes > self._size_bytes_max:
            self._drop_oldest()
        if decision.decided_s > self._due_s:
            self._forget(decision.decided_s)

    def of(self, request_id: RequestId, *, now_s: float) -> tuple[DecisionRecord, ...]:
        """The decisions about one request, oldest first; empty if none is remembered."""
        self._forget(now_s)
        return tuple(unpack(request_id, packed) for packed in self._kept.get(request_id, ()))

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def size_bytes(self) -> int:
        """What is kept takes about so much."""
        return self._size_bytes

    def _forget(self, now_s: float) -> None:
        while self._kept:
            oldest = next(iter(self._kept.values()))
            self._due_s = decided_s(oldest[-1]) + self._memory_s
            if now_s <= self._due_s:
                return
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        _, kept = self._kept.popitem(last=False)
        self._size_bytes -= _size_bytes(kept)


def _size_bytes(kept: tuple[Packed, ...]) -> int:
    size = _ENTRY_BYTES if kept else 0
    for packed in kept:
        size += size_bytes(packed)
    return size
