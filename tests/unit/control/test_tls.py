"""What a certificate lets a node say: to a scheduler, and to its peers. Real gRPC on loopback."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from structlog.testing import LogCapture, capture_logs

from pdd.control.cluster_server import ClusterServicer
from pdd.control.peers import PeerClient, PeerServicer
from pdd.control.scheduler_client import SchedulerLink
from pdd.control.versions import CHANNEL_OPTIONS, SERVER_OPTIONS
from pdd.engine.port import PeerControl
from pdd.rpc.v1 import cluster_pb2, cluster_pb2_grpc, node_pb2_grpc
from pdd.tls.identity import CertificateIdentity
from pdd.tls.paths import TlsPaths
from pdd.tls.security import PLAIN, CallContext, Security, TlsSecurity
from tests.builders import make_identity
from tests.unit.daemon.grpc_cluster import WAIT_S, Node, Scheduler
from tests.unit.tls.certificates import Authority

DECODE = make_identity("decode-0")
PREFILL = make_identity("prefill-0")


class Logs(list[Any]):
    """What ``capture_logs`` fills; wakes who waits for an entry."""

    def __init__(self) -> None:
        super().__init__()
        self._news = asyncio.Event()

    def append(self, entry: Any) -> None:
        super().append(entry)
        self._news.set()

    async def until(self, name: str) -> Any:
        async with asyncio.timeout(WAIT_S):
            while not (found := events(self, name)):
                self._news.clear()
                await self._news.wait()
        return found[0]


@pytest.fixture(autouse=True)
def logs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Logs]:
    captured = Logs()
    monkeypatch.setattr(
        LogCapture, "__init__", lambda capture: capture.__dict__.update(entries=captured)
    )
    with capture_logs():
        yield captured


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "one")


def events(logs: list[Any], name: str) -> list[Any]:
    return [entry for entry in logs if entry["event"] == name]


class TlsScheduler(Scheduler):
    """A real driver behind mutual TLS."""

    def __init__(self, security: Security) -> None:
        super().__init__()
        self.servicer = ClusterServicer(self.driver, security=security)
        self._security = security

    async def start(self, address: str = "127.0.0.1:0") -> None:
        self._server = grpc.aio.server(options=SERVER_OPTIONS)
        cluster_pb2_grpc.add_ClusterServicer_to_server(self.servicer, self._server)
        self.address = f"127.0.0.1:{self._security.bind(self._server, address)}"
        await self._server.start()


@contextlib.asynccontextmanager
async def scheduling(authority: Authority) -> AsyncIterator[TlsScheduler]:
    scheduler = TlsScheduler(authority.security("scheduler-0"))
    await scheduler.start()
    try:
        yield scheduler
    finally:
        await scheduler.stop()


@contextlib.asynccontextmanager
async def attaching(name: str, scheduler: TlsScheduler, security: Security) -> AsyncIterator[Node]:
    """``name`` says who the node claims to be, ``security`` who it is."""
    node = Node(name, scheduler.address)
    node.link = SchedulerLink(address=scheduler.address, handler=node.service, security=security)
    node.start()
    try:
        yield node
    finally:
        await node.kill()


async def test_a_node_joins_under_the_name_of_its_certificate(authority: Authority) -> None:
    async with (
        scheduling(authority) as scheduler,
        attaching("decode-0", scheduler, authority.security("decode-0")),
    ):
        await scheduler.until(lambda: scheduler.states() == {"decode-0": "ready"})
        assert scheduler.servicer.refused_caller_count == 0


@pytest.mark.parametrize(
    ("certificate", "role"),
    [
        ("decode-1", "decode"),
        ("decode-0", "prefill"),
        ("decode-0", "client"),
        ("decode-0", "scheduler"),
    ],
)
async def test_a_node_with_another_ones_certificate_cannot_join(
    authority: Authority, logs: Logs, certificate: str, role: str
) -> None:
    security = authority.security(certificate, role=role)
    async with (
        scheduling(authority) as scheduler,
        attaching("decode-0", scheduler, security),
    ):
        told = await logs.until("join_refused")
        assert "PERMISSION_DENIED" in told["reason"]
        for word in ("decode/decode-0", f"{role}/{certificate}"):
            assert word in told["reason"]
        (refused,) = events(logs, "caller_refused")
        assert refused["claimed"] == "decode/decode-0"
        assert refused["peer"].startswith("ipv4:127.0.0.1")
        assert scheduler.servicer.refused_caller_count == 1
        assert scheduler.states() == {}


async def test_a_taken_name_is_not_given_to_somebody_elses_certificate(
    authority: Authority, logs: Logs
) -> None:
    async with (
        scheduling(authority) as scheduler,
        attaching("decode-0", scheduler, authority.security("decode-0")),
    ):
        await scheduler.until(lambda: scheduler.states() == {"decode-0": "ready"})
        async with attaching("decode-0", scheduler, authority.security("decode-1")):
            await logs.until("join_refused")
        assert scheduler.states() == {"decode-0": "ready"}
        assert scheduler.driver.detached == []


async def test_strangers_do_not_reach_the_service_and_the_node_says_so(
    authority: Authority, logs: Logs, tmp_path: Path
) -> None:
    foreign = Authority(tmp_path / "two").security("decode-0")
    async with scheduling(authority) as scheduler:
        for stranger in (foreign, authority.expired("decode-1"), PLAIN):
            async with scheduler_channel(stranger, scheduler) as stub:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await stub.ListNodes(cluster_pb2.ListNodesRequest(), timeout=WAIT_S)
                assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        async with attaching("decode-0", scheduler, foreign):
            told = await logs.until("scheduler_not_reached")
            assert "pdd certs show" in told["advice"]
        assert scheduler.states() == {}
        assert scheduler.servicer.refused_caller_count == 0


@contextlib.asynccontextmanager
async def scheduler_channel(
    security: Security, scheduler: Scheduler
) -> AsyncIterator[cluster_pb2_grpc.ClusterStub]:
    async with security.channel(scheduler.address, options=CHANNEL_OPTIONS) as channel:
        yield cluster_pb2_grpc.ClusterStub(channel)


async def test_a_client_may_look_at_the_nodes_and_another_clusters_may_not(
    authority: Authority, tmp_path: Path
) -> None:
    async with scheduling(authority) as scheduler:
        client = authority.security("anna", role="client", hosts=())
        async with scheduler_channel(client, scheduler) as stub:
            listed = await stub.ListNodes(cluster_pb2.ListNodesRequest(), timeout=WAIT_S)
            assert list(listed.nodes) == []
        # One authority's key may sign for two clusters only by mistake; names are compared then.
        other = _of_another_cluster(authority, tmp_path)
        async with scheduler_channel(other, scheduler) as stub:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.ListNodes(cluster_pb2.ListNodesRequest(), timeout=WAIT_S)
        assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
        assert "cluster 'two'" in str(caught.value.details())
        assert scheduler.servicer.refused_caller_count == 1


_ASKED = {
    "ListNodes": cluster_pb2.ListNodesRequest(),
    "CordonNode": cluster_pb2.CordonNodeRequest(node="decode-0", is_drain=True),
    "GetDrainState": cluster_pb2.GetDrainStateRequest(node="decode-0"),
    "SetNodeRole": cluster_pb2.SetNodeRoleRequest(node="decode-0", role="decode"),
    "GetRoles": cluster_pb2.GetRolesRequest(),
    "ListDecisions": cluster_pb2.ListDecisionsRequest(request_id="r1"),
    "UncordonNode": cluster_pb2.UncordonNodeRequest(node="decode-0"),
    "ListReplicas": cluster_pb2.ListReplicasRequest(),
    "TransferGroup": cluster_pb2.TransferGroupRequest(target="scheduler-1"),
    "SnapshotReplica": cluster_pb2.SnapshotReplicaRequest(replica="scheduler-0"),
}
"""What an operator asks, in an order in which each finds something to do."""
_FOUND_NOTHING = {
    "ListDecisions": grpc.StatusCode.NOT_FOUND,
    "ListReplicas": grpc.StatusCode.UNIMPLEMENTED,
    "TransferGroup": grpc.StatusCode.UNIMPLEMENTED,
    "SnapshotReplica": grpc.StatusCode.UNIMPLEMENTED,
}
"""This scheduler has decided nothing and keeps no log; the answer says that somebody looked."""


@pytest.mark.parametrize(
    ("certificate", "role"),
    [("decode-7", "decode"), ("decode-0", "decode"), ("prefill-0", "prefill")],
)
async def test_a_nodes_certificate_neither_asks_nor_cordons_not_even_itself(
    authority: Authority, logs: Logs, certificate: str, role: str
) -> None:
    async with (
        scheduling(authority) as scheduler,
        attaching("decode-0", scheduler, authority.security("decode-0")),
    ):
        await scheduler.until(lambda: scheduler.states() == {"decode-0": "ready"})
        security = authority.security(certificate, role=role, file="asking")
        async with scheduler_channel(security, scheduler) as stub:
            for count, (method, request) in enumerate(_ASKED.items(), start=1):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await getattr(stub, method)(request, timeout=WAIT_S)
                assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED, method
                assert f"{role}/{certificate}" in str(caught.value.details())
                assert scheduler.servicer.refused_caller_count == count
        assert len(events(logs, "caller_refused")) == len(_ASKED)
        assert scheduler.states() == {"decode-0": "ready"}


@pytest.mark.parametrize("role", ["client", "scheduler"])
async def test_an_operators_or_schedulers_certificate_asks_and_cordons(
    authority: Authority, role: str
) -> None:
    async with (
        scheduling(authority) as scheduler,
        attaching("decode-0", scheduler, authority.security("decode-0")),
    ):
        await scheduler.until(lambda: scheduler.states() == {"decode-0": "ready"})
        async with scheduler_channel(authority.security("anna", role=role), scheduler) as stub:
            for method, request in _ASKED.items():
                if (code := _FOUND_NOTHING.get(method)) is not None:
                    with pytest.raises(grpc.aio.AioRpcError) as caught:
                        await getattr(stub, method)(request, timeout=WAIT_S)
                    assert caught.value.code() is code, method
                    continue
                await getattr(stub, method)(request, timeout=WAIT_S)
                is_out = method in ("CordonNode", "GetDrainState", "SetNodeRole", "GetRoles")
                assert scheduler.states() == {"decode-0": "cordoned" if is_out else "ready"}, method
        assert scheduler.servicer.refused_caller_count == 0


def _of_another_cluster(authority: Authority, tmp_path: Path) -> Security:
    """Both authorities are trusted by both sides, as in the days of a merger."""
    two = Authority(tmp_path / "two", "two")
    both = authority.ca.read_bytes() + two.ca.read_bytes()
    authority.ca.write_bytes(both)
    two.ca.write_bytes(both)
    return two.security("anna", role="client")


class Receiver:
    def __init__(self, security: Security) -> None:
        self.messages: list[PeerControl] = []
        self.servicer = PeerServicer(
            identity=PREFILL, rank_count=2, deliver=self.messages.append, security=security
        )
        self.address = ""


@contextlib.asynccontextmanager
async def receiving(
    authority: Authority, security: Security | None = None
) -> AsyncIterator[Receiver]:
    security = security or authority.security("prefill-0")
    receiver = Receiver(security)
    server = grpc.aio.server(options=SERVER_OPTIONS)
    node_pb2_grpc.add_NodeServicer_to_server(receiver.servicer, server)
    receiver.address = f"127.0.0.1:{security.bind(server, '127.0.0.1:0')}"
    await server.start()
    try:
        yield receiver
    finally:
        await server.stop(grace=None)


async def relay(receiver: Receiver, client: PeerClient) -> None:
    client.send(
        PeerControl(
            own_rank=0,
            peer=PREFILL,
            peer_rank=1,
            peer_address=receiver.address,
            peer_ucx_address=b"",
            payload=b"grant",
        )
    )
    await asyncio.wait_for(asyncio.wait(list(client._in_flight)), timeout=WAIT_S)


@contextlib.asynccontextmanager
async def sending(security: Security) -> AsyncIterator[PeerClient]:
    client = PeerClient(identity=DECODE, own_address="decode-0:9", security=security)
    try:
        yield client
    finally:
        await client.close()


async def test_a_peer_is_heard_in_its_own_name(authority: Authority, logs: Logs) -> None:
    async with receiving(authority) as receiver, sending(authority.security("decode-0")) as client:
        await relay(receiver, client)
        assert [message.peer for message in receiver.messages] == [DECODE]
        assert logs == []


@pytest.mark.parametrize(
    ("certificate", "role"),
    [("decode-1", "decode"), ("decode-0", "client"), ("decode-0", "scheduler")],
)
async def test_a_peer_is_not_heard_in_another_nodes_name(
    authority: Authority, logs: Logs, certificate: str, role: str
) -> None:
    security = authority.security(certificate, role=role)
    async with receiving(authority) as receiver, sending(security) as client:
        await relay(receiver, client)
        assert receiver.messages == []
        assert receiver.servicer.refused_caller_count == 1
        (refused,) = events(logs, "caller_refused")
        assert (refused["claimed"], f"{role}/{certificate}" in refused["reason"]) == (
            "decode-0",
            True,
        )
        (failed,) = events(logs, "peer_relay_failed")
        assert "PERMISSION_DENIED" in failed["reason"]


async def test_strangers_deliver_nothing(authority: Authority, tmp_path: Path) -> None:
    strangers = [
        PLAIN,
        authority.expired("decode-0"),
        Authority(tmp_path / "two").security("decode-0"),
    ]
    async with receiving(authority) as receiver:
        for security in strangers:
            async with sending(security) as client:
                await relay(receiver, client)
        assert receiver.messages == []
        assert receiver.servicer.refused_caller_count == 0


class Seeing(TlsSecurity):
    """Remembers which certificates callers showed."""

    def __init__(self, paths: TlsPaths) -> None:
        super().__init__(paths)
        self.shown: list[str] = []
        """Serial numbers, hexadecimal."""

    def caller(self, context: CallContext) -> CertificateIdentity | None:
        (pem,) = context.auth_context()["x509_pem_cert"]
        self.shown.append(f"{x509.load_pem_x509_certificate(pem).serial_number:x}")
        return super().caller(context)


async def test_a_renewed_certificate_is_shown_at_the_next_message(authority: Authority) -> None:
    """The same channel would show the former one for as long as its connection lasts."""
    security = authority.security("decode-0")
    seeing = Seeing(authority.issue("prefill-0"))
    async with receiving(authority, seeing) as receiver, sending(security) as client:
        serials = []
        for _ in range(2):
            await relay(receiver, client)
            serials.append(security.material().facts.serial)
            authority.issue("decode-0", force=True)
        assert seeing.shown == serials
        assert len(set(serials)) == 2
        assert [message.peer for message in receiver.messages] == [DECODE, DECODE]
        assert len(client._channels) == 1
