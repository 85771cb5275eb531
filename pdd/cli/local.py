"""Find the cluster that ``pdd up`` runs on this machine."""

from pathlib import Path

from pdd.core.errors import NodeUnavailable
from pdd.daemon.supervisor_nodes import list_nodes
from pdd.daemon.supervisor_state import ClusterRecord, read_record

PROBE_TIMEOUT_S = 1.0
"""In which one of several schedulers must say something to be the one that is asked."""


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


def scheduler_address(state_dir: Path) -> str:
    """Where to ask, host:port: the only scheduler, or the first of several that answers.

    Any of them says what the leader says. If none answers, the first: its error tells why. One
    that is being started again has no address yet, and is passed over.

    Raises:
        NodeUnavailable: see ``running_cluster``; or every scheduler is being started again.
    """
    record = running_cluster(state_dir)
    schedulers = [node for node in record.nodes if node.role == "scheduler"]
    addresses = [node.address for node in schedulers if node.address]
    if not addresses:
        names = ", ".join(node.name for node in schedulers)
        raise NodeUnavailable(
            f"no scheduler is up ({names}); each is started again: try later, see {state_dir}/log"
        )
    if len(schedulers) < 2:
        return addresses[0]
    for address in addresses:
        try:
            list_nodes(address, timeout_s=PROBE_TIMEOUT_S)
        except NodeUnavailable:
            continue
        return address
    return addresses[0]


def http_urls(state_dir: Path) -> tuple[str, ...]:
    """Where clients may ask: all schedulers, the one that ``pdd up`` prints first.

    Raises:
        NodeUnavailable: see ``running_cluster``.
    """
    record = running_cluster(state_dir)
    others = (node.http for node in record.nodes if node.http and node.http != record.http)
    return (record.http, *others)
