"""Metrics about who was refused, and until when our certificate is good."""

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pdd.tls.security import Security, TlsSecurity


class SecurityMetrics(Collector):
    """Of a scheduler."""

    def __init__(
        self,
        security: Security,
        *,
        refused_caller_count: Callable[[], int],
        registry: CollectorRegistry,
    ) -> None:
        self._security = security
        self._refused_caller_count = refused_caller_count
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Called by prometheus_client at each scrape."""
        refused = CounterMetricFamily(
            "pdd_refused_callers", "Calls whose certificate did not allow what they claimed"
        )
        refused.add_metric([], self._refused_caller_count())
        yield refused
        if isinstance(self._security, TlsSecurity):
            expires = self._security.material().facts.expires
            yield GaugeMetricFamily(
                "pdd_certificate_expiry_timestamp_seconds",
                "When the certificate in use ends, in Unix time",
                value=expires.timestamp(),
            )
