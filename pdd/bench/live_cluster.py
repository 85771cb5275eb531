"""One prefill and one decode engine with a real model, as ``pdd up`` starts them, for a while.

The decode node's pool is smaller than all prompts of the measurement together, the prefill node's
is larger: asked for in turn, every prompt is held by the prefill node and gone from the decode
node, so that each request moves its blocks.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from pdd.bench.cluster import ClusterPlan, RunningCluster, with_cluster
from pdd.config.sources import Flag
from pdd.core.identity import Role
from pdd.daemon.supervisor_layout import SchedulerPorts, UpOptions, plan_cluster
from pdd.daemon.supervisor_plan import DaemonPlan
from pdd.model.resolve import resolve_model
from pdd.replication.local_group import free_ports

T = TypeVar("T")

PREFILL_POOL_BYTES = 1 << 30
DECODE_POOL_BYTES = 384 << 20
STATUS_INTERVAL_S = 0.1
"""Counters are read between two transfers."""

_SETTINGS = {
    "engine.max_model_len": "4096",
    "node.status_interval_s": str(STATUS_INTERVAL_S),
}


def with_live_pair(
    work: Callable[[str, Callable[[str], list[int]]], T],
    *,
    transport: str,
    model: str | None,
    start_timeout_s: float,
    report: Callable[[str], None],
    environment: Mapping[str, str],
) -> T:
    """Run ``work("host:port", encode)``; see ``cluster.with_cluster``.

    ``encode`` gives the token ids of a text.
    """
    from tokenizers import Tokenizer

    found = resolve_model(model)
    tokenizer = Tokenizer.from_file(str(found.path / "tokenizer.json"))

    def encode(text: str) -> list[int]:
        return list(tokenizer.encode(text).ids)

    def plan(state_dir: Path) -> ClusterPlan:
        http_port, grpc_port = free_ports(2)
        daemons = plan_pair(
            state_dir=state_dir,
            model_path=found.path,
            model_name=found.name,
            transport=transport,
            cores=sorted(os.sched_getaffinity(0)),
            ports=(http_port, grpc_port),
            environment=environment,
        )
        return ClusterPlan(daemons=daemons, model_name=found.name)

    def on_cluster(cluster: RunningCluster) -> T:
        return work(cluster.record.http.removeprefix("http://"), encode)

    return with_cluster(plan, on_cluster, start_timeout_s=start_timeout_s, report=report)


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
            schedulers=(SchedulerPorts(http=ports[0], grpc=ports[1], raft=0),),
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
