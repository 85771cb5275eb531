"""Follow the applied state from outside: a snapshot first, then every command that took effect.

    Applier -> SessionedStateMachine -> WatchedMachine -> the state machine
                                             '--> Watcher --> ClientService.Watch --> a follower

A command that was repeated in its session took effect once and is seen once. Bound: a follower that
falls WATCH_BYTES_MAX behind is cut off (`WatchOverrunError`) and begins anew with a snapshot.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from pdd.core.errors import RemoteError
from pdd.raft.machine import StateMachine

WATCH_BYTES_MAX = 64 * 1024 * 1024
_ENTRY_OVERHEAD_BYTES = 64


class WatchOverrunError(RemoteError):
    """The follower reads too slowly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Either a ``snapshot``, which replaces all that came before, or one applied command."""

    index: int = 0
    body: bytes = b""
    snapshot: bytes | None = None

    @property
    def size_bytes(self) -> int:
        return len(self.body) + len(self.snapshot or b"") + _ENTRY_OVERHEAD_BYTES


class Watcher:
    """One follower's news."""

    def __init__(self, first: bytes) -> None:
        self._news = [Seen(snapshot=first)]
        self._size_bytes = 0
        self._is_overrun = False
        self._wake = asyncio.Event()
        self._wake.set()

    def put(self, seen: Seen) -> None:
        if seen.snapshot is not None:
            self._news, self._size_bytes = [], 0  # it replaces them
        self._news.append(seen)
        self._size_bytes += seen.size_bytes
        if self._size_bytes > WATCH_BYTES_MAX:
            self._is_overrun = True
            self._news.clear()
        self._wake.set()

    async def take(self) -> list[Seen]:
        """Everything since the last call; waits for something. Raises: WatchOverrunError."""
        await self._wake.wait()
        self._wake.clear()
        if self._is_overrun:
            raise WatchOverrunError(
                f"more than {WATCH_BYTES_MAX >> 20} MiB behind: begin anew with a snapshot"
            )
        news, self._news = self._news, []
        self._size_bytes = 0
        return news


class WatchedMachine:
    """A StateMachine that tells watchers what its inner one did."""

    def __init__(self, inner: StateMachine) -> None:
        self._inner = inner
        self._watchers: dict[Watcher, None] = {}

    def apply(self, index: int, data: bytes) -> bytes:
        result = self._inner.apply(index, data)
        if self._watchers:
            seen = Seen(index=index, body=data)
            for watcher in self._watchers:
                watcher.put(seen)
        return result

    def snapshot(self) -> bytes:
        return self._inner.snapshot()

    def restore(self, data: bytes) -> None:
        self._inner.restore(data)
        for watcher in self._watchers:
            watcher.put(Seen(snapshot=data))

    def state_hash(self) -> bytes:
        return self._inner.state_hash()

    def watch(self) -> Watcher:
        """From the state as it is now. `forget` it in the end."""
        watcher = Watcher(self._inner.snapshot())
        self._watchers[watcher] = None
        return watcher

    def forget(self, watcher: Watcher) -> None:
        self._watchers.pop(watcher, None)
