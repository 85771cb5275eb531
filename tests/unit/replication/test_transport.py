"""Snapshots to peers: one at a time, and none is the last one."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Self

import pytest

from pdd.raft.config import RaftConfig
from pdd.raft.messages import InstallSnapshot
from pdd.raft.values import NodeId, SnapshotMeta
from pdd.replication.transport import Transport
from pdd.tls.security import PlainSecurity

A, B, C = NodeId("a"), NodeId("b"), NodeId("c")
MESSAGE = InstallSnapshot(
    source=A, target=B, term=1, meta=SnapshotMeta(index=7, term=1), data=b"state"
)


class Call:
    """A call that ends as gRPC may end it: ``error`` is raised where it is awaited."""

    def __init__(self, error: BaseException | None) -> None:
        self._error = error

    def __await__(self) -> Generator[Any, None, None]:
        yield from asyncio.sleep(0).__await__()
        if self._error is not None:
            raise self._error


class Channel:
    """Gives out ``calls``, one after another."""

    def __init__(self, calls: list[Call]) -> None:
        self._calls = calls

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    def stream_stream(self, *_: object, **__: object) -> Callable[..., None]:
        return lambda *_, **__: None

    def stream_unary(self, *_: object, **__: object) -> Callable[..., Awaitable[None]]:
        return lambda *_, **__: self._calls.pop(0)


class Scripted(PlainSecurity):
    """Dials nobody."""

    def __init__(self, *errors: BaseException | None) -> None:
        self.calls = [Call(error) for error in errors]

    def channel(self, address: str, *, options: Any) -> Any:
        return Channel(self.calls)


def transport(security: Scripted, reports: "asyncio.Queue[tuple[NodeId, bool]]") -> Transport:
    config = RaftConfig(node=A, voters=(A, B, C), cluster_id="one")
    made = Transport(
        config,
        {name: f"127.0.0.1:{number}" for number, name in enumerate((A, B, C), 1)},
        rng=random.Random(1),
        security=security,
    )
    made.report_snapshot = lambda peer, delivered: reports.put_nowait((peer, delivered))
    return made


async def test_after_a_call_that_grpc_has_cancelled_the_next_snapshot_leaves() -> None:
    reports: asyncio.Queue[tuple[NodeId, bool]] = asyncio.Queue()
    made = transport(Scripted(asyncio.CancelledError(), None), reports)
    for is_delivered in (False, True):
        made.send_snapshot(MESSAGE)
        assert await asyncio.wait_for(reports.get(), 5.0) == (B, is_delivered)


@pytest.mark.parametrize("count", [1, 3])
async def test_one_snapshot_is_on_its_way_to_a_peer_at_a_time(count: int) -> None:
    reports: asyncio.Queue[tuple[NodeId, bool]] = asyncio.Queue()
    security = Scripted(None, None)
    made = transport(security, reports)
    for _ in range(count):
        made.send_snapshot(MESSAGE)
    assert await asyncio.wait_for(reports.get(), 5.0) == (B, True)
    assert len(security.calls) == 1
