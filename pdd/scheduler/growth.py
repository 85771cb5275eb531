"""Leases that grow: what a running sequence is promised, and who makes room when it needs more.

An output may be as long as ``max_tokens``, and is mostly much shorter. Reserving for the longest
would leave most of a node unused; reserving less means that blocks can run out. So:

1. A request starts with a lease for what few outputs exceed. Before it reaches the end of that it
   is given more (``grew``), and counts as a long one from then on.
2. If no block is left, the youngest request on the node that may still grow gives its blocks back:
   it is queued again, ahead of all new ones, and goes on from its last token elsewhere or later.
   The node itself is never out of blocks, so that its engine has nothing to preempt.
3. Who has given back once is *whole* from then on: placed only where its longest output fits, and
   never asked again. So is, from the start, output that cannot be continued on another engine.

Nothing can lock up: whole requests hold all that they will ever need and run to their end; of the
others the oldest keeps its blocks as long as any younger one has some to give, and if there is
none, it becomes whole itself and waits for the whole ones to end. Every request gives back at most
once, so that the work done twice is bounded by the work done once.
"""

from pdd.core.identity import Role
from pdd.scheduler.attempts import queue_again
from pdd.scheduler.effects import Effect
from pdd.scheduler.events import SequenceGrew
from pdd.scheduler.nodes import Node
from pdd.scheduler.requests import Phase, Request
from pdd.scheduler.state import State

_GROWTH_TOKENS_MIN = 64


def grew(state: State, event: SequenceGrew) -> list[Effect]:
    """A sequence has come near the end of its lease: extend it, or make room."""
    request = state.current(event.request_id, event.generation)
    if request is None or request.decode is None or request.phase is Phase.QUEUED:
        return []
    if event.output_token_count < request.grows_at_tokens:
        return []  # it was given more meanwhile
    node = state.nodes[request.decode]
    granted = next_grant(request, event.output_token_count)
    blocks = node.choice_blocks(
        prompt_token_count=len(request.request.prompt_token_ids),
        output_token_count=granted,
        choice_count=len(request.open_choices),
    )
    effects: list[Effect] = []
    while blocks - node.leases[request.id] > node.unleased_block_count():
        giver = youngest_growing(state, node)
        assert giver is not None, f"{request.id} may grow, so that there is one"
        effects += give_back(state, giver, f"{node.name} has no block left to grow into")
        if giver is request:
            return effects
    node.grow(request.id, blocks=blocks)
    request.grant(granted)
    # Of each choice that goes on at least about so much; what it was is settled at the end.
    output_tokens = request.said_tokens + event.output_token_count
    state.count_tokens(request, len(request.request.prompt_token_ids) + output_tokens)
    return effects


def next_grant(request: Request, output_token_count: int) -> int:
    """Output tokens that a request is given when it has come to the end of its lease."""
    step = max(request.granted_tokens // 2, _GROWTH_TOKENS_MIN)
    granted = max(request.granted_tokens, output_token_count) + step
    return min(granted, request.request.sampling.max_tokens)


def youngest_growing(state: State, node: Node) -> Request | None:
    """Who gives back first: the request that came last of those that may still grow here."""
    growing = [
        request
        for request_id in node.leases
        if (request := state.requests[request_id]).decode == node.name
        and not request.is_whole
        and request.granted_tokens < request.request.sampling.max_tokens
    ]
    return max(growing, key=lambda request: request.arrival_index, default=None)


def give_back(state: State, request: Request, why: str) -> list[Effect]:
    """Take a request off its nodes; it goes on as a whole one."""
    assert not request.is_whole, f"{request.id} has given back once"
    request.is_whole = True
    state.counts.given_back += 1
    return queue_again(state, request, f"resumed after it gave its blocks back: {why}")


def make_room_for_short(state: State, now_s: float) -> list[Effect]:
    """A short request has waited while long ones hold more than their share: one of them yields.

    One with each tick. *Short*: few outputs like it are cut off by their ``max_tokens``.
    """
    settings = state.settings
    short = [
        request
        for request_id in state.queue
        if (request := state.requests[request_id]).blocked_s is not None
        and now_s - request.blocked_s >= settings.queue.patience_s
        and not request.is_whole
        and state.estimates.likely_output_tokens_max(request.request.sampling.max_tokens)
        >= request.request.sampling.max_tokens
    ]
    if not short:
        return []
    for node in state.nodes.values():
        if node.role is not Role.DECODE or not node.takes_work:
            continue
        may_grow = [
            request_id
            for request_id, blocks in node.leases.items()
            if blocks < node.claims[request_id] or request_id in node.long
        ]
        blocks = sum(node.leases[request_id] for request_id in may_grow)
        share = settings.policy.large_share_fraction
        is_over = (
            blocks > share * node.usable_block_count or len(may_grow) > share * node.max_num_seqs
        )
        giver = youngest_growing(state, node) if is_over else None
        if giver is not None:
            return give_back(state, giver, f"{node.name} was held by long requests alone")
    return []
