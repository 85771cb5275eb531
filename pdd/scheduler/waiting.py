"""Who goes next, of those that wait: by tenant, then by class, then by arrival.

* Who has room kept for it (below) goes first: its turn had come. Only what is more urgent of its
  own tenant takes that away.
* Requests that were interrupted go before all new ones, by arrival.
* *Tenant*: the one that holds the least of the cluster's blocks goes first, so that one with a
  thousand requests cannot keep out one with two, whatever priority they claim; of those that hold
  as much, the one that has waited longest. A tenant whose request has just found no room lets each
  of the others have a look before its next, so that what is looked at (``examined_count_max``) is
  shared as well.
* *Class*, within a tenant: the request's priority (lower is more urgent) less one for every
  ``ageing_s`` that it has waited. Whoever waits becomes more urgent than all that come later.

Nobody starves: behind others' requests a tenant waits only while it holds more than they do, so at
the longest until what it runs has ended; behind its own, until it has aged.

Who finds no room is passed by those that do (*backfill*). When the first in turn has waited for
``patience_s``, the node with the most room is kept for it: others may not use that node, except
that short requests may use what long ones are not given anyway.
"""

from collections import Counter
from collections.abc import Iterator
from heapq import heapify, heappop, heapreplace
from itertools import chain

from pdd.core.identity import NodeName, RequestId, Role
from pdd.scheduler.requests import Phase, Request
from pdd.scheduler.state import State

_Classes = dict[int, list[Request]]
"""What waits of one tenant, by arrival within each class."""


def in_turn(state: State, now_s: float) -> Iterator[Request]:
    """Those that wait, each when its turn comes; who was placed meanwhile counts for the next."""
    kept = _kept(state, now_s)
    interrupted: list[Request] = []
    tenants: dict[str, _Classes] = {}
    for request_id in state.queue:  # by arrival
        request = state.requests[request_id]
        if request is kept:
            continue
        if request.generation:
            interrupted.append(request)
        else:
            classes = tenants.setdefault(request.request.tenant, {})
            classes.setdefault(_class(state, request, now_s), []).append(request)
    if kept is not None:
        yield kept
    yield from interrupted
    if len(tenants) == 1:  # what others hold matters to nobody here
        (alone,) = tenants.values()
        yield from _by_class(alone)
    elif tenants:
        yield from _shared(state, tenants)


def _kept(state: State, now_s: float) -> Request | None:
    """Who has room kept for it; whoever is passed has it no longer."""
    if state.kept_for is None:
        return None
    kept = state.requests[state.kept_for[0]]
    own_class = _class(state, kept, now_s)
    if not kept.generation and any(
        other.request.tenant == kept.request.tenant and _class(state, other, now_s) < own_class
        for other in map(state.requests.__getitem__, state.queue)
    ):
        state.kept_for = None
        return None
    return kept


def _shared(state: State, tenants: dict[str, _Classes]) -> Iterator[Request]:
    """The requests of several tenants. Only a placement changes what a tenant holds, and only its
    own."""
    held = held_blocks(state)
    queues = {name: _by_class(classes) for name, classes in tenants.items()}
    turns = [
        (0, held[name], age_rank, name, next(queues[name])) for age_rank, name in enumerate(tenants)
    ]
    heapify(turns)
    while turns:
        refused_count, _, age_rank, name, request = turns[0]
        yield request
        held[name] += _held(state, request)
        following = next(queues[name], None)
        if following is None:
            heappop(turns)
            continue
        refused_count += request.phase is Phase.QUEUED
        heapreplace(turns, (refused_count, held[name], age_rank, name, following))


def _by_class(classes: _Classes) -> Iterator[Request]:
    return chain.from_iterable(classes[one] for one in sorted(classes))


def held_blocks(state: State) -> Counter[str]:
    """KV blocks that the requests of each tenant hold on decode nodes."""
    held: Counter[str] = Counter()
    for request in state.requests.values():
        held[request.request.tenant] += _held(state, request)
    return held


def _held(state: State, request: Request) -> int:
    """KV blocks that a request holds where it decodes; 0 while it waits."""
    if request.decode is None or request.decode not in state.nodes:
        return 0
    return state.nodes[request.decode].leases.get(request.id, 0)


def _class(state: State, request: Request, now_s: float) -> int:
    settings = state.settings.queue
    limit = settings.class_limit
    priority = min(max(request.request.priority, -limit), limit)
    waited_s = max(now_s - request.arrived_s, 0.0)
    return priority - int(waited_s / settings.ageing_s)


def keep_room(state: State, request: Request, *, is_long: bool, now_s: float) -> None:
    """The first in turn finds no room: from ``patience_s`` on, keep the roomiest node for it."""
    assert request.blocked_s is not None
    if state.kept_for is not None and state.kept_for[0] == request.id:
        name = state.kept_for[1]
        if name in state.nodes and state.nodes[name].takes_work:
            return
    state.kept_for = None
    if now_s - request.blocked_s < state.settings.queue.patience_s:
        return
    resting = {node for node, until_s in request.rests_until_s.items() if until_s > now_s}
    able = [
        node
        for node in state.nodes.values()
        if node.role is Role.DECODE
        and node.takes_work
        and node.identity not in resting
        and node.can_hold(
            prompt_token_count=len(request.request.prompt_token_ids),
            output_token_count=request.request.sampling.max_tokens,
            choice_count=len(request.open_choices),
        )
    ]
    if able:
        node = max(able, key=lambda node: (node.unleased_block_count(), node.name))
        state.kept_for = (request.id, node.name, is_long)


def held_for_others(
    state: State, request_id: RequestId, *, is_long: bool
) -> dict[NodeName, int] | None:
    """Nodes that keep room for another request, with the blocks that this one may use there."""
    if state.kept_for is None or state.kept_for[0] == request_id:
        return None
    _, name, kept_for_long = state.kept_for
    node = state.nodes.get(name)
    if node is None:
        return None
    free_to_use = 0
    if kept_for_long and not is_long:
        share = 1.0 - state.settings.policy.large_share_fraction
        short_block_count = sum(node.leases.values()) - node.long_block_count()
        free_to_use = max(int(share * node.usable_block_count) - short_block_count, 0)
    return {name: free_to_use}
