"""Three schedulers' agreements: each with a replica process of its own, in one group."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pdd.cell.operations import Cordoned, Status
from pdd.cell.sequences import SequenceTable
from pdd.control.cluster_ports import GroupRefused, UnknownReplica
from pdd.daemon import replicated_agreement
from pdd.daemon.agreement import AgreementUnavailable, NotSayable
from pdd.daemon.replica_desk import ReplicaDesk
from pdd.daemon.replicated_agreement import ReplicaPlan, ReplicatedAgreement
from pdd.replication.local_group import free_ports
from pdd.rpc.v1 import cluster_pb2
from pdd.tls.security import PLAIN
from tests.unit.cell.samples import held
from tests.waiting import until

pytestmark = [pytest.mark.cluster, pytest.mark.fault, pytest.mark.timeout(120)]
WAIT_S = 40.0
NAMES = ("scheduler-0", "scheduler-1", "scheduler-2")
Group = dict[str, ReplicatedAgreement]


@contextlib.asynccontextmanager
async def group(
    folder: Path, tables: dict[str, SequenceTable] | None = None
) -> AsyncIterator[Group]:
    addresses = {name: f"127.0.0.1:{port}" for name, port in zip(NAMES, free_ports(3), strict=True)}
    clock = asyncio.get_running_loop().time
    agreements = {
        name: ReplicatedAgreement(
            ReplicaPlan(
                settings={
                    "node": name,
                    "addresses": addresses,
                    "cluster_id": "pdd",
                    "data_dir": str(folder / name),
                    "is_new_cluster": True,
                    "tls": None,
                    "is_unix": False,
                    "log": {"level": "info", "format": "json"},
                },
                environment=os.environ,
                security=PLAIN,
            ),
            clock=clock,
            sequences=(tables or {}).get(name),
        )
        for name in NAMES
    }
    running = {asyncio.create_task(one.run()) for one in agreements.values()}
    try:
        async with asyncio.timeout(WAIT_S):
            for one in agreements.values():
                await one.ready()
        yield agreements
    finally:
        for task in running:
            task.cancel()
        await asyncio.wait(running)


def cordoned(name: str) -> Cordoned:
    return Cordoned(node=name, message="", is_drain=False, at_ms=1)


async def say(one: ReplicatedAgreement, name: str) -> None:
    """Until it is agreed on: while the group elects, the outcome may be unknown."""
    async with asyncio.timeout(WAIT_S):
        while True:
            with contextlib.suppress(AgreementUnavailable):
                assert await one.say(cordoned(name)) in (Status.APPLIED, Status.DUPLICATE)
                return


async def until_all_know(agreements: Group, names: list[str]) -> None:
    for one in agreements.values():
        news = asyncio.Event()
        one.follow(lambda _, news=news: news.set())
        async with asyncio.timeout(WAIT_S):
            while one.state.cordons.names() != names:
                news.clear()
                await news.wait()


async def leader_of(desk: ReplicaDesk) -> cluster_pb2.ReplicaInfo:

    async def leaders() -> list[cluster_pb2.ReplicaInfo]:
        infos = [info for info in await desk.list_replicas() if not info.fault]
        return [info for info in infos if info.status.role == "leader"]

    return max(await until(leaders, "a leader"), key=lambda info: info.status.term)


async def test_what_one_scheduler_says_all_know_whoever_leads(tmp_path: Path) -> None:
    async with group(tmp_path) as agreements:
        for number, name in enumerate(NAMES):
            await say(agreements[name], f"n-{number}")
        await until_all_know(agreements, ["n-0", "n-1", "n-2"])
        desk = ReplicaDesk(agreements[NAMES[0]])
        leader = await leader_of(desk)
        pid = agreements[leader.name].replica_pid
        os.kill(pid, signal.SIGKILL)
        follower = next(name for name in NAMES if name != leader.name)
        await say(agreements[follower], "n-3")
        await say(agreements[leader.name], "n-4")
        await until_all_know(agreements, ["n-0", "n-1", "n-2", "n-3", "n-4"])


async def test_an_operator_moves_leadership_and_is_told_what_cannot_be(tmp_path: Path) -> None:
    async with group(tmp_path) as agreements:
        desk = ReplicaDesk(agreements[NAMES[0]])
        leader = await leader_of(desk)
        target = next(name for name in NAMES if name != leader.name)
        await say(agreements[target], "n-0")
        with pytest.raises(GroupRefused, match="leads already"):
            await desk.transfer(leader.name)
        with pytest.raises(UnknownReplica, match="scheduler-0, scheduler-1, scheduler-2"):
            await desk.transfer("nobody")
        assert await desk.transfer(target) == leader.name

        async def leads() -> bool:
            return (await leader_of(desk)).name == target

        await until(leads, f"{target} to lead")
        await say(agreements[leader.name], "n-1")
        assert await desk.take_snapshot(target) >= 2


async def test_a_replica_whose_disk_is_lost_is_replaced_offline(tmp_path: Path) -> None:
    async with group(tmp_path) as agreements:
        await say(agreements[NAMES[0]], "n-0")
        await until_all_know(agreements, ["n-0"])
    lost, *survivors = NAMES
    (tmp_path / lost).rename(tmp_path / "lost")
    done = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pdd.cli.main", "raft", "replace", lost),
        *(f"--survivor={name}={tmp_path / name}" for name in survivors),
        *("--directory", str(tmp_path / lost)),
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await asyncio.wait_for(done.communicate(), WAIT_S)
    assert done.returncode == 0
    assert f"{lost}: new log in {tmp_path / lost}" in out.decode()
    async with group(tmp_path) as agreements:
        await say(agreements[lost], "n-1")
        await until_all_know(agreements, ["n-0", "n-1"])


async def test_what_one_says_of_its_requests_is_known_to_all_and_is_in_no_snapshot(
    tmp_path: Path,
) -> None:
    tables = {name: SequenceTable() for name in NAMES}
    async with group(tmp_path, tables) as agreements:
        await say(agreements[NAMES[0]], "decode-0")
        await until_all_know(agreements, ["decode-0"])
        desk = ReplicaDesk(agreements[NAMES[1]])
        for number in range(1000):
            agreements[NAMES[number % 3]].say_soft(held(f"r-{number}", holder=NAMES[number % 3]))
        await until(lambda: all(table.running_count == 1000 for table in tables.values()))
        row = tables[NAMES[0]].get("r-4")
        assert row is not None
        assert row.holder == NAMES[1]
        await desk.take_snapshot(NAMES[0])
    snapshots = sizes_of_snapshots(tmp_path)
    assert snapshots
    assert max(snapshots) < 2000


def sizes_of_snapshots(folder: Path) -> list[int]:
    return [path.stat().st_size for path in folder.rglob("*") if "snap" in path.name]


async def test_a_stopped_replica_keeps_its_scheduler_from_seeing_but_not_from_saying(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with group(tmp_path) as agreements:
        desk = ReplicaDesk(agreements[NAMES[0]])
        leader = (await leader_of(desk)).name
        blind = agreements[next(name for name in NAMES if name != leader)]
        others = {name: one for name, one in agreements.items() if one is not blind}
        monkeypatch.setattr(replicated_agreement, "SAY_TIMEOUT_S", 1.5)
        os.kill(blind.replica_pid, signal.SIGSTOP)
        try:
            for name in ("n-0", "n-1"):
                with pytest.raises(AgreementUnavailable):
                    await blind.say(cordoned(name))
            await until_all_know(others, ["n-0", "n-1"])
            assert blind.state.cordons.names() == []
        finally:
            os.kill(blind.replica_pid, signal.SIGCONT)
        await until_all_know(agreements, ["n-0", "n-1"])


async def test_what_no_scheduler_would_take_is_refused_alone(tmp_path: Path) -> None:
    async with group(tmp_path) as agreements:
        one = agreements[NAMES[0]]
        good = asyncio.create_task(say(one, "n-0"))
        with pytest.raises(NotSayable, match=r"Cordoned\.message .* 512"):
            await one.say(Cordoned(node="n-1", message="x" * 513, is_drain=False, at_ms=1))
        await good
