"""One attempt of a request after another: from its placement to the tokens of its last node."""

from typing import assert_never

from pdd.core.errors import InvalidRequest, PddError, RequestFailed
from pdd.core.frames import FinishReason
from pdd.core.requests import Path, Plan
from pdd.scheduler.effects import Announce, Cancel, Effect, GiveFirstToken, Submit
from pdd.scheduler.endings import complete, fail, too_late
from pdd.scheduler.events import (
    DecodeReady,
    FailureKind,
    FirstTokenSampled,
    JobFailed,
    SequenceStarted,
)
from pdd.scheduler.nodes import Node
from pdd.scheduler.policy import Placement, looks_back
from pdd.scheduler.requests import Phase, Request
from pdd.scheduler.state import State


def start(state: State, request: Request, placement: Placement, now_s: float) -> list[Effect]:
    """Take the leases of a placement and give out its jobs."""
    prompt_tokens = len(request.request.prompt_token_ids)
    request.enter(Phase.PREFILLING)
    if request.first_token_s is None:  # else the client waits for decoding, not in a queue
        request.placed_s = now_s
    request.prefill = placement.prefill.name if placement.prefill else None
    request.decode = placement.decode.name if placement.decode else None
    request.plan = Plan(
        path=placement.path,
        prefill_node=request.prefill,
        decode_node=request.decode,
        reason=placement.reason,
    )
    effects: list[Effect] = []
    if not request.announced:
        request.announced = True
        effects.append(Announce(request_id=request.request.request_id, plan=request.plan))
    if placement.decode is not None:
        tokens = prompt_tokens + request.request.sampling.max_tokens
        placement.decode.lease(
            request.request.request_id,
            blocks=placement.decode.blocks_for(tokens),
            queued_tokens=prompt_tokens if placement.path is Path.LOCAL else 0,
        )
        kind = "local" if placement.path is Path.LOCAL else "decode"
        effects.append(_submit(request, placement.decode, kind, now_s))
    if placement.prefill is not None:
        placement.prefill.lease(
            request.request.request_id,
            blocks=placement.prefill.blocks_for(prompt_tokens + 1),
            queued_tokens=prompt_tokens,
        )
        kind = "prefill" if placement.decode is not None else "local"
        effects.append(_submit(request, placement.prefill, kind, now_s))
    return effects


def _submit(request: Request, node: Node, kind: str, now_s: float) -> Submit:
    return Submit(
        node=node.name,
        request=request.request,
        generation=request.generation,
        kind=kind,
        source=request.prefill if kind == "decode" else None,
        deadline_s=max(request.deadline_s - now_s, 0.1),
    )


def first_token(state: State, event: FirstTokenSampled, now_s: float) -> list[Effect]:
    """The prefill node is done: the decode node needs the token, or there is nothing more to do."""
    request = state.current(event.request_id, event.generation)
    if request is None or request.phase is not Phase.PREFILLING:
        return []
    if event.node != request.prefill:
        return []
    request.first_token_s = now_s
    request.first_token_generation = event.generation
    request.prefill_facts = event.finish.facts
    if event.finish.reason is not FinishReason.HANDOVER:
        return complete(state, request, event.finish, event.node, now_s)
    assert request.decode is not None
    request.enter(Phase.TRANSFERRING)
    state.nodes[event.node].queued_tokens.pop(event.request_id, None)
    return [
        GiveFirstToken(
            node=request.decode,
            request_id=event.request_id,
            generation=event.generation,
            token_id=event.token_id,
        )
    ]


def decode_ready(state: State, event: DecodeReady, now_s: float) -> list[Effect]:
    """The blocks are over: the prefill node's part ends."""
    request = state.current(event.request_id, event.generation)
    if request is None or request.phase is not Phase.TRANSFERRING:
        return []
    request.enter(Phase.DECODING)
    request.ready_s = now_s
    assert request.prefill is not None
    prefill = state.nodes[request.prefill]
    prefill.release(event.request_id)
    # Nobody needs its blocks any more, whether they arrived or are computed anew.
    return [Cancel(node=prefill.name, request_id=event.request_id)]


def started(state: State, event: SequenceStarted, now_s: float) -> list[Effect]:
    """A local job's tokens flow: its prompt is no work ahead any more."""
    request = state.current(event.request_id, event.generation)
    if request is None or request.phase is not Phase.PREFILLING:
        return []
    request.enter(Phase.DECODING)
    if request.first_token_s is None:
        request.first_token_s = now_s
        request.first_token_generation = event.generation
    request.ready_s = now_s
    if request.decode is not None:
        state.nodes[request.decode].queued_tokens.pop(event.request_id, None)
    return []


def job_failed(state: State, event: JobFailed, now_s: float) -> list[Effect]:
    """Another attempt, or the end, by whose fault it was."""
    request = state.current(event.request_id, event.generation)
    if request is None or request.phase is Phase.QUEUED:
        return []
    if event.node not in (request.prefill, request.decode):
        return []
    if request.phase is Phase.DECODING and event.node != request.runs_on():
        return []  # the prefill node's part was over already
    match event.kind:
        case FailureKind.INVALID:
            error: PddError = InvalidRequest(event.message, code="invalid_value")
        case FailureKind.DEADLINE:
            error = too_late(request)
        case FailureKind.ENGINE:
            identity = state.nodes[event.node].identity
            request.rests_until_s[identity] = now_s + state.settings.retry_pause_s
            request.failed_attempt_count += 1
            return try_again(state, request, f"node {event.node}: {event.message}")
        case _:
            assert_never(event.kind)
    return [*state.cancels(request), *state.end(request), fail(request, error)]


def try_again(state: State, request: Request, why: str) -> list[Effect]:
    """Give up the present attempt; queue the next one ahead of everybody new."""
    effects: list[Effect] = [*state.cancels(request)]
    parameter = looks_back(request.request.sampling)
    if request.failed_attempt_count >= state.settings.attempt_count_max:
        why = f"{why}; gave up after {request.failed_attempt_count} failed attempts"
    elif request.first_token_s is not None and parameter is not None:
        why = f"{why}; output with {parameter} cannot be continued on another engine"
    else:
        state.release(request)
        request.enter(Phase.QUEUED)
        request.generation += 1
        state.enqueue(request)
        return effects
    return [*effects, *state.end(request), fail(request, RequestFailed(why))]
