"""A request's life at the scheduler that holds its client, while another one leads.

All of it but the choice of nodes happens here: frames are checked, first tokens handed over, ends
and usage told by this core, so that running streams need no leader. What the leader says is obeyed
if it is about the present attempt or a later one; its attempts and ours are counted alike.
"""

from pdd.core.identity import NodeName, NodeState
from pdd.core.requests import Path, Plan
from pdd.scheduler.admission import refuse_hopeless
from pdd.scheduler.attempts import queue_again, submit
from pdd.scheduler.effects import Announce, Effect
from pdd.scheduler.endings import fail
from pdd.scheduler.events import SequenceGrew
from pdd.scheduler.group_events import (
    LeadershipChanged,
    PlaceGiven,
    PlaceTaken,
    RequestRefused,
)
from pdd.scheduler.growth import next_grant
from pdd.scheduler.nodes import Node
from pdd.scheduler.policy.decider import looks_back
from pdd.scheduler.requests import Phase, Request
from pdd.scheduler.state import State


def leadership_changed(state: State, event: LeadershipChanged, now_s: float) -> list[Effect]:
    """A new leader places what waits here; a former one forgets what others hold: their next
    leader hears of it from them. Nothing that runs is touched."""
    state.leads = event.leads
    if not event.leads:
        state.kept_for = None
        for request in [request for request in state.requests.values() if request.holder]:
            state.end(request)
        return []
    return [*_keep_promises(state), *refuse_hopeless(state, now_s)]


def _keep_promises(state: State) -> list[Effect]:
    """Give no node's blocks out twice. A leader that had not heard of all that runs may have given
    this scheduler a place where others of its own are; the next one takes some away when it hears
    of both. If that is this one: the youngest waits again.

    Output that cannot be continued elsewhere keeps its place: until it ends the node may be short
    of blocks, and its engine has to preempt; it is given nothing meanwhile.
    """
    effects: list[Effect] = []
    for node in state.nodes.values():
        while node.unleased_block_count() < 0:
            movable = [
                request
                for request_id in node.leases
                if may_move(request := state.requests[request_id])
            ]
            if not movable:
                break
            youngest = max(movable, key=lambda request: request.arrival_index)
            why = f"resumed after {node.name} was promised to others too"
            effects += queue_again(state, youngest, why)
    return effects


def may_move(request: Request) -> bool:
    """Whether it can wait again, and go on at another node."""
    return request.first_token_s is None or looks_back(request.request.sampling) is None


def place_given(state: State, event: PlaceGiven, now_s: float) -> list[Effect]:
    """The leader has chosen. What cannot be obeyed here ends the attempt; the leader hears of it by
    the request's next generation."""
    request = state.requests.get(event.request_id)
    if request is None:
        return []
    if request.generation == event.generation and request.phase is not Phase.QUEUED:
        _grant_less(state, request, event)
        return []
    if not _is_news(request, event.generation):
        return []
    effects = _begin_attempt(state, request, event.generation, event.interruption)
    if (why := _obstacle(state, request, event.plan)) is not None:
        return [*effects, *_begin_attempt(state, request, request.generation + 1, why)]
    state.queue.remove(request.id)
    request.enter(Phase.PREFILLING)
    if request.first_token_s is None:
        request.placed_s = now_s
    request.plan = event.plan
    request.first_tokens = {}
    request.grant(event.granted_tokens)
    request.is_whole = event.is_whole
    request.prefill, request.decode = event.plan.prefill_node, event.plan.decode_node
    if not request.announced:
        request.announced = True
        effects.append(Announce(request_id=request.id, plan=event.plan))
    is_local = event.plan.path is Path.LOCAL
    if request.decode is not None:
        node = state.nodes[request.decode]
        lease(request, node, output_tokens=event.granted_tokens, computes=is_local, now_s=now_s)
        effects.append(submit(request, node, "local" if is_local else "decode", now_s))
    if request.prefill is not None:
        node = state.nodes[request.prefill]
        lease(request, node, output_tokens=1, computes=True, now_s=now_s)
        kind = "local" if request.decode is None else "prefill"
        effects.append(submit(request, node, kind, now_s))
    return effects


def _grant_less(state: State, request: Request, event: PlaceGiven) -> None:
    """The leader has less room than was promised for what runs: it hears of growth that much
    earlier. An output that is longer by now grows with its next token."""
    if request.decode is None or event.plan.decode_node != request.decode:
        return
    if event.granted_tokens >= request.granted_tokens:
        return
    request.grant(event.granted_tokens)
    node = state.nodes[request.decode]
    blocks = blocks_of(request, node, output_tokens=event.granted_tokens)
    node.lower(request.id, blocks=blocks)


def place_taken(state: State, event: PlaceTaken) -> list[Effect]:
    """It waits here as it does at the leader."""
    request = state.requests.get(event.request_id)
    if request is None or request.generation >= event.generation:
        return []
    request.is_whole = request.is_whole or event.is_whole
    return _begin_attempt(state, request, event.generation, event.interruption)


def refused(state: State, event: RequestRefused) -> list[Effect]:
    """It is over."""
    request = state.requests.get(event.request_id)
    if request is None:
        return []
    return [*state.cancels(request), *state.end(request), fail(request, event.error)]


def grew(state: State, event: SequenceGrew) -> list[Effect]:
    """The leader hears of it too and grants as much, or takes the place away. Its leases are the
    ones that count: ours never stop a stream."""
    request = state.current(event.request_id, event.generation)
    if request is None or request.decode is None or request.phase is Phase.QUEUED:
        return []
    if event.output_token_count < request.grows_at_tokens:
        return []
    request.grant(next_grant(request, event.output_token_count))
    node = state.nodes[request.decode]
    blocks = blocks_of(request, node, output_tokens=request.granted_tokens)
    node.grow(request.id, blocks=max(blocks, node.leases[request.id]))
    return []


def lease(
    request: Request, node: Node, *, output_tokens: int, computes: bool, now_s: float
) -> None:
    """Blocks for the prompt and so much output, as the leader leases them."""
    longest = 1 if node.name == request.prefill else request.request.sampling.max_tokens
    node.lease(
        request.id,
        blocks=blocks_of(request, node, output_tokens=output_tokens),
        claim=blocks_of(request, node, output_tokens=longest),
        sequence_count=len(request.open_choices),
        queued_tokens=len(request.request.prompt_token_ids) if computes else 0,
        now_s=now_s,
    )


def blocks_of(request: Request, node: Node, *, output_tokens: int) -> int:
    """Of all its choices that have not ended."""
    return node.choice_blocks(
        prompt_token_count=len(request.request.prompt_token_ids),
        output_token_count=output_tokens,
        choice_count=len(request.open_choices),
    )


def _is_news(request: Request, generation: int) -> bool:
    """Of a later attempt, or of the one that waits."""
    if request.generation == generation:
        return request.phase is Phase.QUEUED
    return request.generation < generation


def _begin_attempt(
    state: State, request: Request, generation: int, interruption: str
) -> list[Effect]:
    """End what runs; the request waits with the leader's generation."""
    effects: list[Effect] = []
    if request.phase is not Phase.QUEUED:
        effects += queue_again(state, request, interruption)
    if request.generation != generation:
        state.queue.remove(request.id)
        request.generation = generation
        state.enqueue(request)
    request.interruption = interruption
    return effects


def _obstacle(state: State, request: Request, plan: Plan) -> str | None:
    """Why a placement cannot be obeyed here; None if it can."""
    names: list[NodeName] = [
        name for name in (plan.prefill_node, plan.decode_node) if name is not None
    ]
    for name in names:
        node = state.nodes.get(name)
        if node is None or node.state is NodeState.LOST:
            return f"the scheduler that holds its client does not reach node {name}"
    if len(names) == 2 and request.first_token_s is not None:
        # Chosen before the leader heard of it; a token that was shown cannot travel.
        return "its client has a token already"
    return None
