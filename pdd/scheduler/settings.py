"""The bounds of the scheduler core, and what its policy is made of."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from pdd.scheduler.roles.settings import RoleSettings


class PathMode(StrEnum):
    """How the path of a request is chosen where there is a choice."""

    AUTO = "auto"  # by what was measured
    DISAGGREGATED = "disaggregated"  # while a prefill node has room; short follow-up turns stay
    LOCAL = "local"  # never; decode nodes compute their prompts


class PullMode(StrEnum):
    """Whether a prefill node has the prefix that it lacks from the decode node that holds it."""

    AUTO = "auto"  # where that is expected to be quicker than computing it
    NEVER = "never"
    ALWAYS = "always"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySettings:
    """Which parts make up the policy, and their thresholds.

    ``*_filters``: names in ``policy.filters``, run in this order after those that are always in
    force. ``*_scorers``: name in ``policy.scorers`` to weight.

    ``spill_above_fraction``: load of a node above which keys that prefer it go elsewhere.
    ``affinity_tokens_min``: a shared prefix that is shorter gives no preference; it would tie
    everybody who uses the same chat template to one node.
    ``affinity_entry_count_max``: prefixes and keys whose node is remembered; the least used go.
    ``prefill_full_s``: prompt work ahead of a prefill node that counts as a load of 1. Behind
    more of prompts no longer than itself one waits at the scheduler.
    ``headroom_fraction``: part of a decode node's blocks that new requests leave free for those
    that run to grow into.
    ``large_fraction``: a lease of a larger part of a node's blocks is a large one.
    ``large_share_fraction``: part of a decode node's blocks and sequences that large and long
    requests may hold together.
    ``inbound_full_s``: how far a decode node's measured link may be behind what is being computed
    for it, when a new prompt would be ready; above that no more is sent to it.
    """

    prefill_filters: tuple[str, ...] = ("spill",)
    decode_filters: tuple[str, ...] = ("large_share", "headroom", "inbound", "spill")
    prefill_scorers: Mapping[str, float] = field(
        default_factory=lambda: {"completion": 1.0, "affinity": 2.0}
    )
    decode_scorers: Mapping[str, float] = field(
        default_factory=lambda: {
            "prefix": 1.0,
            "free_kv": 1.0,
            "running": 0.5,
            "link": 0.5,
            "affinity": 4.0,
        }
    )
    spill_above_fraction: float = 0.85
    affinity_tokens_min: int = 128
    affinity_entry_count_max: int = 65_536
    prefill_full_s: float = 2.0
    headroom_fraction: float = 0.10
    large_fraction: float = 0.125
    large_share_fraction: float = 0.75
    inbound_full_s: float = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PathSettings:
    """``mode``, and overrides of what ``auto`` takes from measurements; 0 means measured.

    ``local_prompt_tokens_max``: prompts whose uncached remainder is at most so long stay local.
    ``local_stall_s``: longest that a local prompt may hold up the node's running streams.
    ``pull``: see ``policy.pull``.
    """

    mode: PathMode = PathMode.AUTO
    local_prompt_tokens_max: int = 0
    local_stall_s: float = 0.1
    pull: PullMode = PullMode.AUTO


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateSettings:
    """What is believed before anything was measured, and how fast measurements replace it.

    ``half_life_s``: after so long an observation counts half. ``sample_count_min``: fewer
    observations refuse nobody.
    """

    prefill_tokens_per_s: float = 5000.0
    decode_tokens_per_s: float = 30.0
    link_bytes_per_s: float = 1e9
    handover_s: float = 0.01
    output_tokens: float = 256.0
    half_life_s: float = 15.0
    sample_count_min: int = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    """Order among those who wait.

    ``ageing_s``: so long a wait counts as one class of priority. ``class_limit``: priorities
    beyond plus or minus this count as this, so that nobody is so urgent that others never run.
    ``patience_s``: how long the first in turn lets others pass before room is kept for it, and how
    long a request waits before long ones above their share make room.
    ``examined_count_max``: who stands further back is not looked at in one step.
    """

    ageing_s: float = 10.0
    class_limit: int = 8
    patience_s: float = 5.0
    examined_count_max: int = 64


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
    ``decision_memory_s``, ``decision_count_max``, ``decision_size_bytes_max``: for how long, of how
    many requests, and in how much memory decisions can be looked up; beyond any of these the oldest
    go.
    """

    queue_request_count_max: int = 256
    attempt_count_max: int = 4
    retry_pause_s: float = 1.0
    node_silence_s: float = 10.0
    lost_node_memory_s: float = 600.0
    lost_node_count_max: int = 256
    decision_memory_s: float = 3600.0
    decision_count_max: int = 20_000
    decision_size_bytes_max: int = 32 << 20
    policy: PolicySettings = field(default_factory=PolicySettings)
    path: PathSettings = field(default_factory=PathSettings)
    estimates: EstimateSettings = field(default_factory=EstimateSettings)
    queue: QueueSettings = field(default_factory=QueueSettings)
    roles: RoleSettings = field(default_factory=RoleSettings)
