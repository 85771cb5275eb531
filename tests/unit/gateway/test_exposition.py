"""What a scrape of the metrics is told, and who may go on meanwhile."""

import asyncio
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from pdd.gateway.exposition import exposition
from pdd.gateway.metrics import GatewayMetrics


async def test_it_says_what_the_registry_holds() -> None:
    metrics = GatewayMetrics()
    metrics.requests.add(2.0, ("http", "local", "finished"))
    metrics.ttft.observe(0.03, ("local",))
    assert await exposition(metrics.registry) == generate_latest(metrics.registry)


class _Families(Collector):
    def __init__(self, names: tuple[str, ...], log: list[str]) -> None:
        self._names = names
        self._log = log

    def collect(self) -> Iterator[Metric]:
        for name in self._names:
            self._log.append(name)
            yield GaugeMetricFamily(name, "a family", value=1.0)


async def test_tokens_go_on_between_its_families() -> None:
    log: list[str] = []
    registry = CollectorRegistry()
    registry.register(_Families(("first", "second", "third"), log))
    log.clear()  # it is asked for its names once

    async def tokens() -> None:
        for _ in range(3):
            log.append("token")
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(exposition(registry))
        tasks.create_task(tokens())
    assert log == ["first", "token", "second", "token", "third", "token"]
