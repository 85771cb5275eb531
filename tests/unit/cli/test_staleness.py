"""Every command that reads says when one scheduler's own copy was read, which may be old."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import grpc.aio
import pytest

from pdd.cli.main import main
from pdd.control.cluster_server import ClusterServicer
from pdd.control.leader_cluster import LeaderCluster
from pdd.control.settings_server import SettingsServicer
from pdd.rpc.v1 import cluster_pb2, cluster_pb2_grpc, settings_pb2, settings_pb2_grpc
from tests.serving import in_background

WHY_OLD = "no scheduler leads: for the test"
READS = [
    ("node", "list"),
    ("node", "show", "decode-0"),
    ("node", "role"),
    ("block", "locate", "r-1"),
    ("config", "overrides"),
    ("quota", "list"),
    ("why", "r-1"),
]


class Daemon:
    """What is behind the services of a scheduler that knows one of each."""

    def __init__(self) -> None:
        self.stale_reason = ""
        self.operator = self.role_operator = self.blocks = self

    def list_nodes(self) -> list[cluster_pb2.NodeInfo]:
        name = cluster_pb2.NodeIdentity(name="decode-0")
        return [cluster_pb2.NodeInfo(identity=name, role="decode", state="ready")]

    def roles(self) -> cluster_pb2.GetRolesResponse:
        return cluster_pb2.GetRolesResponse(mode="off")

    def drain_state(self, name: str) -> cluster_pb2.DrainState:
        return cluster_pb2.DrainState(is_drained=True)

    def holder_of(self, what: str) -> str | None:
        return None

    async def locate(self, what: str) -> cluster_pb2.LocateBlocksResponse:
        return cluster_pb2.LocateBlocksResponse(request_id=what)

    def decisions(self, request_id: str) -> list[cluster_pb2.Decision]:
        return [cluster_pb2.Decision(request_id=request_id, outcome="placed")]

    def overrides(self) -> list[settings_pb2.Override]:
        return [settings_pb2.Override(key="scheduler.path.mode", value="local")]

    def quotas(self) -> list[settings_pb2.Quota]:
        return [settings_pb2.Quota(tenant="acme", requests_max=1)]


@contextmanager
def served(daemon: Daemon) -> Iterator[str]:
    """The address of a scheduler whose only peer does not answer."""
    addresses = {"scheduler-0": "", "scheduler-1": "127.0.0.1:1"}
    others = LeaderCluster(lambda: "", name="scheduler-0", addresses=addresses)

    @asynccontextmanager
    async def serve() -> AsyncIterator[str]:
        server = grpc.aio.server()
        cluster: Any = ClusterServicer(daemon, leader=others)  # type: ignore[arg-type]
        settings: Any = SettingsServicer(
            daemon,  # type: ignore[arg-type]
            stale_reason=lambda: daemon.stale_reason,
        )
        cluster_pb2_grpc.add_ClusterServicer_to_server(cluster, server)
        settings_pb2_grpc.add_SettingsServicer_to_server(settings, server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        yield f"127.0.0.1:{port}"
        await server.stop(grace=None)

    with in_background(serve) as address:
        yield address


def entries(document: Any) -> list[dict[str, Any]]:
    """The objects that a command tells of: one, or several in a list or by name."""
    if isinstance(document, list):
        return document
    if all(isinstance(value, dict) for value in document.values()):
        return list(document.values())
    return [document]


@pytest.mark.parametrize("read", READS[:-1], ids=" ".join)
def test_what_may_be_old_says_so_on_stderr_and_in_json(
    read: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    daemon = Daemon()
    with served(daemon) as address:
        for reason in ("", WHY_OLD):
            daemon.stale_reason = reason
            warning = f"warning: {reason}\n" if reason else ""
            assert main([*read, "--scheduler", address]) == 0
            assert capsys.readouterr().err == warning
            assert main([*read, "--scheduler", address, "-o", "json"]) == 0
            told = capsys.readouterr()
            assert told.err == warning
            (entry,) = entries(json.loads(told.out))
            assert entry["stale_reason"] == (reason or None)


def test_how_a_request_was_placed_names_who_did_not_answer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with served(Daemon()) as address:
        assert main(["why", "r-1", "--scheduler", address, "-o", "json"]) == 0
    told = capsys.readouterr()
    missing = "what scheduler-1 decided is not shown: no answer"
    assert told.err == f"warning: {missing}\n"
    (entry,) = json.loads(told.out)
    assert entry["stale_reason"] == missing


def test_a_drain_that_is_watched_without_a_leader_says_so_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    states = iter([*[cluster_pb2.DrainState(is_draining=True)] * 3])
    drained = cluster_pb2.DrainState(is_draining=True, is_drained=True, drain_s=1.0)
    daemon = Daemon()
    daemon.drain_state = lambda name: next(states, drained)  # type: ignore[method-assign]
    daemon.stale_reason = WHY_OLD

    async def cordon(name: str, *, message: str, is_drain: bool) -> bool:
        return True

    monkeypatch.setattr(daemon, "cordon", cordon, raising=False)
    monkeypatch.setattr("pdd.cli.node_drain._POLL_S", 0.0)
    with served(daemon) as address:
        assert main(["node", "drain", "decode-0", "--scheduler", address]) == 0
    assert capsys.readouterr().err.count(WHY_OLD) == 1


def test_no_command_that_reads_a_scheduler_is_left_out() -> None:
    """Whatever call of its services only reads has an answer that can say so."""
    answers = {
        f"{service.name}.{method.name}": {field.name for field in method.output_type.fields}
        for service in (
            cluster_pb2.DESCRIPTOR.services_by_name["Cluster"],
            settings_pb2.DESCRIPTOR.services_by_name["Settings"],
        )
        for method in service.methods
        if method.name.startswith(("List", "Get", "Locate"))
    }
    mute = {name for name, fields in answers.items() if "stale_reason" not in fields}
    assert mute == {"Cluster.ListReplicas"}, "each replica answers for itself"
    assert len(answers) == 8
