"""What the leader knows of one voter, and how fast it may send to it.

    PROBE      position unknown: one append per round trip
    REPLICATE  position known: pipeline, bounded in messages and bytes
    SNAPSHOT   too far behind the log: nothing but heartbeats until the snapshot is settled

    PROBE --ack--> REPLICATE --rejection--> PROBE
    PROBE --log compacted--> SNAPSHOT --ack, report or timeout--> PROBE

Invariant: match_index < next_index. Neither an old nor a repeated ack lowers either; only a
rejection that fits what is outstanding lowers next_index, and never to match_index or below.
"""

from __future__ import annotations

from collections import deque
from enum import StrEnum

from pdd.raft.config import RaftConfig


class ProgressState(StrEnum):
    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


class Progress:
    __slots__ = (
        "_max_inflight_bytes",
        "_max_inflight_messages",
        "acknowledged_read",
        "inflight",
        "inflight_bytes",
        "match_index",
        "needs_nudge",
        "next_index",
        "probe_sent",
        "recently_active",
        "sent_commit_index",
        "snapshot_index",
        "snapshot_silent_ticks",
        "state",
    )

    def __init__(self, *, next_index: int, config: RaftConfig) -> None:
        self.match_index = 0
        self.next_index = next_index
        self.state = ProgressState.PROBE
        self.probe_sent = False
        """PROBE: the one append is out; wait for its answer or the next heartbeat's."""
        self.needs_nudge = False
        """A heartbeat came back while the follower lags: say something that shows where it is."""
        self.inflight: deque[tuple[int, int]] = deque()
        """REPLICATE: (last index, bytes) of each unanswered append."""
        self.inflight_bytes = 0
        self.recently_active = False
        self.acknowledged_read = 0
        self.sent_commit_index = 0
        self.snapshot_index = 0
        self.snapshot_silent_ticks = 0
        self._max_inflight_messages = config.max_inflight_messages
        self._max_inflight_bytes = config.max_inflight_bytes

    @property
    def is_full(self) -> bool:
        return (
            len(self.inflight) >= self._max_inflight_messages
            or self.inflight_bytes >= self._max_inflight_bytes
        )

    @property
    def is_paused(self) -> bool:
        """No entries may go out now."""
        match self.state:
            case ProgressState.PROBE:
                return self.probe_sent
            case ProgressState.REPLICATE:
                return self.is_full
            case ProgressState.SNAPSHOT:
                return True

    def become_probe(self) -> None:
        after_snapshot = self.snapshot_index + 1 if self.state is ProgressState.SNAPSHOT else 0
        self._enter(ProgressState.PROBE)
        self.next_index = max(self.match_index + 1, after_snapshot)

    def become_replicate(self) -> None:
        self._enter(ProgressState.REPLICATE)
        self.next_index = self.match_index + 1

    def become_snapshot(self, snapshot_index: int) -> None:
        self._enter(ProgressState.SNAPSHOT)
        self.snapshot_index = snapshot_index

    def _enter(self, state: ProgressState) -> None:
        self.state = state
        self.probe_sent = False
        self.inflight.clear()
        self.inflight_bytes = 0
        self.snapshot_index = 0
        self.snapshot_silent_ticks = 0
        self.sent_commit_index = 0

    def sent(self, last_index: int, *, size_bytes: int) -> None:
        """An append of what follows ``next_index - 1`` up to ``last_index``; that itself: empty."""
        if self.state is ProgressState.PROBE:
            self.probe_sent = True
        elif last_index >= self.next_index:
            self.inflight.append((last_index, size_bytes))
            self.inflight_bytes += size_bytes
            self.next_index = last_index + 1

    def acknowledged(self, match_index: int) -> bool:
        """The follower is durable up to ``match_index``. True when that is news."""
        while self.inflight and self.inflight[0][0] <= match_index:
            self.inflight_bytes -= self.inflight.popleft()[1]
        advanced = match_index > self.match_index
        if advanced:
            self.match_index = match_index
        raise_next_index(self, match_index + 1)
        return advanced

    def rejected(self, *, rejected_index: int, possible_index: int) -> bool:
        """The follower lacks ``rejected_index``. True when the position changed, False when stale.

        ``possible_index``: the last place where both logs may agree.
        """
        match self.state:
            case ProgressState.REPLICATE:
                if rejected_index <= self.match_index:
                    return False  # it has acknowledged more since: an old message
                self.become_probe()
                return True
            case ProgressState.PROBE:
                if rejected_index != self.next_index - 1:
                    return False  # answer to an earlier probe
                self.next_index = max(min(rejected_index, possible_index + 1), self.match_index + 1)
                self.probe_sent = False
                return True
            case ProgressState.SNAPSHOT:
                return False


def raise_next_index(progress: Progress, next_index: int) -> None:
    progress.next_index = max(progress.next_index, next_index)
