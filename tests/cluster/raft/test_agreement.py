"""A scheduler's agreement through a real replica process: what is said survives whatever ends."""

import asyncio
import contextlib
import os
import resource
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pdd.cell.operations import Cordoned, Status, Uncordoned
from pdd.cell.sequences import SequenceHeld
from pdd.config.sections import Config, NodeSection
from pdd.core.identity import Role
from pdd.daemon import replica_child, replicated_agreement
from pdd.daemon.agreement import AgreementUnavailable
from pdd.daemon.replica_child import (
    LONG_PAUSE_S,
    QUICK_RESTARTS_MAX,
    RESTART_WINDOW_S,
    SHORT_PAUSE_S,
    ReplicaRefused,
    RestartPauses,
)
from pdd.daemon.replica_plan import log_folder, replica_plan
from pdd.daemon.replicated_agreement import ReplicatedAgreement
from pdd.replication.segment import segment_name
from tests.waiting import until

pytestmark = [pytest.mark.cluster, pytest.mark.fault, pytest.mark.timeout(200)]
WAIT_S = 70.0


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is no fault: bounds that a scheduler has for its operator's sake are long."""
    monkeypatch.setattr(replicated_agreement, "ENTRY_TIMEOUT_S", 50.0)
    monkeypatch.setattr(replicated_agreement, "SAY_TIMEOUT_S", 60.0)
    monkeypatch.setattr(replicated_agreement, "READY_TIMEOUT_S", 60.0)


def config_in(folder: Path, *, name: str = "scheduler-0") -> Config:
    return Config(node=NodeSection(name=name, role=Role.SCHEDULER, state_dir=folder))


@contextlib.asynccontextmanager
async def agreement(config: Config) -> AsyncIterator[ReplicatedAgreement]:
    with replica_plan(config) as plan:
        one = ReplicatedAgreement(plan, clock=asyncio.get_running_loop().time)
        running = asyncio.create_task(one.run())
        try:
            await one.ready()
            yield one
        finally:
            running.cancel()
            await asyncio.wait({running})


def cordoned(name: str, *, is_drain: bool = False) -> Cordoned:
    return Cordoned(node=name, message="swap NIC", is_drain=is_drain, at_ms=1)


async def say(one: ReplicatedAgreement, operation: Cordoned | Uncordoned) -> Status:
    return await asyncio.wait_for(one.say(operation), WAIT_S)


async def test_what_was_said_is_in_the_state_when_it_is_done_and_after_a_restart(
    tmp_path: Path,
) -> None:
    config = config_in(tmp_path)
    async with agreement(config) as one:
        assert await say(one, cordoned("decode-0")) is Status.APPLIED
        assert one.state.cordons.names() == ["decode-0"]
        assert await say(one, cordoned("decode-1", is_drain=True)) is Status.APPLIED
        assert await say(one, cordoned("decode-1")) is Status.DUPLICATE
        assert await say(one, Uncordoned(node="decode-0")) is Status.APPLIED
    async with agreement(config) as again:
        assert again.state.cordons.names() == ["decode-1"]
        assert again.state.cordons["decode-1"].is_drain


async def test_many_things_said_at_once_are_all_done(tmp_path: Path) -> None:
    async with agreement(config_in(tmp_path)) as one:
        names = [f"n-{number:03}" for number in range(200)]
        async with asyncio.TaskGroup() as tasks:
            said = [tasks.create_task(one.say(cordoned(name))) for name in names]
        assert {task.result() for task in said} == {Status.APPLIED}
        assert one.state.cordons.names() == names


async def test_a_replica_that_is_killed_is_started_again_and_has_lost_nothing(
    tmp_path: Path,
) -> None:
    async with agreement(config_in(tmp_path)) as one:
        await say(one, cordoned("decode-0"))
        former = one.replica_pid
        os.kill(former, signal.SIGKILL)
        assert await until_said(one, cordoned("decode-1")) in (Status.APPLIED, Status.DUPLICATE)
        assert one.state.cordons.names() == ["decode-0", "decode-1"]
        assert one.replica_pid not in (0, former)


async def test_signals_to_all_processes_of_a_unit_leave_the_replica_running(tmp_path: Path) -> None:
    async with agreement(config_in(tmp_path)) as one:
        former = one.replica_pid
        os.kill(former, signal.SIGTERM)
        await say(one, cordoned("decode-0"))
        assert one.replica_pid == former


async def test_a_damaged_log_is_refused_with_what_to_do(tmp_path: Path) -> None:
    config = config_in(tmp_path)
    async with agreement(config) as one:
        for number in range(3):
            await say(one, cordoned(f"n-{number}"))
    segment = log_folder(config) / segment_name(1)
    data = bytearray(segment.read_bytes())
    data[40] ^= 1
    segment.write_bytes(data)
    with replica_plan(config) as plan:
        one = ReplicatedAgreement(plan, clock=asyncio.get_running_loop().time)
        with pytest.raises(ReplicaRefused, match="do not delete it and start empty"):
            await asyncio.wait_for(one.run(), WAIT_S)


async def test_a_log_of_another_scheduler_is_refused_by_name(tmp_path: Path) -> None:
    async with agreement(config_in(tmp_path)) as one:
        await say(one, cordoned("decode-0"))
    with replica_plan(config_in(tmp_path, name="scheduler-1")) as plan:
        other = ReplicatedAgreement(plan, clock=asyncio.get_running_loop().time)
        with pytest.raises(ReplicaRefused, match="scheduler-0"):
            await asyncio.wait_for(other.run(), WAIT_S)


async def test_a_replica_that_dies_again_and_again_leaves_what_was_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_child, "LONG_PAUSE_S", 6.0)
    async with agreement(config_in(tmp_path)) as one:
        await say(one, cordoned("decode-0"))
        killed: set[int] = set()
        news = asyncio.Event()  # at each end of a replica, and when the next one leads
        one.follow_leader(lambda _: news.set())
        async with asyncio.timeout(WAIT_S):
            while len(killed) <= QUICK_RESTARTS_MAX:
                if one.replica_pid and one.replica_pid not in killed:
                    killed.add(one.replica_pid)
                    os.kill(one.replica_pid, signal.SIGKILL)
                news.clear()
                await news.wait()
        await until(lambda: one.fault, "the fault to be told")
        assert "killed by SIGKILL" in one.fault
        assert one.state.cordons.names() == ["decode-0"]
        with monkeypatch.context() as patch:
            patch.setattr(replicated_agreement, "SAY_TIMEOUT_S", 1.0)  # well within the pause
            with pytest.raises(AgreementUnavailable):
                await one.say(cordoned("decode-1"))
        assert await until_said(one, cordoned("decode-2")) in (Status.APPLIED, Status.DUPLICATE)
        assert one.fault == ""
        assert one.state.cordons.names() == ["decode-0", "decode-2"], (
            "what was given up before it was sent does not happen later"
        )


async def test_a_replica_whose_disk_is_full_is_started_again_and_nothing_false_is_said(
    tmp_path: Path,
) -> None:
    async with agreement(config_in(tmp_path)) as one:
        await say(one, cordoned("decode-0"))
        former = one.replica_pid
        resource.prlimit(former, resource.RLIMIT_FSIZE, (0, 0))  # every write fails, as on ENOSPC
        said = await until_said(one, cordoned("decode-1"))
        assert said in (Status.APPLIED, Status.DUPLICATE)
        assert one.replica_pid not in (0, former), "the one that could not write has ended"
        assert one.state.cordons.names() == ["decode-0", "decode-1"]


async def test_soft_operations_do_not_keep_a_hard_one_from_being_done(tmp_path: Path) -> None:
    async with agreement(config_in(tmp_path)) as one:
        for number in range(4000):
            one.say_soft(
                SequenceHeld(
                    request_id=f"r-{number}",
                    holder="scheduler-0",
                    tenant="acme",
                    key=os.urandom(16),
                    generation=0,
                    prefill="prefill-0",
                    decode="decode-0",
                    at_ms=1,
                )
            )
        assert await say(one, cordoned("decode-0")) is Status.APPLIED


def test_three_deaths_a_minute_are_quickly_over_and_the_fourth_is_not() -> None:
    pauses = RestartPauses()
    for now_s in range(QUICK_RESTARTS_MAX):
        assert pauses.next_s(now_s=float(now_s)) == SHORT_PAUSE_S
    assert pauses.next_s(now_s=RESTART_WINDOW_S - 1) == LONG_PAUSE_S


def test_deaths_of_long_ago_do_not_count() -> None:
    pauses = RestartPauses()
    assert {pauses.next_s(now_s=number * 21.0) for number in range(20)} == {SHORT_PAUSE_S}


async def until_said(one: ReplicatedAgreement, operation: Cordoned) -> Status:
    """What was on its way when the replica died has an unknown outcome: say it again."""
    async with asyncio.timeout(WAIT_S):
        while True:
            with contextlib.suppress(AgreementUnavailable):
                return await one.say(operation)
