"""What daemons the gateway's measurement runs on: synthetic engines with a rhythm of their own."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from pdd.bench.cluster import ClusterPlan, RunningCluster, with_cluster
from pdd.config.sources import Flag
from pdd.daemon.supervisor_layout import UpOptions, plan_cluster
from pdd.engine.synthetic.model import resolve_synthetic_model
from pdd.replication.local_group import free_ports

T = TypeVar("T")
_START_TIMEOUT_S = 120.0


def with_synthetic_cluster(
    work: Callable[[RunningCluster], T],
    *,
    prefill_count: int,
    decode_count: int,
    settings: Mapping[str, str],
    report: Callable[[str], None],
    environment: Mapping[str, str],
) -> T:
    """See ``cluster.with_cluster``."""

    def plan(state_dir: Path) -> ClusterPlan:
        model_path, model_name = resolve_synthetic_model(None, state_dir=state_dir)
        http_port, grpc_port = free_ports(2)
        options = UpOptions(
            state_dir=state_dir,
            engine="synthetic",
            prefill_count=prefill_count,
            decode_count=decode_count,
            threads_per_node=1,
            http_port=http_port,
            grpc_port=grpc_port,
            model_path=model_path,
            model_name=model_name,
            flags=tuple(
                Flag(name=name, text=text, spelling="pdd bench gateway")
                for name, text in settings.items()
            ),
        )
        cores = sorted(os.sched_getaffinity(0))
        daemons = plan_cluster(options, cores=cores, gpus=(), environment=environment)
        return ClusterPlan(daemons=daemons, model_name=model_name)

    return with_cluster(plan, work, start_timeout_s=_START_TIMEOUT_S, report=report)
