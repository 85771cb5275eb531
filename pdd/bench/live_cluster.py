"""One prefill and one decode engine with a real model, as ``pdd up`` starts them, for a while.

The decode node's pool is smaller than all prompts of the measurement together, the prefill node's
is larger: asked for in turn, every prompt is held by the prefill node and gone from the decode
node, so that each request moves its blocks.
"""

import asyncio
import os
import socket
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from pdd.config.sources import Flag
from pdd.core.errors import PddError
from pdd.core.identity import Role
from pdd.daemon.supervisor import Supervisor
from pdd.daemon.supervisor_layout import UpOptions, plan_cluster
from pdd.daemon.supervisor_plan import DaemonPlan
from pdd.daemon.supervisor_state import ClusterRecord, StateDir
from pdd.model.resolve import resolve_model

T = TypeVar("T")

PREFILL_POOL_BYTES = 1 << 30
DECODE_POOL_BYTES = 384 << 20
STATUS_INTERVAL_S = 0.1
"""Counters are read between two transfers."""

_SETTINGS = {
    "engine.max_model_len": "4096",
    "node.status_interval_s": str(STATUS_INTERVAL_S),
}


def with_cluster(
    work: Callable[[str, Callable[[str], list[int]]], T],
    *,
    transport: str,
    model: str | None,
    start_timeout_s: float,
    report: Callable[[str], None],
    environment: Mapping[str, str],
) -> T:
    """Start the pair, run ``work("host:port", encode)`` in a thread, stop the pair.

    ``encode`` gives the token ids of a text.

    Call it in the main thread: Ctrl-C stops the cluster, and with it the work.

    Raises:
        PddError: the cluster did not start or ended early; nothing of it is left.
    """
    from tokenizers import Tokenizer

    found = resolve_model(model)
    tokenizer = Tokenizer.from_file(str(found.path / "tokenizer.json"))

    def encode(text: str) -> list[int]:
        return list(tokenizer.encode(text).ids)

    with tempfile.TemporaryDirectory(prefix="pdd-bench-live-") as folder:
        state_dir = StateDir.lock(Path(folder))
        try:
            plans = plan_pair(
                state_dir=state_dir.path,
                model_path=found.path,
                model_name=found.name,
                transport=transport,
                cores=sorted(os.sched_getaffinity(0)),
                ports=_free_ports(),
                environment=environment,
            )
            return asyncio.run(
                _run(
                    state_dir,
                    plans,
                    found.name,
                    lambda address: work(address, encode),
                    start_timeout_s,
                    report,
                )
            )
        finally:
            state_dir.close()


def plan_pair(
    *,
    state_dir: Path,
    model_path: Path,
    model_name: str,
    transport: str,
    cores: list[int],
    ports: tuple[int, int],
    environment: Mapping[str, str],
) -> tuple[DaemonPlan, ...]:
    """Scheduler, prefill node and decode node. ``ports``: HTTP, gRPC.

    Raises:
        ConfigError: the environment overrides what ``pdd up`` sets itself.
    """

    def plans(pool_bytes: int) -> tuple[DaemonPlan, ...]:
        settings = {
            **_SETTINGS,
            "transfer.transport": transport,
            "engine.kv_cache_bytes": str(pool_bytes),
        }
        options = UpOptions(
            state_dir=state_dir,
            prefill_count=1,
            decode_count=1,
            threads_per_node=1,
            http_port=ports[0],
            grpc_port=ports[1],
            model_path=model_path,
            model_name=model_name,
            flags=tuple(
                Flag(name=name, text=text, spelling="bench transfer --live")
                for name, text in settings.items()
            ),
        )
        return plan_cluster(options, cores=cores, gpus=(), environment=environment)

    large, small = plans(PREFILL_POOL_BYTES), plans(DECODE_POOL_BYTES)
    return tuple(
        cut if cut.role is Role.DECODE else whole for whole, cut in zip(large, small, strict=True)
    )


async def _run(
    state_dir: StateDir,
    plans: tuple[DaemonPlan, ...],
    model_name: str,
    work: Callable[[str], T],
    start_timeout_s: float,
    report: Callable[[str], None],
) -> T:
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def on_ready(record: ClusterRecord) -> None:
        ready.set_result(record.http.removeprefix("http://"))

    supervisor = Supervisor(
        state_dir=state_dir,
        plans=plans,
        model=model_name,
        report=report,
        on_ready=on_ready,
        start_timeout_s=start_timeout_s,
    )
    running = asyncio.ensure_future(supervisor.run())
    try:
        await asyncio.wait((running, ready), return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            await running  # raises why it did not start
            raise PddError("the cluster was stopped before it was ready")
        return await asyncio.to_thread(work, ready.result())
    finally:
        if not running.done():
            supervisor.request_stop("measured")
        await running


def _free_ports() -> tuple[int, int]:
    """Free on loopback now. Both are held until both are known, so that they differ."""
    with socket.socket() as http, socket.socket() as grpc:
        for probe in (http, grpc):
            probe.bind(("127.0.0.1", 0))
        return int(http.getsockname()[1]), int(grpc.getsockname()[1])
