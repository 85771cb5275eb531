"""What nodes report of their connections, as metrics by node, peer and transport.

Labels are bounded: the scheduler keeps only links between its members, and a transport is one of
UCX's names or shared_memory.
"""

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from pdd.rpc.v1 import cluster_pb2

_LABELS = ("node", "peer", "transport")


def link_metrics(nodes: Iterable[cluster_pb2.NodeInfo]) -> Iterator[Metric]:
    """Families over the links of these nodes; nothing while there are none."""
    connected = GaugeMetricFamily(
        "pdd_transfer_peer_connected",
        "1 while a node has a connection to a peer, 0 while it has none or refuses the peer",
        labels=_LABELS,
    )
    speed = GaugeMetricFamily(
        "pdd_transfer_peer_bandwidth_bytes_per_second",
        "Speed of the latest blocks from a peer, while they were on their way; none yet: 0",
        labels=_LABELS,
    )
    received = CounterMetricFamily(
        "pdd_transfer_peer_received_bytes",
        "KV bytes that a node has received from a peer",
        labels=_LABELS,
    )
    for node in nodes:
        for link in node.links:
            labels = [node.identity.name, link.peer, link.transport or "none"]
            connected.add_metric(labels, float(bool(link.transport)))
            speed.add_metric(labels, link.bytes_per_s)
            received.add_metric(labels, float(link.received_bytes))
    if connected.samples:
        yield from (connected, speed, received)
