"""Measures transfers between two processes on this machine: what ``pdd bench transfer`` runs.

Two ``bytes_node`` processes, scattered block ids on both sides. The clock is the target's, from
``target_open`` (so the grant's way to the source is in it) to the last verified block. Beside each
case, in the same minute: one thread copying the same blocks, and UCX's own ``ucx_perftest`` with
one hot buffer as the ceiling.
"""

import importlib.util
import json
import os
import random
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pdd.core.errors import KVTransferError
from pdd.transfer.environment import ucx_environment

DEADLINE_S = 120.0
POOL_FACTOR = 1.25  # pool blocks per moved block, so that ids are scattered


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """``block_count`` blocks of ``layer_count`` segments; one layer is a block-major pool."""

    name: str
    block_count: int
    layer_count: int
    segment_bytes: int

    @property
    def layout(self) -> str:
        """``block`` or ``layer``."""
        return "block" if self.layer_count == 1 else "layer"

    @property
    def size_bytes(self) -> int:
        """Bytes moved."""
        return self.block_count * self.layer_count * self.segment_bytes


CASES = (
    Case(name="a", block_count=128, layer_count=1, segment_bytes=5_242_880),
    Case(name="b", block_count=128, layer_count=1, segment_bytes=1_310_720),
    Case(name="d", block_count=128, layer_count=160, segment_bytes=32_768),
    Case(name="e", block_count=128, layer_count=30, segment_bytes=98_304),
)
"""a: Llama-3-70B, 2k tokens, all layers in a block; b: one of four ranks of it; d: a, layer-major;
e: what CPU vLLM has for SmolLM2-135M."""


class Node:
    """A ``bytes_node`` process."""

    def __init__(
        self, *, folder: str, name: str, case: Case, settings: dict[str, Any], transport: str
    ) -> None:
        config = {
            "name": name,
            "uuid": f"{name}-uuid",
            "boot_epoch": 1,
            "control_folder": folder,
            "block_count": int(case.block_count * POOL_FACTOR) + 1,
            "layer_count": case.layer_count,
            "segment_bytes": case.segment_bytes,
            "settings": settings,
        }
        self._process = subprocess.Popen(  # noqa: S603 - our own module, our own arguments
            [sys.executable, "-m", "pdd.transfer.bytes_node", json.dumps(config)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **ucx_environment(transport=transport, devices="lo")},
        )
        self._kept: list[dict[str, Any]] = []
        self.peer: dict[str, Any] = self._read("ready")["peer"]

    def _read(self, kind: str) -> dict[str, Any]:
        for answer in self._kept:
            if kind in answer:
                self._kept.remove(answer)
                return answer
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answer = json.loads(line)
            if kind in answer:
                return dict(answer)
            self._kept.append(answer)
        raise KVTransferError(f"the benchmark's node ended with code {self._process.wait()}")

    def do(self, name: str, **arguments: Any) -> dict[str, Any]:
        """Run a command of ``bytes_node``."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": name, **arguments}) + "\n")
        self._process.stdin.flush()
        return self._read("done")

    def event(self) -> dict[str, Any]:
        """Wait for a terminal event."""
        return self._read("event")

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


class Pair:
    """A source and a target with scattered ids; moves the case's blocks again and again."""

    def __init__(self, *, source: Node, target: Node, case: Case) -> None:
        self.source, self.target, self.case = source, target, case
        pool_blocks = int(case.block_count * POOL_FACTOR) + 1
        order = random.Random(7)  # noqa: S311 - the same scattered ids in every run
        self.source_ids = order.sample(range(pool_blocks), case.block_count)
        self.target_ids = order.sample(range(pool_blocks), case.block_count)
        self._runs = 0
        source.do("fill", seed=1)
        target.do("fill", seed=None)
        target.do("connect", peer=source.peer)
        source.do("connect", peer=target.peer)

    def move(self, *, cuts: list[int], pause_s: float = 0.0, block_count: int = 0) -> float:
        """Move the first ``block_count`` blocks (0: all), appended up to each of ``cuts``.

        Returns seconds from the last append (or the opening, if later) to the verified end.
        """
        count = block_count or self.case.block_count
        key = f"bench-{self._runs}"
        self._runs += 1
        self.source.do("source_open", key=key, deadline_s=DEADLINE_S)
        start, appended_s = 0, 0.0
        waiting = [*cuts, count]
        if pause_s:
            appended_s = self._open(key, count)
        for end in waiting:
            answer = self.source.do(
                "source_append",
                key=key,
                first_index=start,
                block_ids=self.source_ids[start:end],
                last=end == count,
            )
            start, appended_s = end, answer["at_s"]
            if end != count:
                time.sleep(pause_s)
        if not pause_s:
            appended_s = self._open(key, count)
        completed = self.target.event()
        if completed["event"] != "TargetCompleted":
            raise KVTransferError(f"a transfer of the benchmark failed: {completed}")
        self.source.event()
        return float(completed["duration_s"] if not pause_s else completed["at_s"] - appended_s)

    def _open(self, key: str, count: int) -> float:
        answer = self.target.do(
            "target_open",
            key=key,
            source=self.source.peer,
            first_index=0,
            block_ids=self.target_ids[:count],
            deadline_s=DEADLINE_S,
        )
        return float(answer["at_s"])

    def checksums_ok(self) -> bool:
        """Whether the target's blocks now hold the source's bytes."""
        sent = self.source.do("digests", block_ids=self.source_ids)
        return bool(
            self.target.do("digests", block_ids=self.target_ids)["digests"] == sent["digests"]
        )

    def cpu_s(self) -> float:
        """CPU seconds of both processes so far."""
        return float(self.source.do("usage")["cpu_s"]) + float(self.target.do("usage")["cpu_s"])


@contextmanager
def pair(*, case: Case, settings: dict[str, Any], transport: str) -> Iterator[Pair]:
    """Two fresh processes with pools for ``case``."""
    nodes: list[Node] = []
    settings = {**settings, "shared_memory": transport == "shm"}
    with tempfile.TemporaryDirectory(prefix="pdd-bench-") as folder:
        try:
            for name in ("source", "target"):
                node = Node(
                    folder=folder,
                    name=name,
                    case=case,
                    settings=settings,
                    transport="tcp" if transport == "shm" else transport,
                )
                nodes.append(node)
            yield Pair(source=nodes[0], target=nodes[1], case=case)
        finally:
            for node in nodes:
                node.close()


def measure(
    case: Case,
    *,
    transport: str = "auto",
    digest: bool = True,
    repetitions: int = 5,
    chunk_count: int = 1,
    perftest_gb_per_s: float | None = None,
) -> dict[str, Any]:
    """One row of the result: the median and the spread over ``repetitions`` after a warm-up."""
    step = -(-case.block_count // chunk_count)
    cuts = list(range(step, case.block_count, step))
    with pair(case=case, settings={"digest": digest}, transport=transport) as moved:
        moved.move(cuts=cuts)
        before_s = moved.cpu_s()
        times = [moved.move(cuts=cuts) for _ in range(repetitions)]
        cpu_s = moved.cpu_s() - before_s
        checksums_ok = moved.checksums_ok()
        copied = moved.source.do("memcpy", block_ids=moved.source_ids)["gb_per_s"]
    gb = case.size_bytes / 1e9
    return {
        "case": case.name,
        "layout": case.layout,
        "transport": transport,
        "digest": digest,
        "gb_per_s": round(gb / statistics.median(times), 3),
        "gb_per_s_min": round(gb / max(times), 3),
        "gb_per_s_max": round(gb / min(times), 3),
        "cpu_s_per_gb": round(cpu_s / repetitions / gb, 3),
        "checksums_ok": checksums_ok,
        "memcpy_gb_per_s": round(copied, 3),
        "perftest_gb_per_s": perftest_gb_per_s,
    }


def measure_exposed(
    case: Case, *, transport: str, prompt_tokens: int, block_tokens: int, chunk_tokens: int = 512
) -> dict[str, Any]:
    """How much of a transfer is left after the last prefill chunk, for a prompt in chunks.

    ``case`` has the blocks of the longest prompt. Chunks are appended twice as slowly as one is
    transferred alone, as an engine would that is slower than its network.
    """
    count = prompt_tokens // block_tokens
    step = max(1, chunk_tokens // block_tokens)
    cuts = list(range(step, count, step))
    with pair(case=case, settings={}, transport=transport) as moved:
        moved.move(cuts=[], block_count=count)
        alone = statistics.median(moved.move(cuts=[], block_count=step) for _ in range(5))
        whole = statistics.median(moved.move(cuts=[], block_count=count) for _ in range(3))
        exposed = statistics.median(
            moved.move(cuts=cuts, pause_s=2 * alone, block_count=count) for _ in range(5)
        )
    return {
        "prompt_tokens": prompt_tokens,
        "chunk_tokens": chunk_tokens,
        "transport": transport,
        "exposed_ms": round(exposed * 1e3, 2),
        "last_chunk_ms": round(alone * 1e3, 2),
        "whole_ms": round(whole * 1e3, 2),
    }


def perftest() -> float | None:
    """GB/s of ``ucx_perftest`` (tag, 5 MiB, error handling, large segments); None without it."""
    found = importlib.util.find_spec("libucx")
    folders = list(found.submodule_search_locations or []) if found else []
    binary = next(
        (p for p in (Path(f) / "bin" / "ucx_perftest" for f in folders) if p.exists()), None
    )
    if binary is None:
        return None
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    environment = {
        **os.environ,
        **ucx_environment(transport="tcp", devices="lo"),
        "LD_LIBRARY_PATH": str(binary.parent.parent / "lib"),
    }
    environment.pop("UCX_LOG_FILE")
    server = subprocess.Popen(  # noqa: S603 - the binary of the installed UCX
        [binary, "-p", port], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        time.sleep(0.5)
        arguments = ["127.0.0.1", "-p", port, "-t", "tag_bw", "-s", "5242880", "-n", "200", "-e"]
        done = subprocess.run(  # noqa: S603 - as above
            [binary, *arguments, "-f"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None
    finally:
        server.kill()
        server.wait()
    return parse_perftest(done.stdout)


def parse_perftest(output: str) -> float | None:
    """GB/s from the last line of figures of ``ucx_perftest``: average bandwidth in MiB/s."""
    lines = [line for line in output.splitlines() if re.match(r"^\s*(Final:)?\s*\d+\s", line)]
    if not lines:
        return None
    # ... iterations, three latencies, average and overall bandwidth (MiB/s), two message rates
    columns = lines[-1].split()
    return round(float(columns[-4]) * (1 << 20) / 1e9, 3) if len(columns) >= 8 else None
