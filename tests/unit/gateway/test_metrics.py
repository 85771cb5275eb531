"""Plain numbers look like prometheus_client's own metrics to whoever scrapes."""

import random

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from pdd.gateway.plain_metrics import PlainCounter, PlainGauge, PlainHistogram

BOUNDS = (0.1, 0.5, 1.0)


def lines(registry: CollectorRegistry) -> list[str]:
    """Without the moments of creation, which prometheus_client adds."""
    text = generate_latest(registry).decode()
    return sorted(line for line in text.splitlines() if "_created" not in line)


@pytest.mark.parametrize("values", [[], [0.0, 0.1, 0.1001, 0.5, 1.0, 7.0]], ids=["none", "some"])
@pytest.mark.parametrize("labels", [(), ("path",)], ids=["plain", "labelled"])
def test_a_scrape_shows_what_prometheus_client_would_show(
    labels: tuple[str, ...], values: list[float]
) -> None:
    plain, usual = CollectorRegistry(), CollectorRegistry()
    counter = PlainCounter("c", "count", labels, registry=plain)
    gauge = PlainGauge("g", "level", labels, registry=plain)
    histogram = PlainHistogram("h", "times", labels, bounds=BOUNDS, registry=plain)
    their_counter = Counter("c", "count", labels, registry=usual)
    their_gauge = Gauge("g", "level", labels, registry=usual)
    their_histogram = Histogram("h", "times", labels, buckets=BOUNDS, registry=usual)
    draw = random.Random(1)
    for value in values:
        of = tuple(draw.choice(("local", 'a "quoted" one')) for _ in labels)
        counter.add(value, of)
        gauge.add(-value, of)
        histogram.observe(value, of)
        (their_counter.labels(*of) if of else their_counter).inc(value)
        (their_gauge.labels(*of) if of else their_gauge).dec(value)
        (their_histogram.labels(*of) if of else their_histogram).observe(value)
    assert lines(plain) == lines(usual)
