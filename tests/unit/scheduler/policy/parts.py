"""Candidates and questions for the tables of the policy's parts."""

from typing import Any

from pdd.core.identity import NodeName
from pdd.scheduler.nodes import Node
from pdd.scheduler.policy.candidate import Candidate, Question
from tests.builders import Cluster, make_joined, make_request


def make_node(name: str = "decode-0", **joined: Any) -> Node:
    """100 usable blocks of 16 tokens, 16 sequences."""
    return Cluster(make_joined(name, **joined)).core.nodes[NodeName(name)]


def make_candidate(name: str = "decode-0", *, node: Node | None = None, **fields: Any) -> Candidate:
    """An idle node and a request of 3 blocks."""
    node = node or make_node(name)
    values: dict[str, Any] = {
        "name": node.name,
        "node": node,
        "unpromised_blocks": node.unleased_block_count(),
        "sequence_count": len(node.leases),
        "cached_tokens": 0,
        "remainder_tokens": 32,
        "completion_s": 0.1,
        "blocks": 3,
        "claim": 3,
        "token_count_max": 48,
        "load": 0.0,
    }
    return Candidate(**{**values, **fields})


def make_question(**fields: Any) -> Question:
    """32 + 16 tokens, all of them granted."""
    values: dict[str, Any] = {
        "request": make_request(),
        "granted_output_tokens": 16,
        "now_s": 0.0,
    }
    return Question(**{**values, **fields})
