"""The driver's duties: order, group commit, outcomes, and ending when it must."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pdd.raft.config import RaftConfig
from pdd.raft.core import RaftCore
from pdd.raft.machine import Applier
from pdd.raft.messages import (
    AppendRequest,
    AppendResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    InstallSnapshot,
    Message,
    PreVoteRequest,
    PreVoteResponse,
    VoteRequest,
    VoteResponse,
)
from pdd.raft.proposals import OutcomeKind
from pdd.raft.sessions import SessionedStateMachine, SessionStatus, decode_result
from pdd.raft.state import Role
from pdd.raft.values import NO_SNAPSHOT, Entry, EntryKind, NodeId, SnapshotMeta
from pdd.replication.driver import DivergenceError, Driver, DriverSettings
from pdd.replication.errors import StorageFailedError
from pdd.replication.filesystem import OsFileSystem
from pdd.replication.kv_machine import KvMachine, decode_value, encode_add, encode_get
from pdd.replication.storage import Storage, open_storage
from pdd.replication.submissions import Answer, CommandSubmission, QuerySubmission
from tests.waiting import until

A, B, C = NodeId("a"), NodeId("b"), NodeId("c")
WAIT_S = 20.0


class WatchedStorage(Storage):
    """Counts syncs, can hold one up, and can fail."""

    def __init__(self, inner: Storage) -> None:
        self._inner = inner
        self.sync_count = 0
        self.may_sync = threading.Event()
        self.may_sync.set()
        self.fails = False

    def is_quick(self, ready) -> bool:
        return self._inner.is_quick(ready)

    def write(self, ready) -> None:
        self._inner.write(ready)

    def sync(self) -> None:
        assert self.may_sync.wait(WAIT_S)
        if self.fails:
            raise StorageFailedError("disk is gone")
        self._inner.sync()
        self.sync_count += 1

    def write_snapshot_file(self, snapshot) -> None:
        self._inner.write_snapshot_file(snapshot)

    def mark_snapshot(self, meta) -> None:
        self._inner.mark_snapshot(meta)

    def close(self) -> None:
        self._inner.close()


class Network:
    """What the driver sent; answers as two followers would, if told to."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.snapshots: list[InstallSnapshot] = []
        self.on_send: Callable[[Message], None] = lambda message: None

    def send(self, message: Message) -> None:
        self.sent.append(message)
        self.on_send(message)

    def send_snapshot(self, message: InstallSnapshot) -> None:
        self.snapshots.append(message)


class Asker:
    def __init__(self) -> None:
        self.future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    def answer(self, answer: Answer) -> None:
        assert not self.future.done(), "answered twice"
        self.future.set_result(answer)

    async def wait(self) -> Answer:
        async with asyncio.timeout(WAIT_S):
            return await self.future


class Bench:
    """One driver under test."""

    def __init__(self, directory: Path, *, voters: tuple[NodeId, ...], **settings: float) -> None:
        config = RaftConfig(node=A, voters=voters, cluster_id="one", election_ticks=3)
        storage, restart = open_storage(OsFileSystem(directory), config, may_create=True)
        self.storage = WatchedStorage(storage)
        self.machine = KvMachine()
        applier = Applier(
            machine=SessionedStateMachine(self.machine, idle_ms_max=60_000, max_sessions=100),
            hash_interval=1024,
        )
        if restart.snapshot is not None:
            applier.restore(restart.snapshot)
        self.core = RaftCore(
            config,
            rng=random.Random(1),
            hard_state=restart.hard_state,
            snapshot=restart.snapshot.meta if restart.snapshot else NO_SNAPSHOT,
            entries=restart.entries,
        )
        self.network = Network()
        self.roles: list[tuple[Role, int]] = []
        self.driver = Driver(
            core=self.core,
            storage=self.storage,
            applier=applier,
            outbound=self.network,
            query=self.machine.query,
            addresses={A: "addr-a", B: "addr-b", C: "addr-c"},
            clock=asyncio.get_running_loop().time,
            wall_clock_ms=lambda: 1,
            settings=DriverSettings(tick_s=0.005, keep_entries=1, **settings),
            saved_snapshot=restart.snapshot,
            on_role=lambda role, term: self.roles.append((role, term)),
        )

    def command(self, sequence: int, body: bytes = b"", *, session: str = "s") -> Asker:
        asker = Asker()
        self.driver.submit(
            CommandSubmission(asker=asker, session_id=session, sequence=sequence, body=body)
        )
        return asker

    def query(self, key: str) -> Asker:
        asker = Asker()
        self.driver.submit(QuerySubmission(asker=asker, query=encode_get(key)))
        return asker

    async def until(self, condition: Callable[[], bool]) -> None:
        """Conditions inside the core send no events."""
        await until(condition, lambda: f"its condition, in {self.core}")

    async def until_leader(self) -> None:
        await self.until(lambda: self.core.role is Role.LEADER)

    def follow_along(self, message: Message) -> None:
        """Answer as an obedient follower."""
        common = {"source": message.target, "target": A, "term": message.term}
        match message:
            case PreVoteRequest():
                answer: Message = PreVoteResponse(**common, granted=True)
            case VoteRequest():
                answer = VoteResponse(**common, granted=True)
            case AppendRequest():
                match_index = message.prev_index + len(message.entries)
                answer = AppendResponse(**common, match_index=match_index)
            case HeartbeatRequest():
                answer = HeartbeatResponse(**common, read_sequence=message.read_sequence)
            case _:
                return
        self.driver.receive(answer, size_bytes=10)


@asynccontextmanager
async def running(bench: Bench) -> AsyncIterator[Bench]:
    task = asyncio.create_task(bench.driver.run())
    try:
        yield bench
    finally:
        bench.storage.may_sync.set()
        bench.driver.stop()
        await task


async def test_a_group_of_one_commits_and_answers(tmp_path: Path) -> None:
    async with running(Bench(tmp_path, voters=(A,))) as bench:
        await bench.until_leader()
        await bench.command(0).wait()
        answer = await bench.command(1, encode_add("k", 5)).wait()
        assert answer.kind is OutcomeKind.OK
        result = decode_result(answer.result)
        assert (result.status, decode_value(result.body)) == (SessionStatus.OK, (5,))
        assert decode_value((await bench.query("k").wait()).result) == (5,)


async def test_what_is_acknowledged_is_there_after_a_restart(tmp_path: Path) -> None:
    async with running(Bench(tmp_path, voters=(A,))) as bench:
        await bench.until_leader()
        await bench.command(0).wait()
        await bench.command(1, encode_add("k", 5)).wait()
    async with running(Bench(tmp_path, voters=(A,))) as bench:
        await bench.until_leader()
        assert decode_value((await bench.query("k").wait()).result) == (5,)
        repeated = await bench.command(1, encode_add("k", 5)).wait()
        assert decode_value(decode_result(repeated.result).body) == (5,)


async def test_commands_that_arrive_during_a_sync_share_the_next_one(tmp_path: Path) -> None:
    async with running(Bench(tmp_path, voters=(A,))) as bench:
        await bench.until_leader()
        await bench.command(0).wait()
        before = bench.storage.sync_count
        bench.storage.may_sync.clear()
        first = bench.command(0, session="x")
        await bench.until(lambda: bench.core.state.log.last_index == 3)
        rest = [bench.command(0, session=f"s{n}") for n in range(50)]
        bench.storage.may_sync.set()
        for asker in (first, *rest):
            assert (await asker.wait()).kind is OutcomeKind.OK
        assert bench.storage.sync_count - before == 2


class HeldFollowers:
    """Followers that keep their answers to appends until they may say them."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.kept: list[Message] = []
        self.may_answer = True
        bench.network.on_send = self.on_send

    def on_send(self, message: Message) -> None:
        if isinstance(message, AppendRequest) and not self.may_answer:
            self.kept.append(message)
        else:
            self._bench.follow_along(message)

    def with_entries(self) -> list[Message]:
        return [one for one in self.kept if isinstance(one, AppendRequest) and one.entries]

    def answer(self) -> None:
        self.may_answer = True
        kept, self.kept = self.kept, []
        for message in kept:
            self._bench.follow_along(message)


async def test_what_comes_while_entries_are_on_their_way_travels_together(tmp_path: Path) -> None:
    async with running(Bench(tmp_path, voters=(A, B, C), gather_s=WAIT_S)) as bench:
        followers = HeldFollowers(bench)
        await bench.until_leader()
        await bench.command(0).wait()
        followers.may_answer = False
        own_syncs = bench.storage.sync_count + 1
        first = bench.command(1, encode_add("k", 1))
        await bench.until(lambda: len(followers.with_entries()) == 2)
        await bench.until(lambda: bench.storage.sync_count == own_syncs)
        last_index = bench.core.state.log.last_index
        rest = [bench.command(0, session=f"s{n}") for n in range(5)]
        for _ in range(20):
            await asyncio.sleep(0)
        assert bench.core.state.log.last_index == last_index
        followers.answer()
        for asker in (first, *rest):
            assert (await asker.wait()).kind is OutcomeKind.OK
        assert bench.storage.sync_count - own_syncs == 1


async def test_nobody_waits_for_a_majority_that_does_not_answer(tmp_path: Path) -> None:
    async with running(Bench(tmp_path, voters=(A, B, C), gather_s=0.001)) as bench:
        followers = HeldFollowers(bench)
        await bench.until_leader()
        await bench.command(0).wait()
        followers.may_answer = False
        asked = []
        for number in (1, 2, 3):
            asked.append(bench.command(0, session=f"s{number}"))
            await bench.until(lambda: len(followers.with_entries()) == 2 * len(asked))
        followers.answer()
        for asker in asked:
            assert (await asker.wait()).kind is OutcomeKind.OK


async def test_a_follower_acknowledges_only_what_is_synced(tmp_path: Path) -> None:
    async with running(Bench(tmp_path, voters=(A, B, C))) as bench:
        bench.storage.may_sync.clear()
        entry = Entry(index=1, term=1, kind=EntryKind.NOOP, data=b"")
        append = AppendRequest(
            source=B, target=A, term=1, prev_index=0, prev_term=0, commit_index=0, entries=(entry,)
        )
        bench.driver.receive(append, size_bytes=10)
        await bench.until(lambda: bench.core.state.log.last_index == 1)
        await asyncio.sleep(0)
        assert not [m for m in bench.network.sent if isinstance(m, AppendResponse)]
        bench.storage.may_sync.set()
        await bench.until(lambda: bool(bench.network.sent))
        response = bench.network.sent[0]
        assert isinstance(response, AppendResponse)
        assert response.match_index == 1


async def test_a_leaders_entries_leave_while_its_own_disk_is_busy(tmp_path: Path) -> None:
    bench = Bench(tmp_path, voters=(A, B, C))
    bench.network.on_send = bench.follow_along
    async with running(bench):
        await bench.until_leader()
        assert (await bench.command(0).wait()).kind is OutcomeKind.OK
        bench.storage.may_sync.clear()
        sent_before = len(bench.network.sent)
        asker = bench.command(1, encode_add("k", 1))
        await bench.until(
            lambda: any(
                isinstance(m, AppendRequest) and m.entries for m in bench.network.sent[sent_before:]
            )
        )
        bench.storage.may_sync.set()
        assert (await asker.wait()).kind is OutcomeKind.OK


async def test_a_follower_refuses_and_names_the_leader(tmp_path: Path) -> None:
    async with running(Bench(tmp_path, voters=(A, B, C))) as bench:
        heartbeat = HeartbeatRequest(source=B, target=A, term=1, commit_index=0)
        bench.driver.receive(heartbeat, size_bytes=10)
        await bench.until(lambda: bench.core.leader == B)
        for asker in (bench.command(0), bench.query("k")):
            answer = await asker.wait()
            assert answer.kind is OutcomeKind.REJECTED
            assert (answer.reason, answer.leader_address) == ("not_leader", "addr-b")


async def test_a_command_whose_leader_was_deposed_has_an_unknown_outcome(tmp_path: Path) -> None:
    bench = Bench(tmp_path, voters=(A, B, C))
    bench.network.on_send = bench.follow_along
    async with running(bench):
        await bench.until_leader()
        await bench.command(0).wait()
        bench.network.on_send = lambda message: None  # from now on nobody answers
        command, read = bench.command(1, encode_add("k", 1)), bench.query("k")
        await bench.until(lambda: bench.core.state.log.last_index == 3)
        usurper = HeartbeatRequest(source=B, target=A, term=bench.core.term + 1, commit_index=0)
        bench.driver.receive(usurper, size_bytes=10)
        assert (await command.wait()).kind is OutcomeKind.UNKNOWN
        answer = await read.wait()
        assert (answer.kind, answer.reason) == (OutcomeKind.REJECTED, "not_leader")


async def test_a_failed_sync_ends_the_driver_and_acknowledges_nothing(tmp_path: Path) -> None:
    bench = Bench(tmp_path, voters=(A,))
    task = asyncio.create_task(bench.driver.run())
    await bench.until_leader()
    await bench.command(0).wait()
    bench.storage.fails = True
    asker = bench.command(1, encode_add("k", 1))
    with pytest.raises(StorageFailedError, match="disk is gone"):
        async with asyncio.timeout(WAIT_S):
            await task
    assert not asker.future.done()


async def test_a_state_that_differs_from_the_leaders_ends_the_driver(tmp_path: Path) -> None:
    bench = Bench(tmp_path, voters=(A, B, C))
    bench.driver._core.report_state_hash(1024, b"own")
    task = asyncio.create_task(bench.driver.run())
    message = HeartbeatRequest(
        source=B, target=A, term=1, commit_index=0, hash_index=1024, state_hash=b"other"
    )
    bench.driver.receive(message, size_bytes=10)
    with pytest.raises(DivergenceError, match="index 1024"):
        async with asyncio.timeout(WAIT_S):
            await task


async def test_a_snapshot_is_taken_on_demand_and_shortens_the_log(tmp_path: Path) -> None:
    async with running(Bench(tmp_path, voters=(A,))) as bench:
        await bench.until_leader()
        await bench.command(0).wait()
        for sequence in range(1, 6):
            await bench.command(sequence, encode_add("k", sequence)).wait()
        assert await bench.driver.take_snapshot() == 7
        assert bench.driver.status().snapshot_index == 7
        assert len(bench.core.state.log.entries) == 1
        assert await bench.driver.take_snapshot() == 7
    async with running(Bench(tmp_path, voters=(A,))) as bench:
        await bench.until_leader()
        assert decode_value((await bench.query("k").wait()).result) == (1, 2, 3, 4, 5)


async def test_who_asks_for_a_snapshot_is_answered_when_the_leaders_overtakes_it(
    tmp_path: Path,
) -> None:
    state = SessionedStateMachine(KvMachine(), idle_ms_max=60_000, max_sessions=100).snapshot()
    async with running(Bench(tmp_path, voters=(A, B, C))) as bench:
        entry = Entry(index=1, term=1, kind=EntryKind.NOOP, data=b"")
        append = AppendRequest(
            source=B, target=A, term=1, prev_index=0, prev_term=0, commit_index=1, entries=(entry,)
        )
        bench.driver.receive(append, size_bytes=10)
        await bench.until(lambda: bench.driver.status().applied_index == 1)
        asked = asyncio.create_task(bench.driver.take_snapshot())
        await asyncio.sleep(0)  # it waits; the driver, which was idle, has not gone on
        installed = InstallSnapshot(
            source=B, target=A, term=1, meta=SnapshotMeta(index=50, term=1), data=state
        )
        bench.driver.receive(installed, size_bytes=len(state))
        assert await asyncio.wait_for(asked, WAIT_S) == 50
        assert bench.core.state.log.unsaved_snapshot is None


async def test_snapshots_are_taken_after_enough_entries(tmp_path: Path) -> None:
    async with running(Bench(tmp_path, voters=(A,), snapshot_every_entries=3)) as bench:
        await bench.until_leader()
        for number in range(4):
            await bench.command(0, session=f"s{number}").wait()
        await bench.until(lambda: bench.driver.status().snapshot_index >= 3)


async def test_a_few_large_entries_make_a_snapshot_too(tmp_path: Path) -> None:
    async with running(Bench(tmp_path, voters=(A,), snapshot_every_bytes=4000)) as bench:
        await bench.until_leader()
        for number in range(2):
            await bench.command(0, b"x" * 1000, session=f"s{number}").wait()
        assert bench.driver.status().snapshot_index == 0
        for number in range(2, 5):
            await bench.command(0, b"x" * 1000, session=f"s{number}").wait()
        await bench.until(lambda: bench.driver.status().snapshot_index >= 4)


async def test_roles_are_shown_before_anything_is_sent_in_them(tmp_path: Path) -> None:
    bench = Bench(tmp_path, voters=(A, B, C))
    seen: list[tuple[Role, int]] = []

    def on_send(message: Message) -> None:
        seen.append(bench.roles[-1])
        bench.follow_along(message)

    bench.network.on_send = on_send
    async with running(bench):
        await bench.until_leader()
        await bench.command(0).wait()
    assert [role for role, _ in bench.roles] == [Role.PRE_CANDIDATE, Role.CANDIDATE, Role.LEADER]
    assert seen[0][0] is Role.PRE_CANDIDATE
    assert seen[-1] == (Role.LEADER, bench.core.term)
