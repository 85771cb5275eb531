"""Requests that other schedulers hold, at the leader.

They have places and leases as its own requests have, and step through the same phases by what
their holders tell. What their nodes are to do is not done from here: a holder submits and cancels
itself. After a change of leaders every holder tells all it has, and is believed: what runs holds
its blocks, whoever had given them.
"""

from pdd.core.identity import NodeState
from pdd.scheduler.admission import admit
from pdd.scheduler.attempts import try_again
from pdd.scheduler.effects import Effect
from pdd.scheduler.following import blocks_of, lease
from pdd.scheduler.group_events import AttemptEnded, HolderLost, RequestTold
from pdd.scheduler.prefixes import caller_name
from pdd.scheduler.requests import GROWTH_AHEAD_TOKENS, Phase, Request
from pdd.scheduler.state import State


def told(state: State, event: RequestTold, now_s: float) -> list[Effect]:
    """A request as it stands. One that is known is replaced: its holder knows better what runs."""
    former = state.requests.get(event.request.request_id)
    if former is not None:
        if not former.holder:
            return []  # this scheduler holds it by now
        state.end(former)
    state.arrival_count += 1
    request = Request(
        request=event.request,
        holder=event.holder,
        arrived_s=now_s - event.age_s,
        arrival_index=state.arrival_count,
        keys=event.keys,
        caller=caller_name(tenant=event.request.tenant, key=event.caller_key),
        generation=event.generation,
        interruption=event.interruption,
        is_whole=event.is_whole,
        announced=True,
    )
    request.grant(event.granted_tokens)
    is_new = event.phase is Phase.QUEUED and event.generation == 0
    if is_new and state.leads:
        return admit(state, request, now_s)
    state.add(request)
    if event.open_choices is not None:
        request.open_choices = event.open_choices
    if event.output_token_count or event.phase in (Phase.TRANSFERRING, Phase.DECODING):
        request.first_token_s = now_s
        request.first_token_generation = event.generation
    if event.phase is not Phase.QUEUED and event.plan is not None:
        request.plan = event.plan
        request.prefill, request.decode = event.plan.prefill_node, event.plan.decode_node
        if _take_leases(state, request, event, now_s):
            request.phase = event.phase
            # Their holder hands them over; here it only counts which have come.
            request.first_tokens = dict.fromkeys(event.first_token_choices, 0)
            request.ready_s = now_s if event.phase is Phase.DECODING else None
            return []
        request.generation += 1
        request.interruption = "resumed after its nodes had no room under a new leader"
    state.enqueue(request)
    return []


def _take_leases(state: State, request: Request, event: RequestTold, now_s: float) -> bool:
    """All that its attempt needs, or none. Where two leaders have promised the same blocks, a
    running request keeps what it is about to fill."""
    computes = request.prefill if request.prefill is not None else request.decode
    needs_prefill = request.decode is None or event.phase in (Phase.PREFILLING, Phase.TRANSFERRING)
    wanted = [(request.decode, request.granted_tokens)]
    if needs_prefill:
        wanted.append((request.prefill, 1))
    for name, tokens in wanted:
        if name is None:
            continue
        node = state.nodes.get(name)
        if node is None or node.state is NodeState.LOST:
            return False
        room_blocks = node.unleased_block_count()
        if blocks_of(request, node, output_tokens=tokens) <= room_blocks:
            continue
        least = event.output_token_count + 2 * GROWTH_AHEAD_TOKENS
        if name != request.decode or request.is_whole or least >= tokens:
            return False
        if blocks_of(request, node, output_tokens=least) > room_blocks:
            return False
        request.grant(least)
    for name, tokens in wanted:
        if name is not None:
            lease(
                request,
                state.nodes[name],
                output_tokens=request.granted_tokens if name == request.decode else tokens,
                computes=event.phase is Phase.PREFILLING and name == computes,
                now_s=now_s,
            )
    return True


def attempt_ended(state: State, event: AttemptEnded, now_s: float) -> list[Effect]:
    """Its holder waits for another place."""
    request = state.current(event.request_id, event.generation)
    if request is None or not request.holder or request.phase is Phase.QUEUED:
        return []
    if event.has_output and request.first_token_s is None:
        request.first_token_s = now_s
        request.first_token_generation = event.generation
    return try_again(state, request, event.why)


def holder_lost(state: State, event: HolderLost) -> list[Effect]:
    """Nobody reads its requests, and the nodes have given them up by now."""
    for request in [one for one in state.requests.values() if one.holder == event.holder]:
        state.end(request)
    return []
