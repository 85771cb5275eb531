"""Whether every KV block of a node is somewhere, once: asked again and again while it serves."""

from collections.abc import Callable

import structlog

from pdd.core.blocks import BlockCensus

log = structlog.get_logger(__name__)


class BlockWatch:
    """``look`` often. ``census``: see ``Engine.census``; ``check_count``: how many there were."""

    def __init__(self, count: Callable[[], BlockCensus | None]) -> None:
        self.census: BlockCensus | None = None
        self.degraded_reason = ""
        self.check_count = 0
        self._count = count

    def look(self) -> None:
        """Take the latest count; say once what is wrong, and once that it no longer is."""
        census = self._count()
        if census is None or census is self.census:
            return
        self.census = census
        self.check_count += 1
        if census.fault == self.degraded_reason:
            return
        self.degraded_reason = census.fault
        if census.fault:
            log.error(
                "kv_blocks_unaccounted",
                why=census.fault,
                lost_count=census.lost_count,
                doubled_count=census.doubled_count,
                advice="restart this node: what is lost comes back no other way",
            )
        else:
            log.info("kv_blocks_accounted")
