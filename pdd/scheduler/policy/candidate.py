"""What is asked, and what each node that could answer would cost. The parts read only this."""

from collections.abc import Collection
from dataclasses import dataclass
from struct import Struct

import numpy as np

from pdd.core.identity import NodeIdentity, NodeName, Role
from pdd.core.requests import GenerateRequest
from pdd.core.values import frozen
from pdd.scheduler.nodes import Node
from pdd.scheduler.policy import parts
from pdd.scheduler.policy.parts import Column, Table
from pdd.scheduler.pools import Pool
from pdd.scheduler.prefixes import NO_CHAIN, Chain

_ASKED = Struct(f"{parts.ASKED_COUNT}d")


@frozen
class Question:
    """One request that needs a place.

    ``token_count``: prompt tokens. ``granted_output_tokens``: output to reserve for now, at most
    ``max_tokens``; equal to it for a request that must never be asked for its blocks back.
    ``choice_count``: outputs that have not ended, each of which needs that much.
    ``chain``: its block keys; empty where they are not known. ``caller``: the caller's own
    key for affinity. ``is_long``: it belongs to those that share a part of each node.
    ``resumes``: why it can only go on where it can compute its own prompt; empty for a new one.
    ``avoid``: nodes whose engine has just failed it. ``held``: nodes that keep room for another
    request, and how many blocks of each may be given away nevertheless.
    """

    request: GenerateRequest
    granted_output_tokens: int
    now_s: float
    choice_count: int = 1
    chain: Chain = NO_CHAIN
    caller: bytes = b""
    is_long: bool = False
    resumes: str = ""
    avoid: Collection[NodeIdentity] = ()
    held: dict[NodeName, int] | None = None

    @property
    def token_count(self) -> int:
        """Prompt tokens."""
        return len(self.request.prompt_token_ids)

    def blocks_on(self, node: Node, *, output_token_count: int) -> int:
        """Blocks of ``node`` for its choices, each with so many output tokens."""
        return node.choice_blocks(
            prompt_token_count=self.token_count,
            output_token_count=output_token_count,
            choice_count=self.choice_count,
        )

    def longest_output(self, role: Role) -> int:
        """Tokens of the longest choice: a prefill node gives the first alone."""
        return 1 if role is Role.PREFILL else self.request.sampling.max_tokens

    def asked(self, role: Role, *, full_s: float) -> Column:
        """What it asks of nodes with that duty, as ``policy.parts`` reads it. ``full_s``: of
        prompts ahead, which are a load of 1."""
        prompt, choices = len(self.request.prompt_token_ids), self.choice_count
        granted, longest = self.granted_output_tokens, self.request.sampling.max_tokens
        if role is Role.PREFILL:
            granted = longest = 1
        numbers = (prompt, granted, longest, choices, self.is_long, self.now_s, full_s)
        asked = np.empty(parts.ASKED_COUNT)
        _ASKED.pack_into(asked.data, 0, *numbers, 0.0, 0.0, 0.0, 0.0)
        return asked


@dataclass(slots=True)
class Candidate:
    """One node, seen from one question, at its moment: the node goes on changing. ``numbers``: its
    column of the question's table."""

    node: Node
    numbers: list[float]

    @property
    def name(self) -> NodeName:
        """Of the node."""
        return self.node.name

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that it is believed to hold."""
        return int(self.numbers[parts.CACHED])

    @property
    def remainder_tokens(self) -> int:
        """Prompt tokens that it would have to compute."""
        return int(self.numbers[parts.REMAINDER])

    @property
    def blocks(self) -> int:
        """Lease that it would take."""
        return int(self.numbers[parts.BLOCKS])

    @property
    def claim(self) -> int:
        """What the longest output would need."""
        return int(self.numbers[parts.CLAIM])

    @property
    def completion_s(self) -> float:
        """Until it would have computed the rest, behind what it has to do already. It was chosen by
        less, if it could pull some of that."""
        return self.numbers[parts.COMPLETION_S] + self.numbers[parts.SAVED_S]

    @property
    def transfer_s(self) -> float:
        """Predicted time for the blocks that would have to come over."""
        return self.numbers[parts.TRANSFER_S]

    @property
    def inbound_s(self) -> float:
        """How long the link would still be busy with other blocks when the prompt is computed."""
        return self.numbers[parts.INBOUND_S]

    @property
    def load(self) -> float:
        """1 is full."""
        return self.numbers[parts.LOAD]

    @property
    def unpromised_blocks(self) -> int:
        """Blocks that are promised to nobody."""
        return int(self.numbers[parts.UNPROMISED])

    @property
    def sequence_count(self) -> int:
        """What runs or may run there."""
        return int(self.numbers[parts.SEQUENCES])

    @property
    def growth_blocks(self) -> int:
        """What present leases may still grow by."""
        return int(self.numbers[parts.GROWTH])

    @property
    def long_count(self) -> int:
        """Long requests there."""
        return int(self.numbers[parts.LONG_COUNT])

    @property
    def long_blocks(self) -> int:
        """What those hold."""
        return int(self.numbers[parts.LONG_BLOCKS])

    @property
    def prefill_per_s(self) -> float:
        """Prompt tokens that it computes."""
        return self.numbers[parts.PREFILL_PER_S]


class Candidates:
    """The nodes of one role, seen from one question.

    ``table``: ``(row, node)`` of all nodes, those of ``pool`` filled in; ``asked``: by which. Both
    as in ``policy.parts``.
    """

    __slots__ = ("asked", "pool", "table")

    def __init__(self, pool: Pool, table: Table, asked: Column) -> None:
        self.pool, self.table, self.asked = pool, table, asked

    def __len__(self) -> int:
        return len(self.pool.names)

    @property
    def names(self) -> tuple[NodeName, ...]:
        """Of the nodes, by position."""
        return self.pool.names

    def could_hold(self) -> bool:
        """Whether one that the request need not avoid could run it, were that one empty."""
        first, count = self.pool.first, len(self)
        return parts.could_hold(self.table, first, count, self.asked)

    def at(self, position: int) -> Candidate:
        """One of them."""
        column: list[float] = self.table[:, self.pool.first + position].tolist()
        return Candidate(self.pool.nodes[position], column)
