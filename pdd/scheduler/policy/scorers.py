"""Scorers by name, each with the number of its part: what the weights of a profile speak of."""

from collections.abc import Mapping

from pdd.scheduler.policy import parts

SCORERS: Mapping[str, int] = {
    "completion": parts.COMPLETION,
    "affinity": parts.AFFINITY,
    "prefix": parts.PREFIX,
    "free_kv": parts.FREE_KV,
    "running": parts.RUNNING,
    "link": parts.LINK,
}
