"""What nodes report of their KV blocks, as metrics: five states that leave none out."""

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from pdd.core.blocks import BlockState
from pdd.rpc.v1 import cluster_pb2


def block_metrics(nodes: Iterable[cluster_pb2.NodeInfo]) -> Iterator[Metric]:
    """Families over the nodes that have counted theirs; nothing while none has."""
    states = GaugeMetricFamily(
        "pdd_kv_block_states",
        "KV blocks of a node in each of five disjoint states, each counted by itself",
        labels=["node", "state"],
    )
    faults = GaugeMetricFamily(
        "pdd_kv_blocks_unaccounted",
        "KV blocks of a node that are in no state (lost: a leak) or in two (doubled)",
        labels=["node", "fault"],
    )
    checks = CounterMetricFamily(
        "pdd_kv_block_checks", "How often a node counted its KV blocks", labels=["node"]
    )
    for node in nodes:
        if not node.HasField("blocks"):
            continue
        name, blocks = node.identity.name, node.blocks
        for state in BlockState:
            states.add_metric([name, state.value], getattr(blocks, f"{state.value}_count"))
        faults.add_metric([name, "lost"], blocks.lost_count)
        faults.add_metric([name, "doubled"], blocks.doubled_count)
        checks.add_metric([name], blocks.check_count)
    if states.samples:
        yield from (states, faults, checks)
