"""Counters, gauges and histograms for one event loop.

prometheus_client takes a lock, looks up labels and walks buckets for each observation: a dozen of
them were a tenth of what a short request costs here. These are plain numbers, made into metrics
when somebody scrapes, which is on the same loop. Not for threads.
"""

from bisect import bisect_left
from collections.abc import Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

Labels = tuple[str, ...]


class PlainCounter(Collector):
    """``labels``: their names; whoever counts sees to it that their values are bounded."""

    _family: type[CounterMetricFamily] | type[GaugeMetricFamily] = CounterMetricFamily

    def __init__(
        self, name: str, text: str, labels: Labels = (), *, registry: CollectorRegistry
    ) -> None:
        self._name = name
        self._text = text
        self._labels = labels
        self._values: dict[Labels, float] = {} if labels else {(): 0.0}
        registry.register(self)

    def add(self, amount: float = 1.0, labels: Labels = ()) -> None:
        """Count, for these values of the labels."""
        values = self._values
        values[labels] = values.get(labels, 0.0) + amount

    def collect(self) -> list[Metric]:
        """Called by prometheus_client at each scrape."""
        family = self._family(self._name, self._text, labels=self._labels)
        for labels, value in self._values.items():
            family.add_metric(labels, value)
        return [family]


class PlainGauge(PlainCounter):
    """A counter that may go down."""

    _family = GaugeMetricFamily


class PlainHistogram(Collector):
    """``bounds``: upper ends of the buckets, ascending; infinity is added."""

    def __init__(
        self,
        name: str,
        text: str,
        labels: Labels = (),
        *,
        bounds: Sequence[float],
        registry: CollectorRegistry,
    ) -> None:
        self._name = name
        self._text = text
        self._labels = labels
        self._bounds = tuple(bounds)
        self._counts: dict[Labels, list[int]] = {}  # per bucket, then infinity
        self._sums: dict[Labels, float] = {}
        if not labels:
            self._begin(())
        registry.register(self)

    def observe(self, value: float, labels: Labels = ()) -> None:
        """Count a value, for these values of the labels."""
        if labels not in self._sums:
            self._begin(labels)
        self._counts[labels][bisect_left(self._bounds, value)] += 1
        self._sums[labels] += value

    def collect(self) -> list[Metric]:
        """Called by prometheus_client at each scrape."""
        family = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        for labels, counts in self._counts.items():
            buckets = cumulated(self._bounds, counts)
            family.add_metric(labels, buckets=buckets, sum_value=self._sums[labels])
        return [family]

    def _begin(self, labels: Labels) -> None:
        self._counts[labels] = [0] * (len(self._bounds) + 1)
        self._sums[labels] = 0.0


def cumulated(bounds: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    """Buckets as Prometheus has them: each holds those below it too. ``counts`` has one more."""
    buckets = []
    total = 0
    for bound, count in zip((*bounds, float("inf")), counts, strict=True):
        total += count
        buckets.append((floatToGoString(bound), float(total)))
    return buckets
