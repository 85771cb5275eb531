"""How a process of a cluster reads its gRPC sockets."""

import os
import subprocess
import sys

import grpc
import pytest

from pdd.tls.light_io import use_light_io

_SERVE = """
import asyncio
import grpc.aio
from pdd.tls.light_io import use_light_io
use_light_io()
async def serve():
    server = grpc.aio.server()
    server.add_insecure_port("127.0.0.1:0")
    await server.start()
    await server.stop(0)
asyncio.run(serve())
"""


def test_the_installed_grpc_knows_the_switch_and_complains_of_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SERVE], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stderr == ""


def test_a_release_that_may_not_know_the_switch_runs_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "environ", {})
    monkeypatch.setattr(grpc, "__version__", "1.86.0")
    use_light_io()
    assert "GRPC_EXPERIMENTS" not in os.environ
    monkeypatch.setattr(grpc, "__version__", "1.85.0")
    use_light_io()
    assert "event_engine_client" in os.environ["GRPC_EXPERIMENTS"]


def test_who_has_chosen_is_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPC_EXPERIMENTS", "tcp_frame_size_tuning")
    use_light_io()
    assert os.environ["GRPC_EXPERIMENTS"] == "tcp_frame_size_tuning"
