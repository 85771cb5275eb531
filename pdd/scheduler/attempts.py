"""One attempt of a request after another: from its placement to the tokens of its last node."""

from typing import assert_never

from pdd.core.errors import InvalidRequest, PddError, RequestFailed
from pdd.core.frames import EngineFacts, FinishReason
from pdd.core.identity import NodeName
from pdd.core.requests import Path, Plan
from pdd.scheduler.effects import Announce, Cancel, Effect, GiveFirstToken, Submit
from pdd.scheduler.endings import complete, fail, shrink_leases, too_late
from pdd.scheduler.events import (
    DecodeReady,
    FailureKind,
    FirstTokenSampled,
    JobFailed,
    SequenceStarted,
)
from pdd.scheduler.nodes import Node
from pdd.scheduler.policy.candidate import Candidate, Question
from pdd.scheduler.policy.decider import looks_back
from pdd.scheduler.policy.filters import is_large
from pdd.scheduler.policy.place import Placement
from pdd.scheduler.requests import Phase, Request
from pdd.scheduler.roles import ends
from pdd.scheduler.state import State


def start(state: State, request: Request, question: Question, placement: Placement) -> list[Effect]:
    """Take the leases of a placement and give out its jobs."""
    now_s = question.now_s
    request.enter(Phase.PREFILLING)
    if request.first_token_s is None:  # else the client waits for decoding, not in a queue
        request.placed_s = now_s
    request.grant(question.granted_output_tokens)
    if request.blocked_s is not None:
        request.waited_for_prefill = state.roles.waits_for_prefill
    if request.early_s is not None:
        request.waited_for_prefill = True
    request.waits_no_longer()
    request.first_tokens = {}
    state.counts.placed += 1
    state.policy.remember(question, placement)
    request.prefill = placement.prefill.name if placement.prefill else None
    request.decode = placement.decode.name if placement.decode else None
    request.plan = Plan(
        path=placement.path,
        prefill_node=request.prefill,
        decode_node=request.decode,
        reason=placement.reason,
        pull=placement.pull,
    )
    effects: list[Effect] = []
    if not request.announced:
        request.announced = True
        effects.append(Announce(request_id=request.request.request_id, plan=request.plan))
    if placement.decode is not None:
        computes = placement.path is Path.LOCAL
        tokens = placement.decode.remainder_tokens if computes else 0
        _lease(state, request, question, placement.decode, computed_tokens=tokens)
        node = placement.decode.node
        if not computes:
            size_bytes = node.blocks_for(placement.decode.remainder_tokens) * node.block_bytes
            node.expect(request.id, size_bytes=size_bytes)
        effects.append(submit(request, node, "local" if computes else "decode", now_s))
    if placement.prefill is not None:
        tokens = placement.prefill.remainder_tokens - placement.pulled_tokens
        _lease(state, request, question, placement.prefill, computed_tokens=tokens)
        kind = "prefill" if placement.decode is not None else "local"
        effects.append(submit(request, placement.prefill.node, kind, now_s))
    return effects


def _lease(
    state: State,
    request: Request,
    question: Question,
    candidate: Candidate,
    *,
    computed_tokens: int,
) -> None:
    """``computed_tokens``: of the prompt, on this node; 0 where another one computes it."""
    candidate.node.lease(
        request.id,
        blocks=candidate.blocks,
        claim=candidate.claim,
        sequence_count=question.choice_count,
        queued_tokens=computed_tokens,
        is_long=question.is_long or is_large(candidate, state.settings.policy),
        now_s=question.now_s,
    )
    if computed_tokens:
        request.cached_guess = (candidate.name, candidate.cached_tokens)


def submit(request: Request, node: Node, kind: str, now_s: float) -> Submit:
    """A job of its present attempt."""
    assert request.plan is not None
    pull = None if kind == "local" else request.plan.pull
    source = request.prefill if kind == "decode" else None
    return Submit(
        node=node.name,
        request=request.request,
        generation=request.generation,
        kind=kind,
        source=request.decode if kind == "prefill" and pull is not None else source,
        deadline_s=max(request.deadline_s - now_s, 0.1),
        choices=request.open_choices,
        pull=pull,
    )


def first_token(state: State, event: FirstTokenSampled, now_s: float) -> list[Effect]:
    """The prefill node has the first token of a choice. When it has those of all, the decode node
    needs them, or there is nothing more to do."""
    request = state.current(event.request_id, event.generation)
    if request is None or request.phase is not Phase.PREFILLING:
        return []
    choice = event.choice_index
    if event.node != request.prefill or not request.awaits_first_token(choice):
        return []
    if request.first_token_s is None:
        request.first_token_s = now_s
        request.first_token_generation = event.generation
    request.prefill_facts = event.finish.facts
    _prompt_computed(state, request, event.node, now_s, facts=event.finish.facts)
    if event.finish.reason is FinishReason.HANDOVER:
        request.first_tokens[choice] = event.token_id
    else:
        request.said_tokens += 1
        request.close_choice(choice)
        if not request.open_choices:
            ends.finished(state, request, now_s, output_token_count=1)
            return complete(state, request, event.finish, event.node, now_s)
        shrink_leases(state, request)
    if any(request.awaits_first_token(one) for one in request.open_choices):
        return []
    assert request.decode is not None
    request.enter(Phase.TRANSFERRING)
    return [
        GiveFirstToken(
            node=request.decode,
            request_id=event.request_id,
            generation=event.generation,
            token_ids=dict(request.first_tokens),
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
    assert request.decode is not None
    assert request.first_token_s is not None
    state.nodes[request.decode].received(request.id)
    state.estimates.observe_transfer(
        request.prefill,
        request.decode,
        size_bytes=event.transferred_bytes,
        transfer_s=event.transfer_s,
        waited_s=max(now_s - request.first_token_s, 0.0),
        now_s=now_s,
    )
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
    runs_on = request.runs_on()
    assert runs_on is not None
    _prompt_computed(state, request, runs_on, now_s, facts=EngineFacts())
    return []


def _prompt_computed(
    state: State, request: Request, name: NodeName, now_s: float, *, facts: EngineFacts
) -> None:
    """Learn how fast the node is from what it did since the prompt before, and how fast a prefix
    came that it pulled for it."""
    node = state.nodes[name]
    tokens = facts.computed_prompt_tokens or node.queued_tokens.get(request.id, 0)
    worked_s = node.computed(request.id, now_s=now_s)
    if worked_s is None:
        return  # another choice of this prompt has told it
    if facts.pull_s > 0.0 and request.decode is not None:
        state.estimates.observe_pull(
            request.decode,
            name,
            size_bytes=facts.pulled_bytes,
            pull_s=facts.pull_s,
            is_complete=facts.pulled_tokens > 0,
            now_s=now_s,
        )
    else:  # some of a pulled one's time was spent waiting
        state.estimates.observe_prefill(name, tokens, worked_s, now_s=now_s)


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
        case FailureKind.STOPPED:
            return try_again(state, request, f"node {event.node}: {event.message}")
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
        return queue_again(state, request, "resumed after a node was lost")
    return [*effects, *state.end(request), fail(request, RequestFailed(why))]


def queue_again(state: State, request: Request, interruption: str) -> list[Effect]:
    """End the present attempt; the next one goes before everybody new."""
    effects: list[Effect] = [*state.cancels(request)]
    state.release(request)
    request.enter(Phase.QUEUED)
    request.generation += 1
    request.interruption = interruption
    state.enqueue(request)
    return effects
