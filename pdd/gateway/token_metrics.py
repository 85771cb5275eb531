"""The metrics that every token touches.

Plain numbers like those of ``plain_metrics``, and inlined: every token pays for them. Most come one
by one, for which ``RequestMeter.next_token`` writes here itself.
"""

from bisect import bisect_left
from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from pdd.gateway.plain_metrics import cumulated

GAP_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1, 5)


class TokenMetrics(Collector):
    """Tokens sent, and the gaps between them: ``gap_counts`` by bucket, the last one is +Inf."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.token_count = 0
        self.gap_counts = [0] * (len(GAP_BUCKETS_S) + 1)
        self.gap_sum_s = 0.0
        registry.register(self)

    def sent(self, token_count: int, gap_count: int, gap_s: float) -> None:
        """Tokens that came together: ``gap_s`` after the one before, the others at once."""
        self.token_count += token_count
        if gap_count:
            self.gap_counts[bisect_left(GAP_BUCKETS_S, gap_s)] += 1
            self.gap_sum_s += gap_s
            if gap_count > 1:
                self.gap_counts[0] += gap_count - 1

    def collect(self) -> Iterator[Metric]:
        """Called by prometheus_client at each scrape."""
        yield CounterMetricFamily(
            "pdd_generation_tokens", "Tokens sent to clients", value=self.token_count
        )
        yield HistogramMetricFamily(
            "pdd_inter_token_latency_seconds",
            "Each gap between two tokens of a request",
            buckets=cumulated(GAP_BUCKETS_S, self.gap_counts),
            sum_value=self.gap_sum_s,
        )
