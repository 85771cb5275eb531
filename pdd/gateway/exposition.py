"""Metrics as Prometheus reads them, made a family at a time: hundreds of samples take several
milliseconds, which is longer than tokens on the same event loop should wait for a scrape."""

import asyncio
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Metric, generate_latest


async def exposition(registry: CollectorRegistry) -> bytes:
    """The text format. What others do meanwhile is in the families that come after it."""
    parts = []
    for family in registry.collect():
        parts.append(generate_latest(_One(family)))
        await asyncio.sleep(0)
    return b"".join(parts)


class _One:
    """A registry of a single family."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterator[Metric]:
        yield self._family
