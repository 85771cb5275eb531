"""The state of benchmark and drill: deterministic, and its hash says what it holds."""

from __future__ import annotations

import random

import pytest

from pdd.replication.kv_machine import (
    KvMachine,
    decode_value,
    encode_add,
    encode_get,
    encode_put,
)


def filled(commands: list[bytes]) -> KvMachine:
    machine = KvMachine()
    for index, command in enumerate(commands, start=1):
        machine.apply(index, command)
    return machine


def test_put_replaces_and_add_appends() -> None:
    machine = KvMachine()
    answers = [machine.apply(1, encode_put("k", 1)), machine.apply(2, encode_add("k", 2))]
    assert [decode_value(answer) for answer in answers] == [(1,), (1, 2)]
    assert decode_value(machine.query(encode_get("k"))) == (1, 2)
    assert decode_value(machine.apply(3, encode_put("k", 3))) == (3,)
    assert decode_value(machine.query(encode_get("other"))) == ()


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x01", encode_get("k"), encode_put("k", 1)[:-1]])
def test_a_malformed_command_changes_nothing(data: bytes) -> None:
    machine = filled([encode_put("k", 1)])
    before = machine.state_hash()
    assert decode_value(machine.apply(2, data)) == ()
    assert machine.state_hash() == before


def test_the_hash_depends_on_the_state_and_not_on_the_way_there() -> None:
    direct = filled([encode_put("a", 1), encode_put("b", 2)])
    detour = filled(
        [encode_put("b", 9), encode_add("b", 8), encode_put("b", 2), encode_put("a", 1)]
    )
    assert direct.state_hash() == detour.state_hash()
    assert direct.state_hash() != filled([encode_put("a", 2), encode_put("b", 1)]).state_hash()
    assert filled([]).state_hash() != direct.state_hash()


def test_a_snapshot_restores_state_and_hash() -> None:
    rng = random.Random(5)
    commands = [rng.choice((encode_put, encode_add))(f"k{rng.randrange(9)}", n) for n in range(300)]
    machine = filled(commands)
    copy = filled([encode_put("gone", 1)])
    copy.restore(machine.snapshot())
    assert copy.state_hash() == machine.state_hash()
    assert copy.snapshot() == machine.snapshot()
    for one in (machine, copy):
        one.apply(301, encode_add("k1", 7))
    assert copy.state_hash() == machine.state_hash()


def test_a_snapshot_of_a_newer_version_is_refused() -> None:
    with pytest.raises(ValueError, match="version 2"):
        KvMachine().restore(b"\x92\x02\x90")
