"""Candidates and questions for the tables of the policy's parts."""

from typing import Any

from pdd.core.identity import NodeName
from pdd.scheduler.nodes import Node
from pdd.scheduler.policy.candidate import Candidates, Question
from pdd.scheduler.pools import Bounds, Pools
from tests.builders import Cluster, make_joined, make_request


def make_node(name: str = "decode-0", **joined: Any) -> Node:
    """100 usable blocks of 16 tokens, 16 sequences."""
    return Cluster(make_joined(name, **joined)).core.nodes[NodeName(name)]


def make_candidates(
    *each: dict[str, Any], token_count_max: int = 48, preferred_at: int = -1
) -> Candidates:
    """Idle nodes, ``decode-0`` and so on unless a ``node`` is given, and a request of 3 blocks;
    otherwise columns are as said."""
    nodes = [fields.get("node") or make_node(f"decode-{at}") for at, fields in enumerate(each)]
    pools = Pools(nodes)
    candidates = Candidates(
        pools.nodes,
        pools.names,
        pools.table,
        bounds=Bounds(pools.table),
        blocks_max=0,
        token_count_max=token_count_max,
        preferred_at=preferred_at,
    )
    for at, fields in enumerate(each):
        values = {
            "remainder_tokens": 32,
            "completion_s": 0.1,
            "blocks": 3,
            "claim": 3,
            "unpromised_blocks": nodes[at].unleased_block_count(),
            "sequences": nodes[at].sequence_count,
            **{name: value for name, value in fields.items() if name != "node"},
        }
        for name, value in values.items():
            getattr(candidates, name)[at] = value
    candidates.bounds = Bounds(pools.table)
    candidates.blocks_max = candidates.blocks.max(initial=0.0)
    return candidates


def make_question(**fields: Any) -> Question:
    """32 + 16 tokens, all of them granted."""
    values: dict[str, Any] = {
        "request": make_request(),
        "granted_output_tokens": 16,
        "now_s": 0.0,
    }
    return Question(**{**values, **fields})
