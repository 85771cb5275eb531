"""Brings a node's cache events into the form of one `BlockDelta`, whatever their order was."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice

from pdd.directory.entries import BlockDelta


@dataclass(slots=True)
class Fold:
    """The last word on each key wins; a clear wipes what was said before it."""

    is_cleared: bool = False
    _held: dict[bytes, bool] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return self.is_cleared or bool(self._held)

    def __len__(self) -> int:
        """Keys with something to say about."""
        return len(self._held)

    def store(self, keys: Iterable[bytes]) -> None:
        self._held.update(dict.fromkeys(keys, True))

    def remove(self, keys: Iterable[bytes]) -> None:
        self._held.update(dict.fromkeys(keys, False))

    def clear(self) -> None:
        self._held.clear()
        self.is_cleared = True

    def split_off(self, count_max: int) -> Fold:
        """Take the first ``count_max`` keys, and the clear, out of this fold. The two say of
        distinct keys, so that nothing but the clear depends on their order."""
        first = Fold(is_cleared=self.is_cleared, _held=dict(islice(self._held.items(), count_max)))
        self.is_cleared = False
        for key in first._held:
            del self._held[key]
        return first

    def delta(
        self, *, node: str, boot_epoch: int, first_sequence: int, last_sequence: int
    ) -> BlockDelta:
        return BlockDelta(
            node=node,
            boot_epoch=boot_epoch,
            first_sequence=first_sequence,
            last_sequence=last_sequence,
            is_cleared=self.is_cleared,
            # After a clear there is nothing left to remove.
            removed=b""
            if self.is_cleared
            else b"".join(key for key, is_held in self._held.items() if not is_held),
            stored=b"".join(key for key, is_held in self._held.items() if is_held),
        )
