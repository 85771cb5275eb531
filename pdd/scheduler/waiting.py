"""Who goes next, of those that wait: by class, then by tenant, then by arrival.

* Requests that were interrupted go before all new ones, by arrival.
* *Class*: the request's priority (lower is more urgent) less one for every ``ageing_s`` that it has
  waited. Whoever waits becomes more urgent than everybody who comes later: nobody starves.
* *Tenant*: within a class the tenant that holds the least of the cluster's blocks goes first, so
  that one with a thousand requests cannot keep out one with two.

Who finds no room is passed by those that do (*backfill*). When the first in turn has waited for
``patience_s``, the node with the most room is kept for it: others may not use that node, except
that short requests may use what long ones are not given anyway.
"""

from collections import Counter, deque
from collections.abc import Iterator
from heapq import heapify, heappop, heapreplace

from pdd.core.identity import NodeName, RequestId, Role
from pdd.scheduler.requests import Request
from pdd.scheduler.state import State


def in_turn(state: State, now_s: float) -> Iterator[Request]:
    """Those that wait, each when its turn comes; who was placed meanwhile counts for the next."""
    classes: dict[tuple[bool, int], dict[str, deque[Request]]] = {}
    for request_id in state.queue:  # by arrival, within each class
        request = state.requests[request_id]
        tenants = classes.setdefault(_class(state, request, now_s), {})
        tenants.setdefault(request.request.tenant, deque()).append(request)
    held: Counter[str] | None = None
    for _, tenants in sorted(classes.items(), key=lambda item: item[0]):
        if len(tenants) == 1 and held is None:  # what others hold matters to nobody here
            (alone,) = tenants.values()
            yield from alone
            continue
        if held is None:
            held = held_blocks(state)
        yield from _shared(state, tenants, held)


def _shared(
    state: State, tenants: dict[str, deque[Request]], held: Counter[str]
) -> Iterator[Request]:
    """The requests of one class. Only a placement changes what a tenant holds, and only its own."""
    turns = [(held[name], queue[0].arrival_index, name) for name, queue in tenants.items()]
    heapify(turns)
    while turns:
        name = turns[0][2]
        queue = tenants[name]
        request = queue.popleft()
        yield request
        held[name] += _held(state, request)
        if queue:
            heapreplace(turns, (held[name], queue[0].arrival_index, name))
        else:
            heappop(turns)


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


def _class(state: State, request: Request, now_s: float) -> tuple[bool, int]:
    settings = state.settings.queue
    limit = settings.class_limit
    priority = min(max(request.request.priority, -limit), limit)
    waited_s = max(now_s - request.arrived_s, 0.0)
    return request.generation == 0, priority - int(waited_s / settings.ageing_s)


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
