"""Control messages between nodes, over real gRPC on loopback."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import pytest
from structlog.testing import capture_logs

from pdd.control import peers
from pdd.control.peers import PeerClient, PeerServicer
from pdd.control.versions import SERVER_OPTIONS
from pdd.core.identity import NodeIdentity
from pdd.engine.port import PeerControl
from pdd.rpc.v1 import node_pb2_grpc
from tests.builders import make_identity

DECODE = make_identity("decode-0", boot_epoch=4)
PREFILL = make_identity("prefill-0", boot_epoch=2)


@pytest.fixture(autouse=True)
def logs() -> Iterator[list[Any]]:
    with capture_logs() as captured:
        yield captured


class Receiver:
    def __init__(self) -> None:
        self.messages: list[PeerControl] = []
        self.came = asyncio.Event()
        self.address = ""

    def deliver(self, message: PeerControl) -> None:
        self.messages.append(message)
        self.came.set()


@contextlib.asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    """prefill-0 with two ranks."""
    receiver = Receiver()
    server = grpc.aio.server(options=SERVER_OPTIONS)
    node_pb2_grpc.add_NodeServicer_to_server(
        PeerServicer(identity=PREFILL, rank_count=2, deliver=receiver.deliver), server
    )
    receiver.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield receiver
    finally:
        await server.stop(grace=None)


@contextlib.asynccontextmanager
async def sending() -> AsyncIterator[PeerClient]:
    client = PeerClient(identity=DECODE, own_address="decode-0:9")
    try:
        yield client
    finally:
        await client.close()


def message(
    address: str, *, to: NodeIdentity = PREFILL, rank: int = 1, payload: bytes = b"grant"
) -> PeerControl:
    return PeerControl(
        own_rank=3,
        peer=to,
        peer_rank=rank,
        peer_address=address,
        peer_ucx_address=b"",
        payload=payload,
    )


async def all_sent(client: PeerClient) -> None:
    if client._in_flight:
        await asyncio.wait_for(asyncio.wait(list(client._in_flight)), timeout=10)


def failures(logs: list[Any]) -> list[Any]:
    return [entry for entry in logs if entry["event"] == "peer_relay_failed"]


async def test_a_message_arrives_with_who_sent_it_and_where_answers_go(logs: list[Any]) -> None:
    async with receiving() as receiver, sending() as client:
        client.send(message(receiver.address))
        await asyncio.wait_for(receiver.came.wait(), timeout=10)
        assert receiver.messages == [
            PeerControl(
                own_rank=1,
                peer=DECODE,
                peer_rank=3,
                peer_address="decode-0:9",
                peer_ucx_address=b"",
                payload=b"grant",
            )
        ]
        await all_sent(client)
        assert failures(logs) == []


@pytest.mark.parametrize(
    ("to", "rank", "words"),
    [
        (make_identity("prefill-0", boot_epoch=1), 0, ["boot 1", "boot 2"]),
        (make_identity("prefill-0", boot_epoch=2, uuid="other"), 0, ["other"]),
        (PREFILL, 2, ["target_rank is 2", "2 ranks"]),
        (PREFILL, -1, ["target_rank is -1"]),
    ],
    ids=["a former life", "another node", "a rank too many", "a negative rank"],
)
async def test_what_is_meant_for_somebody_else_is_refused_and_logged(
    to: NodeIdentity, rank: int, words: list[str], logs: list[Any]
) -> None:
    async with receiving() as receiver, sending() as client:
        client.send(message(receiver.address, to=to, rank=rank))
        await all_sent(client)
        assert receiver.messages == []
        (entry,) = logs
        assert entry["event"] == "peer_relay_failed"
        for word in words:
            assert word in entry["reason"]


async def test_a_peer_that_is_not_there_is_logged(logs: list[Any]) -> None:
    async with sending() as client:
        client.send(message("127.0.0.1:1"))
        await all_sent(client)
        assert len(failures(logs)) == 1


async def test_a_peer_that_fails_again_and_again_is_logged_once_and_once_when_it_is_back(
    logs: list[Any],
) -> None:
    async with receiving() as receiver, sending() as client:
        former = make_identity("prefill-0", boot_epoch=1)
        for _ in range(3):
            client.send(message(receiver.address, to=former))
            await all_sent(client)
        assert len(failures(logs)) == 1
        client.send(message(receiver.address, to=PREFILL))  # another life: news of its own
        await all_sent(client)
        assert [entry["event"] for entry in logs] == ["peer_relay_failed"]
        client.send(message(receiver.address, to=PREFILL, rank=9))
        client.send(message(receiver.address, to=PREFILL, rank=9))
        await all_sent(client)
        assert len(failures(logs)) == 2
        client.send(message(receiver.address, to=PREFILL))
        await all_sent(client)
        assert logs[-1]["event"] == "peer_relay_works_again"
        assert logs[-1]["failed_count"] == 2
        client.send(message(receiver.address, to=PREFILL, rank=9))
        await all_sent(client)
        assert len(failures(logs)) == 3


async def test_messages_in_flight_are_bounded(
    monkeypatch: pytest.MonkeyPatch, logs: list[Any]
) -> None:
    monkeypatch.setattr(peers, "_RELAYS_IN_FLIGHT_MAX", 2)
    async with receiving() as receiver, sending() as client:
        for _ in range(3):
            client.send(message(receiver.address))
        assert len(failures(logs)) == 1
        assert "2 relays are in flight" in logs[0]["reason"]
        await all_sent(client)
        assert len(receiver.messages) == 2


async def test_the_longest_unused_channel_is_closed_at_the_bound(
    monkeypatch: pytest.MonkeyPatch, logs: list[Any]
) -> None:
    monkeypatch.setattr(peers, "_PEERS_MAX", 1)
    async with receiving() as one, receiving() as other, sending() as client:
        for receiver in (one, other, one):
            client.send(message(receiver.address))
            await all_sent(client)
        assert list(client._channels) == [one.address]
        assert (len(one.messages), len(other.messages)) == (2, 1)
        assert failures(logs) == []


async def test_closing_waits_for_what_it_cancelled(logs: list[Any]) -> None:
    client = PeerClient(identity=DECODE, own_address="decode-0:9")
    client.send(message("127.0.0.1:1"))
    (task,) = client._in_flight
    await asyncio.sleep(0)  # it has begun
    await client.close()
    assert task.cancelled()
    assert not client._in_flight
    assert failures(logs) == []


async def test_a_message_whose_channel_is_closed_for_another_is_logged(
    monkeypatch: pytest.MonkeyPatch, logs: list[Any]
) -> None:
    """The bound may close a channel in use; gRPC then cancels the call."""
    monkeypatch.setattr(peers, "_PEERS_MAX", 1)
    async with receiving() as receiver, sending() as client:
        reached = asyncio.Event()
        release = asyncio.Event()

        async def hold(self: PeerServicer, request: Any, context: Any) -> Any:
            reached.set()
            await release.wait()

        with monkeypatch.context() as patch:
            patch.setattr(PeerServicer, "Relay", hold)
            async with receiving() as slow:
                client.send(message(slow.address))
                await asyncio.wait_for(reached.wait(), timeout=10)
                patch.undo()
                client.send(message(receiver.address))
                await all_sent(client)
                release.set()
        assert len(failures(logs)) == 1


async def test_an_error_that_is_not_the_peers_is_logged_with_its_trace(
    monkeypatch: pytest.MonkeyPatch, logs: list[Any]
) -> None:
    class Closed:
        def __init__(self, channel: Any) -> None:
            raise grpc.aio.UsageError("Channel is closed.")

    monkeypatch.setattr(peers.node_pb2_grpc, "NodeStub", Closed)
    async with sending() as client:
        client.send(message("127.0.0.1:1"))
        await all_sent(client)
    (entry,) = logs
    assert (entry["event"], entry["error"]) == ("peer_relay_crashed", "UsageError")
    assert entry["exc_info"]
