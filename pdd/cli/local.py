"""Find the cluster that ``pdd up`` runs on this machine."""

from pathlib import Path

from pdd.core.errors import NodeUnavailable
from pdd.daemon.supervisor_state import ClusterRecord, read_record


def running_cluster(state_dir: Path) -> ClusterRecord:
    """The record of a ready cluster.

    Raises:
        NodeUnavailable: none runs there, or it is not ready yet.
    """
    record = read_record(state_dir)
    if record is None:
        raise NodeUnavailable(
            f"no cluster runs in {state_dir}; start one with 'pdd up', or name it with --state-dir"
        )
    if record.state != "ready":
        raise NodeUnavailable(f"the cluster in {state_dir} is {record.state}; try again later")
    return record
