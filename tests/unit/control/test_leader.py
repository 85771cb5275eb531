"""Who may ask a leader for places, and what is said over real gRPC on loopback."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from pdd.control import leader_client
from pdd.control.group_convert import GROUP_VERSION
from pdd.control.leader_client import LeaderLink
from pdd.control.leader_server import DecisionsServicer, HolderSession, NotLeading
from pdd.control.versions import CHANNEL_OPTIONS, SERVER_OPTIONS
from pdd.rpc.v1 import decisions_pb2, decisions_pb2_grpc
from pdd.tls.security import PLAIN, Security
from tests.unit.tls.certificates import Authority

WAIT_S = 10.0


class Leader:
    """Implements ``LeaderHandler``."""

    def __init__(self) -> None:
        self.sessions: list[HolderSession] = []
        self.said: list[str | None] = []
        self.detached: list[str] = []
        self.news = asyncio.Event()
        self.leads = True

    def holder_attached(self, session: HolderSession) -> None:
        if not self.leads:
            raise NotLeading("s0 does not lead; it follows s2")
        self.sessions.append(session)

    def holder_said(self, session: HolderSession, item: decisions_pb2.HolderItem) -> None:
        self.said.append(item.WhichOneof("item"))
        self.news.set()

    def holder_detached(self, session: HolderSession, reason: str) -> None:
        self.detached.append(reason)
        self.news.set()


class Holder:
    """Implements ``LeaderNews``."""

    def __init__(self) -> None:
        self.attached = 0
        self.decisions: list[str | None] = []
        self.lost: list[str] = []
        self.news = asyncio.Event()

    def leader_attached(self, link: LeaderLink) -> None:
        self.attached += 1
        link.send(decisions_pb2.HolderItem(all_told=decisions_pb2.AllTold()))

    def leader_said(self, link: LeaderLink, item: decisions_pb2.LeaderItem) -> None:
        self.decisions.append(item.WhichOneof("item"))
        self.news.set()

    def leader_lost(self, link: LeaderLink, reason: str) -> None:
        self.lost.append(reason)
        self.news.set()


async def until(news: asyncio.Event, condition: object) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # type: ignore[operator]
            news.clear()
            await news.wait()


@contextlib.asynccontextmanager
async def serving(leader: Leader, security: Security = PLAIN) -> AsyncIterator[str]:
    server = grpc.aio.server(options=SERVER_OPTIONS)
    decisions_pb2_grpc.add_DecisionsServicer_to_server(
        DecisionsServicer(leader, security=security), server
    )
    port = security.bind(server, "127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(grace=None)


@contextlib.asynccontextmanager
async def asking(address: str, holder: Holder) -> AsyncIterator[None]:
    link = LeaderLink(scheduler="s1", leader="s0", address=address, news=holder)
    running = asyncio.create_task(link.run())
    try:
        yield
    finally:
        running.cancel()
        await asyncio.wait({running})


async def answer(address: str, security: Security, hello: decisions_pb2.HolderHello) -> object:
    """The status of a refusal; None for a welcome."""
    async with security.channel(address, options=CHANNEL_OPTIONS) as channel:
        call = decisions_pb2_grpc.DecisionsStub(channel).Ask()
        await call.write(decisions_pb2.AskRequest(items=[decisions_pb2.HolderItem(hello=hello)]))
        try:
            await asyncio.wait_for(call.read(), WAIT_S)
        except grpc.aio.AioRpcError as error:
            return error.code()
        finally:
            call.cancel()
        return None


@pytest.mark.parametrize(
    ("certificate", "role", "allowed"),
    [
        ("s1", "scheduler", True),
        ("s2", "scheduler", False),
        ("s1", "client", False),
        ("s1", "decode", False),
        ("s1", "prefill", False),
    ],
)
async def test_only_a_scheduler_asks_and_only_under_its_own_name(
    tmp_path: Path, certificate: str, role: str, allowed: bool
) -> None:
    authority = Authority(tmp_path / "one")
    hello = decisions_pb2.HolderHello(scheduler="s1", version=GROUP_VERSION)
    leader = Leader()
    async with serving(leader, authority.security("s0", role="scheduler")) as address:
        security = authority.security(certificate, role=role, file="asking")
        code = await answer(address, security, hello)
    assert code is (None if allowed else grpc.StatusCode.PERMISSION_DENIED)
    assert len(leader.sessions) == int(allowed)


async def test_a_follower_and_an_unknown_version_are_refused_by_name() -> None:
    leader = Leader()
    async with serving(leader) as address:
        newer = decisions_pb2.HolderHello(scheduler="s1", version=GROUP_VERSION + 1)
        assert await answer(address, PLAIN, newer) is grpc.StatusCode.FAILED_PRECONDITION
        leader.leads = False
        hello = decisions_pb2.HolderHello(scheduler="s1", version=GROUP_VERSION)
        assert await answer(address, PLAIN, hello) is grpc.StatusCode.FAILED_PRECONDITION


async def test_what_each_side_says_comes_in_order_and_beats_are_no_decisions() -> None:
    leader, holder = Leader(), Holder()
    async with serving(leader) as address, asking(address, holder):
        await until(leader.news, lambda: leader.said == ["all_told"])
        (session,) = leader.sessions
        session.send(decisions_pb2.LeaderItem(taken=decisions_pb2.PlaceTaken()))
        session.send(decisions_pb2.LeaderItem(refused=decisions_pb2.PlaceRefused()))
        await until(holder.news, lambda: len(holder.decisions) == 2)
        assert holder.decisions == ["taken", "refused"]


async def test_a_leader_that_closes_or_falls_silent_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leader_client, "SILENCE_S", 0.2)  # below the beat: always too silent
    leader, holder = Leader(), Holder()
    async with serving(leader) as address, asking(address, holder):
        await until(holder.news, lambda: len(holder.lost) == 1)
        assert "silent" in holder.lost[0]
        await until(leader.news, lambda: len(leader.sessions) > 1 and len(leader.said) > 1)
        leader.sessions[-1].close("s0 leads no longer")
        await until(holder.news, lambda: len(holder.lost) > 1)
    assert holder.attached == len(holder.lost)
