"""What is asked, and what each node that could answer would cost. The parts read only this."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from pdd.core.identity import NodeIdentity, NodeName, Role
from pdd.core.requests import GenerateRequest
from pdd.core.values import frozen
from pdd.scheduler.nodes import Node
from pdd.scheduler.pools import (
    GROWTH,
    INPUT_COUNT,
    LONG_BLOCKS,
    UNPROMISED,
    Bounds,
    Column,
    Table,
)
from pdd.scheduler.prefixes import NO_CHAIN, Chain

Mask: TypeAlias = npt.NDArray[np.bool_]
Positions: TypeAlias = npt.NDArray[np.int64]


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
    request, and how many blocks of each may be given away nevertheless. ``waited_s``: since it
    came.
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
    waited_s: float = 0.0

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

    def fits_on(self, node: Node, *, output_token_count: int) -> bool:
        """Whether ``node`` could run them, were it empty."""
        return node.can_hold(
            prompt_token_count=self.token_count,
            output_token_count=output_token_count,
            choice_count=self.choice_count,
        )


@dataclass(slots=True, kw_only=True)
class Candidate:
    """One node, seen from one question, at its moment: the node goes on changing.

    ``cached_tokens``: prompt tokens that it is believed to hold. ``completion_s``: predicted time
    until it would have computed the rest, behind what it has to do already. ``blocks``: lease that
    it would take; ``claim``: what the longest output would need. ``load``: 1 is full.
    ``transfer_s``: predicted time for the blocks that would have to come over. ``inbound_s``: how
    long the link would still be busy with other blocks when the prompt is computed.
    ``growth_blocks``: what present leases may still grow by. ``long_count``, ``long_blocks``: long
    requests there, and what they hold.
    """

    node: Node
    cached_tokens: int
    remainder_tokens: int
    completion_s: float
    blocks: int
    claim: int
    unpromised_blocks: int
    sequence_count: int
    load: float
    transfer_s: float
    inbound_s: float
    growth_blocks: int
    long_count: int
    long_blocks: int

    @property
    def name(self) -> NodeName:
        """Of the node."""
        return self.node.name


class Candidates:
    """The nodes of one role, seen from one question.

    ``table``: ``(row, node)``, rows as ``pools`` names them, all filled in; the first ones are
    named here too, ``(node count,)`` each, as ``Candidate`` says of one node.
    ``token_count_max``: prompt and longest output. ``holds_choices``: which could run all of
    several, were they empty; None where one is asked for.
    ``preferred_at``: position of the node that an affinity points to, -1 if there is none.
    ``blocks_max``: the most that any would have to promise. ``bounds``: hold for all of them.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        names: tuple[NodeName, ...],
        table: Table,
        *,
        bounds: Bounds,
        blocks_max: float,
        token_count_max: int,
        holds_choices: Mask | None = None,
        preferred_at: int = -1,
    ) -> None:
        self.nodes, self.names, self.table = nodes, names, table
        self.token_count_max, self.holds_choices = token_count_max, holds_choices
        self.preferred_at = preferred_at
        self.bounds, self.blocks_max = bounds, blocks_max
        self.cached_tokens: Column
        (
            self.cached_tokens,
            self.remainder_tokens,
            self.completion_s,
            self.blocks,
            self.claim,
            self.transfer_s,
            self.inbound_s,
            self.unpromised_blocks,
            self.sequences,
            self.load,
        ) = table[:INPUT_COUNT]

    def __len__(self) -> int:
        return len(self.names)

    def at(self, position: int) -> Candidate:
        """One of them."""
        row = self.table[: LONG_BLOCKS + 1, position].tolist()
        cached, remainder, completion_s, blocks, claim, transfer_s, inbound_s = row[:UNPROMISED]
        unpromised, sequences, load = row[UNPROMISED:INPUT_COUNT]
        growth, long_count, long_blocks = row[GROWTH:]
        return Candidate(
            node=self.nodes[position],
            cached_tokens=int(cached),
            remainder_tokens=int(remainder),
            completion_s=completion_s,
            blocks=int(blocks),
            claim=int(claim),
            unpromised_blocks=int(unpromised),
            sequence_count=int(sequences),
            load=load,
            transfer_s=transfer_s,
            inbound_s=inbound_s,
            growth_blocks=int(growth),
            long_count=int(long_count),
            long_blocks=int(long_blocks),
        )

    def only(self, positions: Positions) -> "Candidates":
        """Those at ascending ``positions``."""
        picked = positions.tolist()
        return Candidates(
            [self.nodes[position] for position in picked],
            tuple([self.names[position] for position in picked]),
            self.table.take(positions, axis=1),
            bounds=self.bounds,
            blocks_max=self.blocks_max,
            token_count_max=self.token_count_max,
            holds_choices=None if self.holds_choices is None else self.holds_choices[positions],
            preferred_at=picked.index(self.preferred_at) if self.preferred_at in picked else -1,
        )

    def which(self, holds: Callable[[int], bool]) -> Mask:
        """Those of which something holds that is no column; ``holds`` takes a position."""
        return np.fromiter(map(holds, range(len(self))), dtype=np.bool_, count=len(self))
