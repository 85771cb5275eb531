"""Which path, which nodes. Pure functions over the nodes and one request.

This is the smallest policy that is right: leases in whole blocks for the longest output a request
may have (so that no admitted request can be preempted), least prompt tokens ahead on prefill
nodes, most unpromised blocks on decode nodes. Ties go to the first name, so that equal states
give equal decisions.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from pdd.core.identity import NodeIdentity, Role
from pdd.core.requests import GenerateRequest, Path
from pdd.core.sampling import Sampling
from pdd.scheduler.nodes import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """A decision. ``decode`` is None when the prefill node's one token is the whole answer."""

    path: Path
    prefill: Node | None
    decode: Node | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NoRoom:
    """Nothing can take the request now.

    ``ever``: whether waiting for the present nodes can help. ``others_may_pass``: the obstacle is
    this request's own, so those behind it in the queue need not wait for it.
    """

    reason: str
    ever: bool
    others_may_pass: bool = False


def looks_back(sampling: Sampling) -> str | None:
    """The parameter that reads earlier output tokens, if there is one; None otherwise.

    A sequence with such a parameter cannot change engines, because the next engine takes emitted
    tokens for prompt (vLLM 0.32, Model Runner V1).
    """
    if sampling.presence_penalty != 0.0:
        return "presence_penalty"
    if sampling.frequency_penalty != 0.0:
        return "frequency_penalty"
    if sampling.bad_words:
        return "bad_words"
    if sampling.grammar is not None:
        return "response_format"
    return None


def place(
    request: GenerateRequest,
    nodes: Iterable[Node],
    *,
    emitted_token_count: int,
    avoid: Collection[NodeIdentity] = (),
) -> Placement | NoRoom:
    """Decide for one request.

    ``emitted_token_count``: output tokens its client has already. ``avoid``: nodes whose engine
    has just failed this request.
    """
    members = sorted((node for node in nodes if node.takes_work), key=lambda node: node.name)
    able = [node for node in members if node.identity not in avoid]
    prefills = [node for node in able if node.role is Role.PREFILL]
    decodes = [node for node in able if node.role is Role.DECODE]
    resting = len(decodes) < sum(node.role is Role.DECODE for node in members)
    path, reason = _choose_path(request, prefills, emitted_token_count)
    if path is Path.DISAGGREGATED and request.sampling.max_tokens == 1:
        prefill = _pick_prefill(request, prefills)
        if prefill is not None:
            return Placement(path=path, prefill=prefill, decode=None, reason=reason)
        path, reason = Path.LOCAL, "no prefill node has room for the prompt"
    decode = _pick_decode(request, decodes)
    if isinstance(decode, NoRoom):
        if resting and not decode.ever:
            return NoRoom(
                reason="the decode nodes that could take it have just failed it",
                ever=True,
                others_may_pass=True,
            )
        return decode
    if path is Path.LOCAL:
        return Placement(path=path, prefill=None, decode=decode, reason=reason)
    prefill = _pick_prefill(request, prefills)
    if prefill is None:
        return Placement(
            path=Path.LOCAL,
            prefill=None,
            decode=decode,
            reason="no prefill node has room for the prompt",
        )
    return Placement(path=path, prefill=prefill, decode=decode, reason=reason)


def _choose_path(
    request: GenerateRequest, prefills: list[Node], emitted_token_count: int
) -> tuple[Path, str]:
    if emitted_token_count > 0:
        return Path.LOCAL, "resumed after a node was lost"
    if (parameter := looks_back(request.sampling)) is not None:
        return Path.LOCAL, f"{parameter} reads earlier output, which must stay on one engine"
    if not prefills:
        return Path.LOCAL, "no prefill node is ready"
    if request.sampling.max_tokens == 1:
        return Path.DISAGGREGATED, "one token: the prefill node has it"
    return Path.DISAGGREGATED, "prefill node available"


def _pick_prefill(request: GenerateRequest, prefills: list[Node]) -> Node | None:
    prompt_tokens = len(request.prompt_token_ids)
    fitting = [
        node
        for node in prefills
        if prompt_tokens < node.max_model_len
        and node.blocks_for(prompt_tokens + 1) <= node.unleased_block_count()
    ]
    return min(fitting, key=lambda node: sum(node.queued_tokens.values()), default=None)


def _pick_decode(request: GenerateRequest, decodes: list[Node]) -> Node | NoRoom:
    if not decodes:
        return NoRoom(reason="no decode node is ready", ever=False)
    tokens = len(request.prompt_token_ids) + request.sampling.max_tokens
    largest = max(node.token_count_max() for node in decodes)
    if tokens > largest:
        return NoRoom(
            reason=f"prompt and max_tokens are {tokens} tokens together, "
            f"the largest decode node can hold {largest}",
            ever=False,
            others_may_pass=True,
        )
    fitting = [
        node
        for node in decodes
        if tokens <= node.max_model_len
        and len(node.leases) < node.max_num_seqs
        and node.blocks_for(tokens) <= node.unleased_block_count()
    ]
    if not fitting:
        return NoRoom(reason="every decode node is full", ever=True)
    return max(fitting, key=lambda node: node.unleased_block_count())
