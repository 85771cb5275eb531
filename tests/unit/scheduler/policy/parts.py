"""Candidates and questions for the tables of the policy's parts."""

from math import inf
from typing import Any

from pdd.core.identity import NodeName, Role
from pdd.scheduler.nodes import Node
from pdd.scheduler.policy import parts
from pdd.scheduler.policy.candidate import Candidates, Question
from pdd.scheduler.pools import Pools
from tests.builders import Cluster, make_joined, make_request


def make_node(name: str = "decode-0", **joined: Any) -> Node:
    """100 usable blocks of 16 tokens, 16 sequences."""
    return Cluster(make_joined(name, **joined)).core.nodes[NodeName(name)]


def make_candidates(*each: dict[str, Any], question: Question | None = None) -> Candidates:
    """Idle decode nodes, ``decode-0`` and so on unless a ``node`` is given, and a request of 3
    blocks; otherwise rows, by their names in ``parts``, are as said."""
    nodes = [fields.get("node") or make_node(f"decode-{at}") for at, fields in enumerate(each)]
    pools = Pools(nodes)
    table = pools.table.copy()
    for at, fields in enumerate(each):
        values = {"REMAINDER": 32, "COMPLETION_S": 0.1, "BLOCKS": 3, "CLAIM": 3, **fields}
        for name, value in values.items():
            if name != "node":
                table[getattr(parts, name), at] = value
    question = question or make_question()
    return Candidates(pools.decode, table, question.asked(Role.DECODE, full_s=inf))


def make_question(**fields: Any) -> Question:
    """32 + 16 tokens, all of them granted."""
    values: dict[str, Any] = {
        "request": make_request(),
        "granted_output_tokens": 16,
        "now_s": 0.0,
    }
    return Question(**{**values, **fields})
