"""How requests end: finished, failed, cancelled, or out of time. Each exactly once."""

from dataclasses import replace

from pdd.core.errors import DeadlineExceeded, PddError
from pdd.core.frames import Finish
from pdd.core.identity import NodeName
from pdd.core.requests import Path
from pdd.scheduler.effects import Complete, Effect, Fail, StageTimes
from pdd.scheduler.events import RequestCancelled, SequenceFinished
from pdd.scheduler.requests import Phase, Request
from pdd.scheduler.roles import ends
from pdd.scheduler.state import State


def complete(
    state: State, request: Request, finish: Finish, node: NodeName, now_s: float
) -> list[Effect]:
    """``node`` says that the output is complete: close the account."""
    assert request.plan is not None
    on_decode_node = node == request.decode
    prompt_facts = (
        finish.facts
        if node != request.decode or request.path() is Path.LOCAL
        else request.prefill_facts
    )
    state.completions_s.append(now_s)
    recomputed = (
        on_decode_node
        and request.path() is Path.DISAGGREGATED
        and finish.facts.computed_prompt_tokens - finish.facts.forked_prompt_tokens > 1
    )
    plan = request.plan
    if recomputed:
        plan = replace(
            plan,
            path=Path.LOCAL,
            reason="blocks were lost: the decode node computed the prompt",
        )
    told = Complete(
        request_id=request.request.request_id,
        plan=plan,
        prompt_token_count=len(request.request.prompt_token_ids),
        finish=finish,
        times=_stage_times(request, finish, now_s),
        # A resumed job's prompt holds the emitted tokens too.
        cached_tokens=min(
            prompt_facts.cached_tokens + prompt_facts.pulled_tokens,
            len(request.request.prompt_token_ids),
        ),
        transferred_bytes=finish.facts.transferred_bytes if on_decode_node else 0,
        decode_computed_prompt_tokens=(
            finish.facts.computed_prompt_tokens if on_decode_node else 0
        ),
        pulled_tokens=prompt_facts.pulled_tokens,
        pulled_bytes=prompt_facts.pulled_bytes,
        prompt_recomputed=recomputed,
    )
    # The node that finished has forgotten the request; the other one may still hold blocks.
    effects: list[Effect] = [cancel for cancel in state.cancels(request) if cancel.node != node]
    state.settle(request, request.said_tokens)
    return [*effects, *state.end(request), told]


def finished(state: State, event: SequenceFinished, now_s: float) -> list[Effect]:
    """The node that generates has said the last token of a choice; perhaps the last at all."""
    request = state.current(event.request_id, event.generation)
    if request is None or request.phase is Phase.QUEUED or event.node != request.runs_on():
        return []
    if event.choice_index not in request.open_choices:
        return []
    _learn_from(state, request, event, now_s)
    request.said_tokens += event.output_token_count
    request.close_choice(event.choice_index)
    if request.open_choices:
        shrink_leases(state, request)
        return []
    ends.finished(state, request, now_s, output_token_count=event.output_token_count)
    return complete(state, request, event.finish, event.node, now_s)


def shrink_leases(state: State, request: Request) -> None:
    """A choice has ended before the others: its own blocks are free for somebody else."""
    count = len(request.open_choices)
    prompt_token_count = len(request.request.prompt_token_ids)
    for name, granted, longest in (
        (request.prefill, 1, 1),
        (request.decode, request.granted_tokens, request.request.sampling.max_tokens),
    ):
        node = state.nodes.get(name) if name is not None else None
        if node is None or request.id not in node.leases:
            continue
        blocks, claim = (
            node.choice_blocks(
                prompt_token_count=prompt_token_count,
                output_token_count=tokens,
                choice_count=count,
            )
            for tokens in (granted, longest)
        )
        node.shrink(request.id, blocks=blocks, claim=claim)


def _learn_from(state: State, request: Request, event: SequenceFinished, now_s: float) -> None:
    """How long outputs are, how fast they come, and whether the prefix was where it was guessed."""
    count = event.output_token_count
    if count > 0:
        state.estimates.output(request.request.sampling.max_tokens).observe(count)
    if count > 1 and request.generation == 0 and request.ready_s is not None:
        decoded_s = max(now_s - request.ready_s, 0.0)
        state.estimates.observe_decode(event.node, count - 1, decoded_s, now_s=now_s)
    if request.cached_guess is not None and request.generation == 0:
        name, guess = request.cached_guess
        facts = event.finish.facts if name == event.node else request.prefill_facts
        node = state.nodes.get(name)
        if node is not None and 2 * facts.cached_tokens < guess:
            state.policy.forget_prefix(node, request.keys)


def cancelled(state: State, event: RequestCancelled) -> list[Effect]:
    """The client is gone, in whatever phase its request is."""
    request = state.requests.get(event.request_id)
    if request is None:
        return []
    if event.output_token_count is not None:
        state.settle(request, request.said_tokens + event.output_token_count)
    return [*state.cancels(request), *state.end(request)]


def fail(request: Request, error: PddError) -> Effect:
    """Tell the client why."""
    return Fail(request_id=request.request.request_id, error=error)


def too_late(request: Request) -> DeadlineExceeded:
    """The request's own deadline has passed."""
    limit_s = request.request.deadline_s
    return DeadlineExceeded(f"not finished within its deadline of {limit_s:g} s")


def _stage_times(request: Request, finish: Finish, now_s: float) -> StageTimes:
    """Cut the time from arrival to end at the moments the scheduler saw itself."""
    placed_s = request.placed_s if request.placed_s is not None else now_s
    first_s = request.first_token_s if request.first_token_s is not None else now_s
    handed_over = request.path() is Path.DISAGGREGATED and request.decode is not None
    facts = request.prefill_facts if handed_over or request.resumed else finish.facts
    queue_s = max(placed_s - request.arrived_s, 0.0)
    engine_queue_s = min(max(facts.queue_s, 0.0), max(first_s - placed_s, 0.0))
    ready_s = request.ready_s if handed_over and request.ready_s is not None else first_s
    ready_s = max(ready_s, first_s)
    return StageTimes(
        queue_s=queue_s + engine_queue_s,
        prefill_s=max(first_s - placed_s - engine_queue_s, 0.0),
        transfer_s=ready_s - first_s,
        decode_s=max(now_s - ready_s, 0.0),
    )


def end_overdue(state: State, now_s: float) -> list[Effect]:
    """Requests whose deadline has passed end, wherever they are."""
    effects: list[Effect] = []
    for request in list(state.requests.values()):
        if now_s >= request.deadline_s:
            ends.failed(state, request, now_s)
            effects += [
                *state.cancels(request),
                *state.end(request),
                fail(request, too_late(request)),
            ]
    return effects
