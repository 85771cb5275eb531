"""Two ``bytes_node`` processes with scattered block ids, which move the same blocks repeatedly."""

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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

    def event(self, key: str | None = None) -> dict[str, Any]:
        """Wait for a terminal event: the next, or that of ``key``, and keep the others."""
        others: list[dict[str, Any]] = []
        while True:
            event = self._read("event")
            if key is None or event["key"] == key:
                self._kept.extend(others)
                return event
            others.append(event)

    def has_event(self, key: str) -> bool:
        """Whether that of ``key`` is among those that are kept."""
        return any(answer.get("key") == key for answer in self._kept)

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

    def cancels(self) -> list[float]:
        """While all blocks are moving, open and cancel other transfers from the same source.

        Returns for each the seconds from the cancel to its terminal event.
        """
        key = f"bench-{self._runs}"
        self._runs += 1
        spare = set(range(int(self.case.block_count * POOL_FACTOR) + 1)) - set(self.target_ids)
        times: list[float] = []
        self.source.do("source_open", key=key, deadline_s=DEADLINE_S)
        self._open(key, self.case.block_count)
        self.source.do(
            "source_append", key=key, first_index=0, block_ids=self.source_ids, last=True
        )
        while not self.target.has_event(key):
            other = f"{key}-cancel-{len(times)}"
            self.target.do(
                "target_open",
                key=other,
                source=self.source.peer,
                first_index=0,
                block_ids=[min(spare)],
                deadline_s=DEADLINE_S,
            )
            cancelled_s = self.target.do("target_cancel", key=other)["at_s"]
            times.append(float(self.target.event(other)["at_s"]) - float(cancelled_s))
        self.target.event(key)
        self.source.event(key)
        return times


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
