"""How a request ended, told to ``goodput`` as the other modules see it."""

from pdd.core.identity import Role
from pdd.scheduler.requests import Phase, Request
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
    waits_for_prompt = request.phase is Phase.PREFILLING or (
        request.phase is Phase.QUEUED and state.roles.waits_for_prefill
    )
    state.roles.goodput.failed(
        arrived_s=request.arrived_s,
        now_s=now_s,
        late_by=Role.PREFILL if waits_for_prompt else Role.DECODE,
    )
