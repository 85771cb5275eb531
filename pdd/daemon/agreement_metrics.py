"""Metrics about the schedulers' log, read when somebody scrapes."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pdd.cell.sequences import SequenceTable
from pdd.daemon.replicated_agreement import ReplicatedAgreement


class AgreementMetrics(Collector):
    """Of one scheduler and its replica."""

    def __init__(
        self,
        agreement: ReplicatedAgreement,
        sequences: SequenceTable,
        *,
        registry: CollectorRegistry,
    ) -> None:
        self._agreement = agreement
        self._sequences = sequences
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Called by prometheus_client at each scrape."""
        yield GaugeMetricFamily(
            "pdd_replica_longest_pause_seconds",
            "Longest time by which the loop of this scheduler's replica was late; beyond a second "
            "others may take it for dead",
            value=self._agreement.longest_pause_s,
        )
        rows = GaugeMetricFamily(
            "pdd_sequence_rows",
            "Requests whose scheduler and nodes are known, of all schedulers",
            labels=["state"],
        )
        rows.add_metric(["running"], self._sequences.running_count)
        rows.add_metric(["ended"], len(self._sequences) - self._sequences.running_count)
        yield rows
        yield CounterMetricFamily(
            "pdd_sequence_rows_forgotten",
            "Rows of running requests that found no room in the table",
            value=self._sequences.forgotten_count,
        )
        yield CounterMetricFamily(
            "pdd_sequence_rows_dropped",
            "Changes of rows that were not said because too many waited; all are said again then",
            value=self._agreement.dropped_soft_count,
        )
