"""How a request ended, told to ``goodput`` as the other modules see it."""

from pdd.core.identity import Role
from pdd.scheduler.requests import Phase, Request
from pdd.scheduler.roles.goodput import Outcome
from pdd.scheduler.state import State


def finished(state: State, request: Request, now_s: float, *, output_token_count: int) -> None:
    """By itself. ``output_token_count``: over all attempts; 0 where it is not known."""
    first_s = request.first_token_s if request.first_token_s is not None else now_s
    placed_s = request.placed_s if request.placed_s is not None else first_s
    tpot_s = None
    if output_token_count > 1:
        tpot_s = max(now_s - first_s, 0.0) / (output_token_count - 1)
    state.roles.goodput.observe(
        arrived_s=request.arrived_s,
        now_s=now_s,
        queue_s=max(placed_s - request.arrived_s, 0.0),
        prefill_s=max(first_s - placed_s, 0.0),
        tpot_s=tpot_s,
        queue_is_prefill=request.waited_for_prefill,
    )


def failed(state: State, request: Request, now_s: float) -> None:
    """Refused for want of room, or out of time."""
    state.roles.goodput.failed(
        arrived_s=request.arrived_s, now_s=now_s, late_by=_waits_for(state, request)
    )


def overdue(state: State, now_s: float) -> list[Outcome]:
    """Requests without a first token that are late already."""
    limit_s = state.settings.roles.ttft_s
    return [
        Outcome(request.arrived_s, now_s, _waits_for(state, request))
        for request in state.requests.values()
        if request.first_token_s is None and now_s - request.arrived_s > limit_s
    ]


def _waits_for(state: State, request: Request) -> Role:
    """The duty that is to do something for it next."""
    if request.phase is Phase.QUEUED:
        return Role.PREFILL if state.roles.waits_for_prefill else Role.DECODE
    return Role.PREFILL if request.phase is Phase.PREFILLING else Role.DECODE
