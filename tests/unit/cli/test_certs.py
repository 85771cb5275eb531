"""``pdd certs`` as an operator runs it, and commands that use what it made."""

import asyncio
import contextlib
import json
import ssl
import stat
from collections.abc import Iterator
from pathlib import Path

import grpc
import grpc.aio
import pytest

from pdd.cli.main import main
from pdd.control.cluster_server import ClusterServicer
from pdd.rpc.v1 import cluster_pb2, cluster_pb2_grpc
from pdd.tls.paths import TlsPaths
from pdd.tls.public import PublicTls
from pdd.tls.security import TlsSecurity
from tests.serving import in_background


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    """Run a command line in ``tmp_path``; return (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    for name in ("PDD_CA", "PDD_CERTIFICATE", "PDD_KEY"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(arguments)
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def cluster(run, tmp_path: Path) -> Path:
    """A folder with certificates for a scheduler and a client."""
    for arguments in (
        ("init", "--cluster", "prod"),
        ("issue", "scheduler-0", "--role", "scheduler", "--host", "127.0.0.1"),
        ("issue", "anna", "--role", "client"),
    ):
        assert run("certs", *arguments)[0] == 0
    return tmp_path / "certs"


def test_an_authority_and_what_it_issues_are_shown_as_they_were_asked_for(run, cluster) -> None:
    code, out, _ = run("certs", "show", "certs/scheduler-0.crt")
    assert code == 0
    assert "pdd://prod/scheduler/scheduler-0" in out
    assert "127.0.0.1" in out
    code, out, _ = run("certs", "show", "certs/anna.crt", "-o", "json")
    shown = json.loads(out)
    assert (shown["cluster"], shown["role"], shown["name"]) == ("prod", "client", "anna")
    assert (shown["hosts"], shown["fault"], shown["is_authority"]) == ([], None, False)
    assert 363 <= shown["days_left"] <= 365
    code, out, _ = run("certs", "show", "certs/ca.crt")
    assert "authority of cluster 'prod'" in out
    assert stat.S_IMODE((cluster / "ca.key").stat().st_mode) == 0o600


def test_paths_are_the_result_and_a_second_time_changes_nothing(run, tmp_path) -> None:
    assert run("certs", "init")[:2] == (0, "certs/ca.crt\ncerts/ca.key\n")
    before = (tmp_path / "certs" / "ca.key").read_bytes()
    code, out, err = run("certs", "init")
    assert (code, out) == (2, "")
    assert "--force" in err
    assert (tmp_path / "certs" / "ca.key").read_bytes() == before
    assert run("certs", "init", "--force")[0] == 0
    assert (tmp_path / "certs" / "ca.key").read_bytes() != before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["issue", "d", "--role", "decode"], ["--host"]),
        (["issue", "ca", "--role", "client"], ["'ca'"]),
        (["issue", "d", "--role", "king"], ["--role"]),
        (["issue", "d", "--role", "client", "--days", "0"], ["--days"]),
        (["issue", "d", "--role", "client", "--dir", "no"], ["no/ca.crt", "pdd certs init"]),
        (["issue", "D", "--role", "client"], ["pdd://CLUSTER/ROLE/NAME"]),
        (["init", "--cluster", "A B"], ["--cluster is 'A B'"]),
        (["show", "certs/anna.key"], ["anna.key", "no certificate"]),
        (["show", "certs/none.crt"], ["none.crt", "No such file"]),
    ],
)
def test_wrong_usage_is_told_by_name(run, cluster, arguments, words) -> None:
    code, out, err = run("certs", *arguments)
    assert (code, out) == (2, "")
    for word in words:
        assert word in err


class Nodes:
    stale_reason = ""

    def list_nodes(self) -> list[cluster_pb2.NodeInfo]:
        return [cluster_pb2.NodeInfo(role="decode", state="ready")]


def paths(cluster: Path, name: str, *, is_member: bool = True) -> TlsPaths:
    return TlsPaths(
        ca=cluster / "ca.crt" if is_member else None,
        certificate=cluster / f"{name}.crt",
        key=cluster / f"{name}.key",
        is_own_authority=is_member,
    )


@pytest.fixture
def scheduler(cluster: Path) -> Iterator[str]:
    """The address of a Cluster service with mutual TLS."""
    security = TlsSecurity(paths(cluster, "scheduler-0"))

    @contextlib.asynccontextmanager
    async def serve():
        server = grpc.aio.server()
        cluster_pb2_grpc.add_ClusterServicer_to_server(
            ClusterServicer(Nodes(), security=security), server
        )
        port = security.bind(server, "127.0.0.1:0")
        await server.start()
        yield f"127.0.0.1:{port}"
        await server.stop(grace=None)

    with in_background(serve) as address:
        yield address


_JSON = "application/json"
FILES = ("--ca", "certs/ca.crt", "--certificate", "certs/anna.crt", "--key", "certs/anna.key")


def test_node_list_shows_its_certificate(run, scheduler) -> None:
    code, out, err = run("node", "list", "--scheduler", scheduler, "-o", "json", *FILES)
    assert (code, err) == (0, "")
    assert [row["state"] for row in json.loads(out)] == ["ready"]


def test_the_certificate_may_come_from_the_environment(run, scheduler, monkeypatch) -> None:
    for option, file in zip(FILES[::2], FILES[1::2], strict=True):
        monkeypatch.setenv(f"PDD_{option[2:].upper()}", file)
    code, out, _ = run("node", "list", "--scheduler", scheduler, "-o", "json")
    assert code == 0
    assert len(json.loads(out)) == 1


def test_node_list_without_a_certificate_gets_nothing(run, scheduler) -> None:
    code, out, err = run("node", "list", "--scheduler", scheduler)
    assert (code, out) == (1, "")
    assert "UNAVAILABLE" in err


def test_node_list_does_not_dial_beyond_loopback_without_a_certificate(run) -> None:
    code, _, err = run("node", "list", "--scheduler", "10.255.255.1:7070")
    assert code == 2
    assert "--certificate" in err
    code, _, err = run("node", "list", "--scheduler", "127.0.0.1:1", "--ca", "ca.crt")
    assert code == 2
    assert "belong together" in err


def test_doctor_asks_with_the_certificate(run, scheduler) -> None:
    _, out, _ = run("doctor", "--scheduler", scheduler, "-o", "json", *FILES)
    found = [check for check in json.loads(out)["checks"] if check["name"] != "config"]
    assert not [c for c in found if c["name"] == "cluster" and c["level"] == "fault"], found


@pytest.fixture
def https(cluster: Path) -> Iterator[str]:
    """The URL of a server that answers every chat with Hello."""
    context = PublicTls(paths(cluster, "scheduler-0", is_member=False)).http_context()
    with serving_https(context) as url:
        yield url


@contextlib.contextmanager
def serving_https(context: ssl.SSLContext) -> Iterator[str]:
    events = 'data: {"choices": [{"delta": {"content": "Hello"}}]}\n\ndata: [DONE]\n\n'
    models = '{"data": [{"id": "smol"}]}'

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                lines = dict(line.split(": ", 1) for line in head.splitlines()[1:] if line)
                await reader.readexactly(int(lines.get("content-length", "0")))
                is_chat = "/chat/" in head.splitlines()[0]
                kind, text = ("text/event-stream", events) if is_chat else (_JSON, models)
                writer.write(f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\n".encode())
                writer.write(f"Content-Length: {len(text)}\r\n\r\n{text}".encode())
                await writer.drain()
        writer.transport.abort()

    @contextlib.asynccontextmanager
    async def serve():
        server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
        yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        server.close()

    with in_background(serve) as url:
        yield url


def test_chat_speaks_https_with_an_authority_that_is_named(run, https) -> None:
    code, out, err = run("chat", "hi", "--url", https, "--ca", "certs/ca.crt")
    assert (code, out) == (0, "Hello\n"), err


def test_chat_names_the_way_out_when_the_authority_is_unknown(run, https) -> None:
    code, out, err = run("chat", "hi", "--url", https)
    assert (code, out) == (1, "")
    assert "--ca" in err


def test_chat_refuses_files_that_are_none(run, https) -> None:
    code, _, err = run("chat", "hi", "--url", https, "--ca", "certs/none.crt")
    assert code == 2
    assert "certs/none.crt" in err
    code, _, err = run("chat", "hi", "--url", https, "--certificate", "certs/anna.crt")
    assert code == 2
    assert "belong together" in err


def test_https_takes_a_renewed_certificate_at_the_next_handshake(run, cluster) -> None:
    assert run(
        *("certs", "issue", "scheduler-0", "--role", "scheduler", "--host", "h", "--force")
    )[0] == 0  # fmt: skip
    context = PublicTls(paths(cluster, "scheduler-0", is_member=False)).http_context()
    with serving_https(context) as url:
        code, _, err = run("chat", "hi", "--url", url, "--ca", "certs/ca.crt")
        assert code == 1
        assert "not trusted" in err
        issued = run(
            *("certs", "issue", "scheduler-0", "--role", "scheduler", "--host", "127.0.0.1"),
            "--force",
        )
        assert issued[0] == 0
        code, out, err = run("chat", "hi", "--url", url, "--ca", "certs/ca.crt")
        assert code == 0, err
        assert out.endswith("Hello\n")  # what is before it is the server's log


def test_https_with_a_clients_authority_wants_a_certificate(run, cluster) -> None:
    context = PublicTls(
        TlsPaths(
            ca=cluster / "ca.crt",
            certificate=cluster / "scheduler-0.crt",
            key=cluster / "scheduler-0.key",
            is_own_authority=False,
        )
    ).http_context()
    with serving_https(context) as url:
        assert run("chat", "hi", "--url", url, *FILES)[:2] == (0, "Hello\n")
        assert run("chat", "hi", "--url", url, "--ca", "certs/ca.crt")[0] == 1
