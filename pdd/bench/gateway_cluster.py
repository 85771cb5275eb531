"""What daemons the gateway's measurement runs on: synthetic engines with a rhythm of their own."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from pdd.bench.cluster import ClusterPlan, RunningCluster, with_cluster
from pdd.bench.cores import CorePlan, kept_to, move_tree, plan_cores
from pdd.config.sources import Flag
from pdd.daemon.supervisor_layout import SchedulerPorts, UpOptions, plan_cluster
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
    cores: CorePlan | None = None,
) -> T:
    """See ``cluster.with_cluster``.

    Args:
        cores: nodes, and whatever ``work`` starts, keep to ``others``; None: all use all.
    """
    cores = cores or plan_cores(tuple(os.sched_getaffinity(0)), divide=False)

    def plan(state_dir: Path) -> ClusterPlan:
        model_path, model_name = resolve_synthetic_model(None, state_dir=state_dir)
        http_port, grpc_port = free_ports(2)
        options = UpOptions(
            state_dir=state_dir,
            engine="synthetic",
            prefill_count=prefill_count,
            decode_count=decode_count,
            threads_per_node=1,
            schedulers=(SchedulerPorts(http=http_port, grpc=grpc_port, raft=0),),
            model_path=model_path,
            model_name=model_name,
            flags=tuple(
                Flag(name=name, text=text, spelling="pdd bench gateway")
                for name, text in settings.items()
            ),
        )
        daemons = plan_cluster(options, cores=cores.others, gpus=(), environment=environment)
        return ClusterPlan(daemons=daemons, model_name=model_name)

    def with_divided_cores(cluster: RunningCluster) -> T:
        move_tree(cluster.scheduler_pid, cores.scheduler)
        return work(cluster)

    with kept_to(cores.others):
        return with_cluster(
            plan, with_divided_cores, start_timeout_s=_START_TIMEOUT_S, report=report
        )
