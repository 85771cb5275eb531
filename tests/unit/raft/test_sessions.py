"""Exactly-once: one effect per (client, sequence), however often it is proposed."""

from __future__ import annotations

import msgpack
import pytest

from pdd.raft.sessions import (
    SessionedStateMachine,
    SessionStatus,
    decode_result,
    encode_command,
)
from tests.simulation.raft.machine import ListMachine, encode_add


def machine(idle_ms_max: int = 1_000, max_sessions: int = 3) -> SessionedStateMachine:
    return SessionedStateMachine(ListMachine(), idle_ms_max=idle_ms_max, max_sessions=max_sessions)


def add(
    one: SessionedStateMachine, client: str, sequence: int, value: int, stamp_ms: int = 0
) -> tuple[SessionStatus, list[int]]:
    command = encode_command(
        client_id=client, sequence=sequence, stamp_ms=stamp_ms, body=encode_add("k", value)
    )
    result = decode_result(one.apply(1, command))
    return result.status, msgpack.unpackb(result.body) if result.body else []


def opened(one: SessionedStateMachine, client: str, stamp_ms: int = 0) -> SessionStatus:
    """A session begins with command 0."""
    command = encode_command(client_id=client, sequence=0, stamp_ms=stamp_ms, body=b"")
    return decode_result(one.apply(1, command)).status


def open_session(one: SessionedStateMachine, client: str, stamp_ms: int = 0) -> None:
    assert opened(one, client, stamp_ms) is SessionStatus.OK


def lists(one: SessionedStateMachine) -> tuple[int, ...]:
    assert isinstance(one.inner, ListMachine)
    return one.inner.get("k")


def test_a_repeated_command_takes_effect_once_and_gets_the_first_result() -> None:
    one = machine()
    open_session(one, "c")
    assert add(one, "c", 1, 10) == (SessionStatus.OK, [10])
    open_session(one, "d")
    add(one, "d", 1, 20)
    assert add(one, "c", 1, 10) == (SessionStatus.OK, [10])
    assert lists(one) == (10, 20)


def test_an_older_sequence_a_gap_and_an_unknown_session_are_refused() -> None:
    one = machine()
    assert add(one, "c", 1, 10)[0] is SessionStatus.SESSION_EXPIRED
    open_session(one, "c")
    add(one, "c", 1, 10)
    add(one, "c", 2, 20)
    assert add(one, "c", 1, 10)[0] is SessionStatus.SEQUENCE_TOO_OLD
    assert add(one, "c", 4, 40)[0] is SessionStatus.SEQUENCE_GAP
    assert lists(one) == (10, 20)


def test_opening_twice_changes_nothing() -> None:
    one = machine()
    open_session(one, "c")
    add(one, "c", 1, 10)
    assert opened(one, "c") is SessionStatus.SEQUENCE_TOO_OLD
    assert add(one, "c", 1, 10) == (SessionStatus.OK, [10])


def test_sessions_expire_by_the_time_in_the_log_only() -> None:
    one = machine(idle_ms_max=1_000)
    open_session(one, "c", stamp_ms=100)
    open_session(one, "d", stamp_ms=1_100)
    assert add(one, "c", 1, 10, stamp_ms=1_100) == (SessionStatus.OK, [10])
    open_session(one, "e", stamp_ms=2_101)
    assert add(one, "c", 1, 10, stamp_ms=2_101)[0] is SessionStatus.SESSION_EXPIRED
    assert lists(one) == (10,), "a forgotten command is refused, not applied again"


def test_the_clock_of_the_log_never_goes_back() -> None:
    one = machine(idle_ms_max=1_000)
    open_session(one, "c", stamp_ms=5_000)
    assert add(one, "c", 1, 10, stamp_ms=1)[0] is SessionStatus.OK
    open_session(one, "d", stamp_ms=6_001)
    assert add(one, "c", 2, 20, stamp_ms=6_001)[0] is SessionStatus.SESSION_EXPIRED


def test_at_the_bound_the_session_idle_longest_goes() -> None:
    one = machine(max_sessions=2)
    open_session(one, "a", stamp_ms=1)
    open_session(one, "b", stamp_ms=2)
    add(one, "a", 1, 10, stamp_ms=3)
    open_session(one, "c", stamp_ms=4)
    assert add(one, "b", 1, 20, stamp_ms=5)[0] is SessionStatus.SESSION_EXPIRED
    assert add(one, "a", 2, 30, stamp_ms=5)[0] is SessionStatus.OK


def test_the_table_is_in_the_snapshot_and_in_the_hash() -> None:
    one = machine()
    open_session(one, "c", stamp_ms=7)
    add(one, "c", 1, 10, stamp_ms=8)
    other = machine()
    other.restore(one.snapshot())
    assert other.state_hash() == one.state_hash()
    assert add(other, "c", 1, 10, stamp_ms=9) == (SessionStatus.OK, [10])
    assert lists(other) == (10,)
    open_session(other, "d", stamp_ms=9)
    assert other.state_hash() != one.state_hash()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        msgpack.packb([]),
        msgpack.packb(7),
        msgpack.packb([2, 0, "c", 1, b""]),
        msgpack.packb([1, 0.5, "c", 1, b""]),
        msgpack.packb([1, 0, b"c", 1, b""]),
        msgpack.packb([1, 0, "c", -1, b""]),
        msgpack.packb([1, 0, "c", 1, "text"]),
    ],
)
def test_a_malformed_command_is_a_deterministic_result(data: bytes) -> None:
    one = machine()
    before = one.state_hash()
    assert decode_result(one.apply(1, data)).status is SessionStatus.MALFORMED
    assert one.state_hash() == before


def test_a_snapshot_of_another_version_is_refused() -> None:
    with pytest.raises(ValueError, match="session snapshot version 9"):
        machine().restore(msgpack.packb([9, 0, [], b""]))
