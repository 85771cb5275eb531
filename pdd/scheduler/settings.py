"""The bounds of the scheduler core."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSettings:
    """Bounds of the core.

    ``queue_request_count_max``: requests that wait for room; one more is answered 429, whatever
    its priority. Requests that are planned anew keep their place beyond it.
    ``attempt_count_max``: attempts of one request that nodes may fail before it is given up. An
    attempt that ended because its node was lost does not count (a rolling restart may take every
    node away once); the request's deadline bounds those.
    ``retry_pause_s``: how long a request keeps away from a node whose engine failed it: long enough
    for a dying engine to be noticed, so that it cannot use up all attempts first.
    ``node_silence_s``: a node that reports nothing for so long is treated as lost.
    ``lost_node_memory_s``: how long a lost node is listed, counted from its last report.
    ``lost_node_count_max``: lost nodes that are listed; beyond it those lost longest go early.
    """

    queue_request_count_max: int = 256
    attempt_count_max: int = 4
    retry_pause_s: float = 1.0
    node_silence_s: float = 10.0
    lost_node_memory_s: float = 600.0
    lost_node_count_max: int = 256
