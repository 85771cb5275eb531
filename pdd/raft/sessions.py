"""Exactly-once commands: a session table *inside* the replicated state (thesis section 6.3).

A client that does not learn the outcome of a command sends it again with the same sequence number,
to whichever replica leads by then. The table remembers each session's last result, so the command
takes effect once. It lives in the state and in its snapshots, and forgets by time that the log
carries (stamped by the leader), so every replica forgets at the same entry.

    command = [1, stamp_ms, client_id, sequence, body]      sequence 0 opens the session
    result  = [status, body]

A session has one command outstanding at a time, numbered without a gap. After it has been
forgotten, a repeated command is refused (SESSION_EXPIRED, or SEQUENCE_GAP if a repeated opening
came first) rather than applied a second time. Bound: `max_sessions`; opening one more
drops the one idle longest.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import msgpack

from pdd.raft.machine import StateMachine

_pack = msgpack.Packer().pack
"""See `pdd.raft.codec`."""
COMMAND_VERSION = 1
SNAPSHOT_VERSION = 1


class SessionStatus(IntEnum):
    """Numbers are in replicated results: never reuse one."""

    OK = 0
    SESSION_EXPIRED = 1
    SEQUENCE_TOO_OLD = 2
    MALFORMED = 3
    SEQUENCE_GAP = 4


_STATUSES = {int(status): status for status in SessionStatus}


class SessionResult(NamedTuple):
    status: SessionStatus
    body: bytes


def encode_command(*, client_id: str, sequence: int, stamp_ms: int, body: bytes) -> bytes:
    data: bytes = _pack([COMMAND_VERSION, stamp_ms, client_id, sequence, body])
    return data


def decode_result(data: bytes) -> SessionResult:
    status, body = msgpack.unpackb(data)
    return SessionResult(_STATUSES[status], body)


@dataclass(slots=True)
class _Session:
    sequence: int
    result: bytes
    touched_ms: int


class SessionedStateMachine:
    """A StateMachine that applies each (client_id, sequence) to the inner one at most once."""

    def __init__(self, inner: StateMachine, *, idle_ms_max: int, max_sessions: int) -> None:
        self.inner = inner
        self._idle_ms_max = idle_ms_max
        self._max_sessions = max_sessions
        self._clock_ms = 0
        """Log-carried time: the largest stamp applied. Never goes back."""
        self._sessions: OrderedDict[str, _Session] = OrderedDict()
        """By last use, oldest first; the order is part of the state."""

    def apply(self, index: int, data: bytes) -> bytes:
        command = _decode_command(data)
        if command is None:
            return _result(SessionStatus.MALFORMED)
        stamp_ms, client_id, sequence, body = command
        if stamp_ms > self._clock_ms:  # else nothing can have become too old since
            self._clock_ms = stamp_ms
            self._expire()
        session = self._sessions.get(client_id)
        if session is None:
            if sequence != 0:
                return _result(SessionStatus.SESSION_EXPIRED)
            session = self._open(client_id)
        self._touch(client_id, session)
        if sequence == session.sequence:
            return session.result
        if sequence < session.sequence:
            return _result(SessionStatus.SEQUENCE_TOO_OLD)
        if sequence != session.sequence + 1:
            return _result(SessionStatus.SEQUENCE_GAP)
        session.result = _result(SessionStatus.OK, self.inner.apply(index, body))
        session.sequence = sequence
        return session.result

    def _open(self, client_id: str) -> _Session:
        if len(self._sessions) >= self._max_sessions:
            self._sessions.popitem(last=False)
        session = _Session(0, _result(SessionStatus.OK), self._clock_ms)
        self._sessions[client_id] = session
        return session

    def _touch(self, client_id: str, session: _Session) -> None:
        session.touched_ms = self._clock_ms
        self._sessions.move_to_end(client_id)

    def _expire(self) -> None:
        while self._sessions:
            oldest = next(iter(self._sessions.values()))
            if self._clock_ms - oldest.touched_ms <= self._idle_ms_max:
                return
            self._sessions.popitem(last=False)

    def snapshot(self) -> bytes:
        data: bytes = msgpack.packb(
            [SNAPSHOT_VERSION, self._clock_ms, session_rows(self), self.inner.snapshot()]
        )
        return data

    def restore(self, data: bytes) -> None:
        version, clock_ms, rows, inner = msgpack.unpackb(data)
        if version != SNAPSHOT_VERSION:
            raise ValueError(
                f"session snapshot version {version}; this release reads {SNAPSHOT_VERSION}"
            )
        self.inner.restore(inner)
        self._clock_ms = clock_ms
        self._sessions = OrderedDict((name, _Session(*row)) for name, *row in rows)

    def state_hash(self) -> bytes:
        table = msgpack.packb([self._clock_ms, session_rows(self)])
        return hashlib.blake2b(table + self.inner.state_hash(), digest_size=16).digest()


def session_rows(machine: SessionedStateMachine) -> list[list[object]]:
    """The table as plain values, oldest first."""
    return [[name, s.sequence, s.result, s.touched_ms] for name, s in machine._sessions.items()]


def _decode_command(data: bytes) -> tuple[int, str, int, bytes] | None:
    """None when malformed: a deterministic answer, whatever was proposed."""
    try:
        version, stamp_ms, client_id, sequence, body = msgpack.unpackb(data)
    except (ValueError, TypeError, msgpack.UnpackException):
        return None
    well_typed = (
        version == COMMAND_VERSION
        and type(stamp_ms) is int
        and type(client_id) is str
        and type(sequence) is int
        and sequence >= 0
        and type(body) is bytes
    )
    return (stamp_ms, client_id, sequence, body) if well_typed else None


def _result(status: SessionStatus, body: bytes = b"") -> bytes:
    data: bytes = _pack([status, body])
    return data
