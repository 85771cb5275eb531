"""What a scheduler that is gone has left on the nodes, taken over by this one.

The nodes' word is the truth: what runs there holds its blocks, whoever asked for it. Its lease is
the least that it needs; it grows like any other (``growth``). What does not run any more needs
none: its output is read, and then it ends, or waits for a node to go on.
"""

from pdd.core.errors import RequestFailed
from pdd.core.identity import NodeName, NodeState, Role
from pdd.core.requests import Path, Plan
from pdd.scheduler.effects import Announce, Cancel, Effect
from pdd.scheduler.endings import complete, fail
from pdd.scheduler.events import HeldSequence, OutputRecovered, SequenceFound
from pdd.scheduler.nodes import Node
from pdd.scheduler.policy.decider import looks_back
from pdd.scheduler.prefixes import caller_name
from pdd.scheduler.requests import GROWTH_AHEAD_TOKENS, Phase, Request
from pdd.scheduler.state import State

_REASON = "taken over from a scheduler that is gone"


def adopt(state: State, node: Node, held: HeldSequence, now_s: float) -> list[Effect]:
    """A sequence that runs on a node. One that is known goes on as it was planned here; one for
    which there is no room any more is cancelled there and planned anew."""
    request_id = held.request.request_id
    present = state.requests.get(request_id)
    if present is not None and not present.holder:
        return [Cancel(node=node.name, request_id=request_id)]
    if present is not None:
        state.end(present)  # it was the lost scheduler's, and is this one's from now on
    request = _request(state, node.name, node.role, held, now_s)
    max_tokens = held.request.sampling.max_tokens
    request.is_whole = looks_back(held.request.sampling) is not None
    needed = held.output_token_count + 2 * GROWTH_AHEAD_TOKENS
    request.grant(max_tokens if request.is_whole else min(needed, max_tokens))
    prompt_token_count = len(held.request.prompt_token_ids)
    blocks = node.blocks_for(prompt_token_count + request.granted_tokens)
    announced = Announce(request_id=request_id, plan=_announced(request))
    if blocks > node.unleased_block_count():
        cancel = Cancel(node=node.name, request_id=request_id)
        return [announced, cancel, *_queue(state, request)]
    state.add(request)
    node.lease(
        request_id,
        blocks=blocks,
        claim=node.blocks_for(prompt_token_count + max_tokens),
        queued_tokens=0,
        now_s=now_s,
    )
    request.phase = Phase.DECODING if request.first_token_s is not None else Phase.PREFILLING
    state.counts.adopted += 1
    return [announced]


def found(state: State, event: SequenceFound, now_s: float) -> list[Effect]:
    """As at a join, of a node that is a member already."""
    node = state.nodes.get(event.node)
    if node is None or node.state is NodeState.LOST:
        return []  # its loss was told in between, and with it what ran there
    return adopt(state, node, event.held, now_s)


def output_recovered(state: State, event: OutputRecovered, now_s: float) -> list[Effect]:
    """All of a sequence that does not run any more was read: it has ended, or it waits."""
    held = event.held
    present = state.requests.get(held.request.request_id)
    if present is not None and not present.holder:
        return []
    if present is not None:
        state.end(present)  # as in ``adopt``
    node = state.nodes.get(event.node)
    role = Role.DECODE if node is None else node.role
    request = _request(state, event.node, role, held, now_s)
    announced = Announce(request_id=request.id, plan=_announced(request))
    state.counts.adopted += 1
    if event.finish is None:
        return [announced, *_queue(state, request)]
    request.phase = Phase.DECODING
    state.add(request)
    ended_s = now_s - (held.ended_age_s or 0.0)
    return [announced, *complete(state, request, event.finish, event.node, ended_s)]


def _queue(state: State, request: Request) -> list[Effect]:
    """It goes before everybody new, as after the loss of a node."""
    parameter = looks_back(request.request.sampling)
    if request.first_token_s is not None and parameter is not None:
        why = f"{_REASON}; output with {parameter} cannot be continued on another engine"
        return [fail(request, RequestFailed(why))]
    request.generation += 1
    request.interruption = "resumed after its scheduler was lost"
    state.add(request)
    state.enqueue(request)
    return []


def _request(state: State, name: NodeName, role: Role, held: HeldSequence, now_s: float) -> Request:
    """The request as the other scheduler knew it, its moments on this one's clock."""

    def moment_s(age_s: float | None) -> float | None:
        return None if age_s is None else now_s - age_s

    state.arrival_count += 1
    # A node may have changed its duty; one token alone is made by a prefill node.
    is_decode = role is Role.DECODE or held.request.sampling.max_tokens > 1
    prefill = held.prefill_node if is_decode else name
    decode = name if is_decode and name != prefill else None
    has_token = held.output_token_count > 0
    first_s = moment_s(held.first_token_age_s) if has_token else None
    return Request(
        request=held.request,
        arrived_s=now_s - held.arrived_age_s,
        arrival_index=state.arrival_count,
        keys=held.keys,
        caller=caller_name(tenant=held.request.tenant, key=held.request.affinity_key),
        generation=held.generation,
        announced=True,
        plan=Plan(
            path=Path.LOCAL if prefill is None else Path.DISAGGREGATED,
            prefill_node=prefill,
            decode_node=decode,
            reason=_REASON,
        ),
        prefill=prefill,
        decode=decode,
        placed_s=now_s - held.placed_age_s,
        first_token_s=now_s if has_token and first_s is None else first_s,
        first_token_generation=held.generation if has_token else None,
        ready_s=moment_s(held.ready_age_s) if held.ready_age_s is not None else first_s,
        prefill_facts=held.first_facts,
    )


def _announced(request: Request) -> Plan:
    assert request.plan is not None, "made with the request"
    return request.plan
