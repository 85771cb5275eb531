"""Metrics about nodes and queue, read from the scheduler core when somebody scrapes."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pdd.daemon.block_metrics import block_metrics
from pdd.daemon.directory_feed import DirectoryFeed
from pdd.daemon.link_metrics import link_metrics
from pdd.daemon.role_metrics import role_metrics
from pdd.daemon.scheduler_driver import SchedulerDriver
from pdd.daemon.transfer_metrics import transfer_metrics
from pdd.scheduler.state import Counts


class ClusterMetrics(Collector):
    """Gauges by node and state. Labels are bounded: the scheduler forgets lost nodes in time."""

    def __init__(self, driver: SchedulerDriver, *, registry: CollectorRegistry) -> None:
        self._driver = driver
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Called by prometheus_client at each scrape."""
        up = GaugeMetricFamily(
            "pdd_node_up", "1 while a node takes work", labels=["node", "role", "state"]
        )
        blocks = GaugeMetricFamily(
            "pdd_node_kv_blocks", "KV blocks of a node", labels=["node", "state"]
        )
        sequences = GaugeMetricFamily(
            "pdd_node_sequences", "Sequences of a node", labels=["node", "state"]
        )
        degraded = GaugeMetricFamily(
            "pdd_node_degraded", "1 while a node is slower than it should be", labels=["node"]
        )
        nodes = self._driver.list_nodes()
        for node in nodes:
            name = node.identity.name
            up.add_metric([name, node.role, node.state], float(node.state in ("ready", "degraded")))
            degraded.add_metric([name], float(node.state == "degraded"))
            blocks.add_metric([name, "total"], node.block_count)
            blocks.add_metric([name, "free"], node.free_block_count)
            sequences.add_metric([name, "running"], node.running_sequence_count)
            sequences.add_metric([name, "waiting"], node.waiting_sequence_count)
        queued = GaugeMetricFamily("pdd_scheduler_queued_requests", "Requests that wait for room")
        queued.add_metric([], self._driver.queued_request_count)
        yield from (up, degraded, blocks, sequences, queued)
        yield from decision_metrics(self._driver.decision_counts)
        yield from block_metrics(nodes)
        yield from role_metrics(self._driver.role_operator)
        yield from link_metrics(nodes)
        yield from transfer_metrics(self._driver.transfer_counters())
        yield from directory_metrics(self._driver.directory)


def decision_metrics(counts: Counts) -> Iterator[Metric]:
    """What was decided since the start."""
    rejected = CounterMetricFamily(
        "pdd_scheduler_rejected_requests",
        "Requests answered 429: the queue was full, their tenant above a quota, or their deadline "
        "was predicted to pass",
        labels=["reason"],
    )
    rejected.add_metric(["full"], counts.rejected_full)
    rejected.add_metric(["quota"], counts.rejected_quota)
    rejected.add_metric(["token_quota"], counts.rejected_token_quota)
    rejected.add_metric(["deadline"], counts.rejected_deadline)
    yield rejected
    for name, text, value in (
        (
            "pdd_scheduler_false_rejects",
            "Of those refused by prediction, how many would have been placed in time",
            counts.false_rejects,
        ),
        ("pdd_scheduler_placements", "Attempts that were given their nodes", counts.placed),
        (
            "pdd_scheduler_given_back",
            "Running requests that gave their blocks back and were placed anew",
            counts.given_back,
        ),
    ):
        yield CounterMetricFamily(name, text, value=value)


def directory_metrics(directory: DirectoryFeed) -> Iterator[Metric]:
    """How well it is known what nodes' caches hold."""
    yield GaugeMetricFamily(
        "pdd_directory_blocks",
        "Distinct blocks known to be cached, of scheduler.directory_limit_blocks at most",
        value=directory.machine.key_count,
    )
    yield GaugeMetricFamily(
        "pdd_directory_unrecorded_blocks",
        "Blocks that nodes told of and that found no room; their prefixes look uncached",
        value=directory.machine.unrecorded_count,
    )
    yield CounterMetricFamily(
        "pdd_directory_refused_messages",
        "Messages of nodes about their caches that could not be true and were dropped",
        value=directory.refused_message_count,
    )
    yield CounterMetricFamily(
        "pdd_directory_asked_snapshots",
        "Times that a node was asked for all that its cache holds, because something was missed",
        value=directory.asked_snapshot_count,
    )
