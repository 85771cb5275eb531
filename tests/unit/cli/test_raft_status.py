"""What ``pdd raft status`` prints of replicas that do not answer."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pdd.cli import raft
from pdd.cli.main import main
from pdd.rpc.v1 import cluster_pb2, raft_pb2

FAULT = "UNAVAILABLE: failed to connect to all addresses"


def silent(name: str) -> cluster_pb2.ReplicaInfo:
    return cluster_pb2.ReplicaInfo(name=name, address="10.0.0.9:7071", fault=FAULT)


def answering(name: str, role: str) -> cluster_pb2.ReplicaInfo:
    status = raft_pb2.GetStatusResponse(role=role, term=7, state_hash=b"\x01" * 8)
    return cluster_pb2.ReplicaInfo(name=name, address="10.0.0.1:7071", status=status)


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[cluster_pb2.ReplicaInfo]:
    """The replicas as a scheduler tells of them; the test fills it."""
    replicas: list[cluster_pb2.ReplicaInfo] = []

    @contextmanager
    def find(scheduler: str | None, state_dir: Path | None, tls: Any) -> Iterator[Any]:
        yield SimpleNamespace(admin=SimpleNamespace(replicas=lambda: replicas))

    monkeypatch.setattr(raft, "find_scheduler", find)
    return replicas


def test_why_one_does_not_answer_stands_below_the_table_and_does_not_widen_it(
    found: list[cluster_pb2.ReplicaInfo], capsys: pytest.CaptureFixture[str]
) -> None:
    found.extend([answering("scheduler-0", "leader"), silent("scheduler-1")])
    assert main(["raft", "status"]) == 0
    told = capsys.readouterr()
    assert told.err == f"scheduler-1 at 10.0.0.9:7071 does not answer: {FAULT}\n"
    assert "scheduler-1  no answer  -" in told.out
    assert FAULT not in told.out
    assert main(["raft", "status", "-o", "json"]) == 0
    told = capsys.readouterr()
    assert (told.err, json.loads(told.out)[1]["fault"]) == ("", FAULT)


def test_that_nobody_leads_comes_with_what_to_do(
    found: list[cluster_pb2.ReplicaInfo], capsys: pytest.CaptureFixture[str]
) -> None:
    found.extend([answering("scheduler-0", "pre_candidate"), silent("a"), silent("b")])
    assert main(["raft", "status"]) == 1
    err = capsys.readouterr().err
    assert "ask again" in err
    assert "start the schedulers of those that do not" in err
