"""Who follows the state sees each command once, in order, and knows when it fell behind."""

import pytest

from pdd.raft.sessions import SessionedStateMachine, encode_command
from pdd.replication import watching
from pdd.replication.kv_machine import KvMachine, encode_add
from pdd.replication.watching import Seen, WatchedMachine, WatchOverrunError


async def test_a_watcher_sees_the_state_and_then_each_command() -> None:
    machine = WatchedMachine(KvMachine())
    machine.apply(1, encode_add("k", 1))
    watcher = machine.watch()
    machine.apply(2, encode_add("k", 2))
    first, second = await watcher.take()
    assert first.snapshot == watching_snapshot_after(1)
    assert second == Seen(index=2, body=encode_add("k", 2))
    machine.forget(watcher)
    machine.apply(3, encode_add("k", 3))
    assert await take_now(watcher) == []


async def test_a_repeated_command_is_seen_once() -> None:
    watched = WatchedMachine(KvMachine())
    machine = SessionedStateMachine(watched, idle_ms_max=1000, max_sessions=9)
    watcher = watched.watch()
    machine.apply(1, encode_command(client_id="c", sequence=0, stamp_ms=1, body=b""))
    for index in (2, 3):
        command = encode_command(client_id="c", sequence=1, stamp_ms=1, body=encode_add("k", 7))
        machine.apply(index, command)
    assert [seen.index for seen in await watcher.take() if seen.snapshot is None] == [2]


async def test_an_installed_snapshot_replaces_what_was_not_read_yet() -> None:
    machine = WatchedMachine(KvMachine())
    watcher = machine.watch()
    machine.apply(1, encode_add("k", 1))
    machine.restore(watching_snapshot_after(5))
    (seen,) = await watcher.take()
    assert seen.snapshot == watching_snapshot_after(5)


async def test_who_reads_too_slowly_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "WATCH_BYTES_MAX", 1000)
    machine = WatchedMachine(KvMachine())
    watcher = machine.watch()
    for index in range(1, 30):
        machine.apply(index, encode_add("k", index))
    with pytest.raises(WatchOverrunError, match="begin anew"):
        await watcher.take()


def watching_snapshot_after(count: int) -> bytes:
    machine = KvMachine()
    for number in range(1, count + 1):
        machine.apply(number, encode_add("k", number))
    return machine.snapshot()


async def take_now(watcher: watching.Watcher) -> list[Seen]:
    watcher._wake.set()
    return await watcher.take()
