"""Who may come in, who waits, and who goes next."""

from pdd.core.errors import AdmissionRejected, InvalidRequest, NodeUnavailable, PddError
from pdd.core.identity import Role
from pdd.core.requests import GenerateRequest
from pdd.scheduler.attempts import start
from pdd.scheduler.effects import Effect, Fail
from pdd.scheduler.events import RequestArrived
from pdd.scheduler.policy import NoRoom, place
from pdd.scheduler.requests import Request
from pdd.scheduler.state import State


def arrived(state: State, event: RequestArrived, now_s: float) -> list[Effect]:
    """Queue a new request, or refuse it at once."""
    state.arrival_count += 1
    request = Request(request=event.request, arrived_s=now_s, arrival_index=state.arrival_count)
    request_id = event.request.request_id
    assert request_id not in state.requests, f"request id {request_id} is in use"
    if len(state.queue) >= state.settings.queue_request_count_max:
        return [
            Fail(
                request_id=request_id,
                error=AdmissionRejected(
                    f"{len(state.queue)} requests are waiting, the limit is "
                    f"{state.settings.queue_request_count_max}: try again later",
                    retry_after_s=_retry_after_s(state, now_s),
                ),
            )
        ]
    verdict = place(event.request, state.nodes.values(), emitted_token_count=0)
    if isinstance(verdict, NoRoom) and not verdict.ever:
        return [Fail(request_id=request_id, error=_refusal(state, event.request, verdict))]
    state.requests[request_id] = request
    state.enqueue(request)
    return []


def place_waiting(state: State, now_s: float) -> list[Effect]:
    """In the order of ``State.turn``: nobody overtakes a request that waits for room.

    So one class is served first come, first served, and a request starves only while more
    urgent ones keep coming; waiting does not make it more urgent, its deadline ends its wait.
    One that no present node can hold, or that keeps away from a node which failed it, is
    passed by.
    """
    effects: list[Effect] = []
    for request_id in list(state.queue):
        request = state.requests[request_id]
        verdict = place(
            request.request,
            state.nodes.values(),
            emitted_token_count=0 if request.first_token_s is None else 1,
            avoid=[node for node, until_s in request.rests_until_s.items() if until_s > now_s],
        )
        if not isinstance(verdict, NoRoom):
            state.queue.remove(request_id)
            effects += start(state, request, verdict, now_s)
        elif not verdict.others_may_pass:
            break
    return effects


def _refusal(state: State, request: GenerateRequest, verdict: NoRoom) -> PddError:
    """The client's fault only if no decode node that is known could ever hold the request."""
    tokens = len(request.prompt_token_ids) + request.sampling.max_tokens
    decodes = [node for node in state.nodes.values() if node.role is Role.DECODE]
    absent = sorted(
        node.name for node in decodes if not node.takes_work and tokens <= node.token_count_max()
    )
    if absent:
        return NodeUnavailable(
            f"{verdict.reason}; {absent[0]} could hold it and is not ready: try again later"
        )
    if any(node.takes_work for node in decodes):
        return InvalidRequest(verdict.reason, field="max_tokens", code="context_length_exceeded")
    return NodeUnavailable(f"{verdict.reason}: start one, or try again later")


def _retry_after_s(state: State, now_s: float) -> float:
    """How long the present queue takes at the rate of the latest completions."""
    recent = [t for t in state.completions_s if now_s - t <= 60.0]
    if len(recent) < 2 or now_s <= recent[0]:
        return 5.0
    return min(max(len(state.queue) * (now_s - recent[0]) / len(recent), 1.0), 60.0)
