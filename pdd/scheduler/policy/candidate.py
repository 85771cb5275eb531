"""What is asked, and what each node that could answer would cost. The parts read only this."""

from collections.abc import Collection
from dataclasses import dataclass

from pdd.core.identity import NodeIdentity, NodeName
from pdd.core.requests import GenerateRequest
from pdd.scheduler.nodes import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One request that needs a place.

    ``token_count``: prompt tokens. ``granted_output_tokens``: output to reserve for now, at most
    ``max_tokens``; equal to it for a request that must never be asked for its blocks back.
    ``choice_count``: outputs that have not ended, each of which needs that much.
    ``keys``: its block keys, joined; empty where they are not known. ``caller``: the caller's own
    key for affinity. ``is_long``: it belongs to those that share a part of each node.
    ``resumes``: why it can only go on where it can compute its own prompt; empty for a new one.
    ``avoid``: nodes whose engine has just failed it. ``held``: nodes that keep room for another
    request, and how many blocks of each may be given away nevertheless.
    """

    request: GenerateRequest
    granted_output_tokens: int
    now_s: float
    choice_count: int = 1
    keys: bytes = b""
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
    it would take; ``claim``: what the longest output would need, which is ``token_count_max`` long
    with its prompt. ``holds_choices``: it could run all of several, were it empty. ``load``:
    1 is full.
    ``transfer_s``: predicted time for the blocks that would have to come over. ``inbound_s``: how
    long the link would still be busy with other blocks when the prompt is computed.
    ``preferred_blocks``: leading blocks for which this node is the preferred one; -1 if it is not
    preferred at all, 0 if it is for the caller's key.
    """

    name: NodeName
    node: Node
    unpromised_blocks: int
    sequence_count: int
    cached_tokens: int
    remainder_tokens: int
    completion_s: float
    blocks: int
    claim: int
    token_count_max: int
    load: float
    holds_choices: bool = True
    transfer_s: float = 0.0
    inbound_s: float = 0.0
    preferred_blocks: int = -1

    @property
    def is_preferred(self) -> bool:
        """Whether an affinity points here."""
        return self.preferred_blocks >= 0
