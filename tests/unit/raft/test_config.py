"""RaftConfig: what it refuses, all at once and by name."""

from __future__ import annotations

from typing import Any

import pytest

from pdd.core.errors import ConfigError
from pdd.raft.config import RaftConfig, voters_hash
from pdd.raft.values import NodeId

A, B, C = NodeId("a"), NodeId("b"), NodeId("c")


def config(**changes: Any) -> RaftConfig:
    return RaftConfig(**{"node": A, "voters": (A, B, C), "cluster_id": "x", **changes})


def test_the_defaults_work() -> None:
    assert (config().quorum, config().peers) == (2, (B, C))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"voters": (A, B)}, "voters must be 1, 3 or 5, not 2"),
        ({"voters": (A, A, B)}, "name a replica twice"),
        ({"node": NodeId("z")}, "node 'z' is not among voters"),
        ({"cluster_id": ""}, "cluster_id must not be empty"),
        ({"heartbeat_ticks": 0}, "heartbeat_ticks must be at least 1, not 0"),
        ({"election_ticks": 5, "heartbeat_ticks": 2}, "a late heartbeat starts an election"),
        ({"max_uncommitted_bytes": 0}, "max_uncommitted_bytes must be at least 1, not 0"),
    ],
)
def test_a_setting_that_cannot_work_is_named(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        config(**changes)


def test_all_faults_are_told_at_once() -> None:
    with pytest.raises(ConfigError, match=r"cluster_id.*max_apply_bytes"):
        config(cluster_id="", max_apply_bytes=0)


def test_the_voters_hash_tells_sets_apart_and_ignores_order() -> None:
    assert voters_hash((A, B, C)) == voters_hash((C, A, B))
    assert voters_hash((A, B, C)) != voters_hash((A, B, NodeId("d")))
    assert voters_hash((NodeId("ab"), C)) != voters_hash((A, NodeId("bc")))
