"""A real cluster on this machine, started as an operator would, and requests to it."""

import contextlib
import io
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from pdd.cli.main import main
from tests.waiting import wait_until

START_TIMEOUT_S = 300.0
"""Bound of a start on a busy two-core machine; an idle one takes 30 to 60 s."""

ANSWER_TIMEOUT_S = 240.0
"""Bound of one answer there: an engine that others keep from its core needs minutes at first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A daemon as ``pdd up -o json`` tells it."""

    name: str
    role: str
    pid: int
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A running cluster. Token ids and usage are what tests look at, text comes along."""

    http: str
    grpc: str
    state_dir: Path
    nodes: tuple[Node, ...]

    def node(self, role: str) -> Node:
        """The one node of a role."""
        (found,) = [node for node in self.nodes if node.role == role]
        return found

    def post(
        self, path: str, body: dict[str, Any], *, headers: dict[str, str] | None = None
    ) -> httpx.Response:
        """One request, whatever its status."""
        return httpx.post(
            f"{self.http}{path}", json=body, headers=headers, timeout=ANSWER_TIMEOUT_S
        )

    def complete(
        self, prompt: str | list[int], *, tenant: str | None = None, **fields: Any
    ) -> dict[str, Any]:
        """A completion that must succeed."""
        body = {"prompt": prompt, "return_token_ids": True, **fields}
        headers = None if tenant is None else {"x-pdd-tenant": tenant}
        response = self.post("/v1/completions", body, headers=headers)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    def node_list(self) -> list[dict[str, Any]]:
        """``pdd node list -o json``."""
        done = run_here("node", "list", "-o", "json", "--state-dir", str(self.state_dir))
        assert done.returncode == 0, done.stderr
        listed: list[dict[str, Any]] = json.loads(done.stdout)
        return listed

    def rows(self) -> dict[str, dict[str, Any]]:
        """``pdd node list`` by name; empty while no scheduler answers."""
        done = run_here("node", "list", "-o", "json", "--state-dir", str(self.state_dir))
        rows = json.loads(done.stdout) if done.returncode == 0 else []
        return {row["name"]: row for row in rows}

    def wait_until_ready(self) -> None:
        """Wait until every node is ready, as after its death or that of the scheduler."""
        wanted = {node.name: "ready" for node in self.nodes if node.role != "scheduler"}

        def states() -> dict[str, str]:
            return {name: row["state"] for name, row in self.rows().items()}

        wait_until(lambda: states() == wanted, lambda: f"{wanted}; there is {states()}")

    def node_gauges(self) -> dict[str, float]:
        """The nodes' gauges of ``/metrics`` by their text, labels included."""
        text = httpx.get(f"{self.http}/metrics", timeout=10.0).text
        names = ("pdd_node_", "pdd_kv_block")
        lines = [line for line in text.splitlines() if line.startswith(names)]
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}

    def wait_until_busy(self, *, within_s: float) -> None:
        """Wait until some node holds a block or a sequence."""
        wait_until(
            lambda: not is_idle(self.node_gauges()), "a node to show any work", within_s=within_s
        )

    def wait_until_idle(self, *, within_s: float) -> dict[str, float]:
        """Wait until no node holds a block or a sequence; the gauges of that moment."""

        def idle() -> dict[str, float] | None:
            gauges = self.node_gauges()
            return gauges if is_idle(gauges) else None

        gauges: dict[str, float] = wait_until(
            idle, lambda: f"blocks to be given back; {self.node_gauges()}", within_s=within_s
        )
        assert any(key.startswith("pdd_kv_block_states") for key in gauges), gauges
        return gauges


def is_idle(gauges: dict[str, float]) -> bool:
    """All usable blocks free (vLLM keeps one as its null block) by every count, none lost, and no
    sequence anywhere."""
    assert any('state="free"' in key for key in gauges), f"no node tells its blocks: {gauges}"
    for key, value in gauges.items():
        if key.startswith("pdd_node_sequences") and value != 0:
            return False
        if key.startswith("pdd_kv_blocks_unaccounted") and value != 0:
            return False
        held = ('state="active"', 'state="leased"', 'state="quarantined"')
        if key.startswith("pdd_kv_block_states") and any(s in key for s in held) and value != 0:
            return False
        if key.startswith("pdd_node_kv_blocks") and 'state="free"' in key:
            total = gauges[key.replace('state="free"', 'state="total"')]
            if value != total - 1:
                return False
    return True


def run_cli(*arguments: str, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
    """``pdd ARGUMENTS`` in this environment."""
    return subprocess.run(
        [sys.executable, "-m", "pdd.cli.main", *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def run_here(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The same in this process: soon enough to meet a stream that lasts a second, and cheap enough
    to ask again and again. It catches this process's output, so one thread at a time."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(arguments)
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


def start_cluster(state_dir: Path, *options: str) -> Cluster:
    """``pdd up --detach`` with ports of the system's choice."""
    done = run_cli(
        "up",
        "--detach",
        "-o",
        "json",
        "--http-port",
        "0",
        "--state-dir",
        str(state_dir),
        *options,
        timeout_s=START_TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr + logs(state_dir)
    told = json.loads(done.stdout)
    return Cluster(
        http=told["http"],
        grpc=told["grpc"],
        state_dir=state_dir,
        nodes=tuple(Node(**{k: node[k] for k in Node.__slots__}) for node in told["nodes"]),
    )


def stop_cluster(cluster: Cluster) -> None:
    """``pdd down``; the nodes must be gone afterwards."""
    done = run_cli("down", "--state-dir", str(cluster.state_dir))
    assert done.returncode == 0, done.stderr
    for node in cluster.nodes:
        assert not process_exists(node.pid), f"{node.name} outlived pdd down"


def process_exists(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def descendants(pid: int) -> set[int]:
    """Every process below ``pid``."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            children.setdefault(int(fields[1]), []).append(int(entry))
    found: set[int] = set()
    todo = [pid]
    while todo:
        for child in children.get(todo.pop(), []):
            found.add(child)
            todo.append(child)
    return found


def files_of(pids: set[int]) -> set[str]:
    """Shared memory and socket files that these processes have open or mapped."""
    inodes: set[str] = set()
    found: set[str] = set()
    for pid in pids:
        try:
            maps = Path(f"/proc/{pid}/maps").read_text()
            links = [os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir()]
        except (FileNotFoundError, ProcessLookupError):
            continue
        found |= {line.split()[-1] for line in maps.splitlines() if "/dev/shm/" in line}
        inodes |= {link[8:-1] for link in links if link.startswith("socket:[")}
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        fields = line.split()
        if len(fields) == 8 and fields[6] in inodes and fields[7].startswith("/"):
            found.add(fields[7])
    return {path for path in found if Path(path).exists()}


def logs(state_dir: Path) -> str:
    """The end of every daemon's log, for a failing test's report."""
    return "".join(
        f"\n--- {path.name}\n" + "\n".join(path.read_text().splitlines()[-20:])
        for path in sorted((state_dir / "log").glob("*.log"))
    )
