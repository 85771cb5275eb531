"""Daemons as on five hosts, three of them schedulers: each has an address, a configuration and a
certificate of its own."""

import contextlib
import json
import os
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from pdd.config.load import load_config
from pdd.config.toml_text import to_toml
from pdd.control.group_convert import GROUP_VERSION
from pdd.control.versions import PROTOCOL_VERSION
from pdd.daemon.notify_keys import GRPC_ADDRESS_KEY, HTTP_ADDRESS_KEY
from pdd.daemon.replica_plan import begin_log_of
from pdd.engine.synthetic.model import write_model
from pdd.raft.config import RaftConfig
from pdd.raft.values import NodeId
from pdd.replication.hello import make_hello
from pdd.replication.local_group import free_ports
from pdd.rpc.v1 import (
    cluster_pb2,
    cluster_pb2_grpc,
    decisions_pb2,
    decisions_pb2_grpc,
    inference_pb2,
    inference_pb2_grpc,
    node_pb2,
    node_pb2_grpc,
    raft_pb2,
    raft_pb2_grpc,
)
from pdd.tls.paths import TlsPaths
from pdd.tls.security import TlsSecurity
from tests.vllm.cluster import run_cli, run_here
from tests.waiting import wait_until

PDD = (sys.executable, "-m", "pdd.cli.main")
START_TIMEOUT_S = 120.0
WAIT_S = 30.0
"""How long a test waits for something to happen before it fails; nothing is measured with it."""
SCHEDULERS = {"scheduler-0": "127.0.0.1", "scheduler-1": "127.0.0.4", "scheduler-2": "127.0.0.5"}
HOSTS = {**SCHEDULERS, "prefill-0": "127.0.0.2", "decode-0": "127.0.0.3"}
ROLES = ("prefill", "decode")
OPTIONS = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]


@dataclass
class Hosts:
    """Daemons of one cluster; ``addresses`` are what each told when it was ready."""

    folder: Path
    grpc: dict[str, str]
    """Of the schedulers, chosen beforehand, as ``raft`` is: they and the nodes name each other."""
    raft: dict[str, str]
    addresses: dict[str, dict[str, str]] = field(default_factory=dict)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def certs(self) -> Path:
        return self.folder / "certs"

    def files(self, name: str) -> dict[str, str]:
        """A [tls] section."""
        return {
            "ca": str(self.certs / "ca.crt"),
            "certificate": str(self.certs / f"{name}.crt"),
            "key": str(self.certs / f"{name}.key"),
        }

    def security(self, name: str) -> TlsSecurity:
        return TlsSecurity(TlsPaths(**{key: Path(f) for key, f in self.files(name).items()}))

    def issue(self, name: str, role: str, *hosts: str, force: bool = False) -> None:
        options = [part for host in hosts for part in ("--host", host)]
        options += ["--force"] * force
        done = run_here("certs", "issue", name, "--role", role, "--dir", str(self.certs), *options)
        assert done.returncode == 0, done.stderr

    def write(self, name: str, **changes: dict[str, Any]) -> Path:
        """The configuration of a daemon. Its role is the first word of its name."""
        role = name.partition("-")[0]
        tables: dict[str, dict[str, Any]] = {
            "node": {"name": name, "role": role, "state_dir": str(self.folder / name)},
            "engine": {"kind": "synthetic", "model": str(self.folder / "model")},
            "tls": self.files(name),
            "log": {"format": "json"},
        }
        tables["engine"] |= {"kv_cache_bytes": 16 << 20, "max_num_seqs": 32}
        if role == "scheduler":
            tables["http"] = {"listen": f"{HOSTS[name]}:0"}
            tables["grpc"] = {"listen": self.grpc[name], "public_listen": "127.0.0.1:0"}
            tables["raft"] = {"replicas": self.raft, "schedulers": self.grpc}
            front = self.files("front")
            tables["public_tls"] = {"certificate": front["certificate"], "key": front["key"]}
        else:
            tables["node"]["schedulers"] = list(self.grpc.values())
            tables["grpc"] = {"listen": f"{HOSTS[name]}:0"}
        for section, values in changes.items():
            tables[section] |= values
        path = self.folder / f"{name}.toml"
        path.write_text(to_toml(tables))
        return path

    def start(self) -> None:
        """Run all daemons until each says that it is ready."""
        with contextlib.ExitStack() as sockets:
            listening = {
                name: sockets.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
                for name in HOSTS
            }
            for name, one in listening.items():
                one.bind(str(self.folder / f"{name}.notify"))
                one.settimeout(1.0)
                self._spawn(name)
            for name, one in listening.items():
                self._await_ready(name, one)

    def _spawn(self, name: str) -> None:
        config = self.write(name)
        if name in SCHEDULERS:
            begin_log_of(load_config(config, environment={}, flags=()).config)
        with (self.folder / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                [*PDD, "serve", "--config", str(config)],
                stdout=log,
                stderr=log,
                env=os.environ | {"NOTIFY_SOCKET": str(self.folder / f"{name}.notify")},
            )

    def _await_ready(self, name: str, listening: socket.socket) -> None:
        told: dict[str, str] = {}
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while "READY" not in told:
            assert self.processes[name].poll() is None, self.log(name)
            assert time.monotonic() < deadline_s, self.log(name)
            with contextlib.suppress(TimeoutError):
                lines = listening.recv(65536).decode().splitlines()
                told = dict(line.split("=", 1) for line in lines)
        self.addresses[name] = {
            "grpc": told[GRPC_ADDRESS_KEY],
            "http": told.get(HTTP_ADDRESS_KEY, ""),
        }

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def events(self, name: str, event: str) -> list[dict[str, Any]]:
        """Of a daemon's log. gRPC writes lines of its own there."""
        lines = [line for line in self.log(name).splitlines() if line.startswith("{")]
        return [entry for entry in map(json.loads, lines) if entry["event"] == event]

    def client(self, scheduler: str = "scheduler-0") -> httpx.Client:
        """Knows the front door's authority and has no certificate."""
        trust = ssl.create_default_context(cafile=self.certs / "ca.crt")
        url = f"https://{self.addresses[scheduler]['http']}"
        return httpx.Client(base_url=url, verify=trust, timeout=WAIT_S, trust_env=False)

    def stop(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(timeout=WAIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    ports = iter(free_ports(2 * len(SCHEDULERS)))
    found = Hosts(
        tmp_path_factory.mktemp("hosts"),
        grpc={name: f"{host}:{next(ports)}" for name, host in SCHEDULERS.items()},
        raft={name: f"{host}:{next(ports)}" for name, host in SCHEDULERS.items()},
    )
    write_model(found.folder / "model")
    assert run_cli("certs", "init", "--dir", str(found.certs)).returncode == 0
    for name, host in HOSTS.items():
        found.issue(name, name.partition("-")[0], host)
    found.issue("front", "scheduler", *SCHEDULERS.values())
    found.issue("anna", "client")
    found.issue("decode-9", "decode", "127.0.0.9")
    try:
        found.start()
        for scheduler in SCHEDULERS:
            with found.client(scheduler) as client:
                until_ready(client, found, scheduler)
        yield found
    finally:
        found.stop()


def until_ready(client: httpx.Client, hosts: Hosts, scheduler: str) -> None:
    """It serves, sees every node, and reaches a leader."""

    def is_ready() -> bool:
        health = client.get("/health").json()
        return not health["reason"] and all(health[f"{role}_ready_count"] for role in ROLES)

    wait_until(is_ready, lambda: hosts.log(scheduler), within_s=WAIT_S)


def test_text_is_generated_over_transfers_between_hosts_that_know_each_other(hosts: Hosts) -> None:
    body = {"prompt": "The quick brown fox " * 20, "max_tokens": 20, "temperature": 0.0}
    with hosts.client() as client:
        response = client.post("/v1/completions", json=body)
        assert response.status_code == 200, response.text
        usage = response.json()["usage"]
        assert usage["completion_tokens"] == 20
        assert usage["pdd"]["path"] == "disaggregated"
        assert usage["pdd"]["transferred_bytes"] > 0
        assert usage["pdd"]["decode_computed_prompt_tokens"] == 0
        streamed = client.post("/v1/completions", json={**body, "stream": True})
        assert streamed.text.rstrip().endswith("data: [DONE]")
    for name in HOSTS:
        (ready,) = hosts.events(name, "tls_ready")
        assert ready["identity"] == f"pdd://pdd/{name.partition('-')[0]}/{name}"


def test_commands_show_a_clients_certificate(hosts: Hosts) -> None:
    address = hosts.addresses["scheduler-0"]["grpc"]
    options = [p for key, path in hosts.files("anna").items() for p in (f"--{key}", path)]
    done = run_here("node", "list", "--scheduler", address, "-o", "json", *options)
    assert done.returncode == 0, done.stderr
    assert {
        node["name"]: (node["state"], node["address"].partition(":")[0])
        for node in json.loads(done.stdout)
    } == {"prefill-0": ("ready", "127.0.0.2"), "decode-0": ("ready", "127.0.0.3")}
    assert run_here("node", "list", "--scheduler", address).returncode == 1
    url = f"https://{hosts.addresses['scheduler-0']['http']}"
    done = run_cli("chat", "hello", "--url", url, "--max-tokens", "5", "--ca", options[1])
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def attach(security: TlsSecurity, address: str, hello: cluster_pb2.Hello) -> grpc.RpcError | None:
    """What a scheduler says to a hello; None for a welcome."""
    with security.blocking_channel(address, options=OPTIONS) as channel:
        call = cluster_pb2_grpc.ClusterStub(channel).Attach(
            iter([cluster_pb2.NodeMessage(hello=hello)]), timeout=WAIT_S
        )
        try:
            next(call)
        except grpc.RpcError as error:
            return error
        finally:
            call.cancel()
    return None


@pytest.mark.parametrize("certificate", ["decode-9", "anna", "scheduler-0"])
def test_a_node_with_another_ones_certificate_cannot_attach(hosts: Hosts, certificate: str) -> None:
    before = len(hosts.events("scheduler-0", "caller_refused"))
    hello = cluster_pb2.Hello(
        role="decode", address="127.0.0.9:1", protocol_version=PROTOCOL_VERSION
    )
    hello.identity.name, hello.identity.uuid, hello.identity.boot_epoch = "decode-0", "x", 99
    error = attach(hosts.security(certificate), hosts.addresses["scheduler-0"]["grpc"], hello)
    assert error is not None
    assert error.code() is grpc.StatusCode.PERMISSION_DENIED
    assert "decode/decode-0" in str(error.details())
    assert certificate in str(error.details())
    refused = hosts.events("scheduler-0", "caller_refused")
    assert [entry["claimed"] for entry in refused[before:]] == ["decode/decode-0"]
    with hosts.client() as client:
        assert metric(client, "pdd_refused_callers_total") == len(refused)
        assert metric(client, "pdd_certificate_expiry_timestamp_seconds") > 0
        assert client.get("/health").status_code == 200
    assert hosts.events("scheduler-0", "node_lost") == []


def metric(client: httpx.Client, name: str) -> float:
    """One sample of ``/metrics``; 0 while there is none."""
    lines = client.get("/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name} "))


def test_a_node_hears_no_transfer_message_in_another_ones_name(hosts: Hosts) -> None:
    request = node_pb2.RelayRequest(source_address="127.0.0.9:1", payload=b"x")
    request.source.name, request.source.uuid, request.source.boot_epoch = "prefill-0", "x", 1
    address = hosts.addresses["decode-0"]["grpc"]
    with hosts.security("decode-9").blocking_channel(address, options=OPTIONS) as channel:
        stub = node_pb2_grpc.NodeStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            stub.Relay(request, timeout=WAIT_S)
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
    (refused,) = hosts.events("decode-0", "caller_refused")
    assert refused["claimed"] == "prefill-0"
    counter = 'pdd_kv_transfer_refused_callers_total{node="decode-0"}'
    with hosts.client() as client:
        wait_until(lambda: metric(client, counter) == 1.0, f"{counter} to be 1")


def test_a_renewed_front_door_needs_no_restart(hosts: Hosts) -> None:
    def serial() -> str:
        host, _, port = hosts.addresses["scheduler-0"]["http"].partition(":")
        trust = ssl.create_default_context(cafile=hosts.certs / "ca.crt")
        with (
            socket.create_connection((host, int(port)), timeout=WAIT_S) as raw,
            trust.wrap_socket(raw, server_hostname=host) as connection,
        ):
            return str((connection.getpeercert() or {})["serialNumber"])

    before = serial()
    assert serial() == before
    hosts.issue("front", "scheduler", *SCHEDULERS.values(), force=True)
    shown = run_here("certs", "show", str(hosts.certs / "front.crt"), "-o", "json")
    assert int(serial(), 16) == int(json.loads(shown.stdout)["serial"], 16) != int(before, 16)
    assert len(hosts.events("scheduler-0", "certificate_renewed")) == 1


def test_a_daemon_with_another_ones_certificate_does_not_even_start(hosts: Hosts) -> None:
    path = hosts.folder / "impostor.toml"
    written = hosts.write("decode-0", grpc={"listen": "127.0.0.9:0"}, tls=hosts.files("decode-9"))
    written.rename(path)
    done = run_cli("serve", "--config", str(path))
    assert done.returncode == 2
    assert "is issued for decode 'decode-9', this daemon is decode 'decode-0'" in done.stderr


def test_strangers_get_nothing_from_any_daemon(hosts: Hosts) -> None:
    trust = grpc.ssl_channel_credentials((hosts.certs / "ca.crt").read_bytes())
    for name in HOSTS:
        address = hosts.addresses[name]["grpc"]
        for channel in (
            grpc.insecure_channel(address, options=OPTIONS),
            grpc.secure_channel(address, trust, options=OPTIONS),
        ):
            stub = cluster_pb2_grpc.ClusterStub(channel)
            with channel, pytest.raises(grpc.RpcError) as caught:
                stub.ListNodes(cluster_pb2.ListNodesRequest(), timeout=WAIT_S)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE, name


def test_the_public_port_answers_clients_without_a_certificate_and_nothing_of_the_cluster(
    hosts: Hosts,
) -> None:
    (ready,) = hosts.events("scheduler-0", "public_grpc_ready")
    trust = grpc.ssl_channel_credentials((hosts.certs / "ca.crt").read_bytes())
    with grpc.secure_channel(ready["grpc"], trust, options=OPTIONS) as channel:
        request = inference_pb2.GenerateRequest(
            text="hello", sampling=inference_pb2.SamplingParameters(max_tokens=5)
        )
        answers = list(inference_pb2_grpc.InferenceStub(channel).Generate(request, timeout=WAIT_S))
        assert answers[-1].WhichOneof("event") == "end"
        stub = cluster_pb2_grpc.ClusterStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            stub.ListNodes(cluster_pb2.ListNodesRequest(), timeout=WAIT_S)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_plain_http_is_not_answered(hosts: Hosts) -> None:
    with contextlib.suppress(httpx.RemoteProtocolError, httpx.ReadError):
        url = f"http://{hosts.addresses['scheduler-0']['http']}/health"
        answer = httpx.get(url, timeout=WAIT_S, trust_env=False)
        pytest.fail(f"answered with {answer.status_code}")


@pytest.mark.parametrize("certificate", ["decode-0", "anna"])
def test_who_is_no_scheduler_cannot_join_the_group(hosts: Hosts, certificate: str) -> None:
    security = hosts.security(certificate)
    item = decisions_pb2.HolderItem()
    item.hello.scheduler, item.hello.version = "scheduler-1", GROUP_VERSION
    voters = tuple(NodeId(name) for name in SCHEDULERS)
    config = RaftConfig(node=NodeId("scheduler-1"), voters=voters, cluster_id="pdd")
    hello = raft_pb2.DeliverRequest(hello=make_hello(config))
    for name in ("scheduler-0", "scheduler-2"):
        with security.blocking_channel(hosts.grpc[name], options=OPTIONS) as channel:
            asking = decisions_pb2_grpc.DecisionsStub(channel).Ask(
                iter([decisions_pb2.AskRequest(items=[item])]), timeout=WAIT_S
            )
            refused(asking, certificate)
        with security.blocking_channel(hosts.raft[name], options=OPTIONS) as channel:
            delivering = raft_pb2_grpc.RaftStub(channel).Deliver(iter([hello]), timeout=WAIT_S)
            refused(delivering, certificate)


def refused(call: Any, certificate: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        next(call)
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED, caught.value.details()
    assert certificate in str(caught.value.details())


def test_the_last_one_without_their_leader_the_others_go_on_over_tls(hosts: Hosts) -> None:
    """Kills a scheduler that the other tests need: it comes last."""
    options = [p for key, path in hosts.files("anna").items() for p in (f"--{key}", path)]
    status = ("raft", "status", "-o", "json", "--scheduler", hosts.grpc["scheduler-0"])
    rows = json.loads(run_cli(*status, *options).stdout)
    (leader,) = [row["name"] for row in rows if row["role"] == "leader"]
    assert {row["leader"] for row in rows} == {leader}
    hosts.processes[leader].kill()
    hosts.processes[leader].wait()
    body = {"prompt": "The quick brown fox " * 20, "max_tokens": 20, "temperature": 0.0}
    texts = set()
    for name in SCHEDULERS:
        if name != leader:
            with hosts.client(name) as client:
                response = client.post("/v1/completions", json=body)
                assert response.status_code == 200, response.text
                texts.add(response.json()["choices"][0]["text"])
    assert len(texts) == 1
