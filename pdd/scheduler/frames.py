"""Which frames a node may send for an attempt. Asked before a client sees anything of them.

A frame is another process's word. One that is out of place fails its attempt; shown first and
checked afterwards, its tokens could not be taken back, and a retry would not join them.
"""

from pdd.core.frames import FinishReason, Frame
from pdd.core.identity import NodeName
from pdd.core.requests import Path
from pdd.scheduler.requests import Phase, Request


def takes_part(request: Request, node: NodeName) -> bool:
    """Whether the node may still send frames for the present attempt.

    False for a prefill node that has handed over: what it repeats is known already.
    """
    if request.phase in (Phase.QUEUED, Phase.FINISHED):
        return False
    if hands_over(request, node):
        return request.phase is Phase.PREFILLING
    return node == request.runs_on()


def hands_over(request: Request, node: NodeName) -> bool:
    """Whether the node computes only the first token, for another one to go on."""
    return node == request.prefill and request.decode is not None


def fault(frame: Frame, request: Request, node: NodeName) -> str | None:
    """What is wrong with a frame of a node that takes part; None if nothing is."""
    if not 0 <= frame.choice_index < request.request.choice_count:
        return f"choice {frame.choice_index} of {request.request.choice_count} was not asked for"
    reason = frame.finish.reason if frame.finish is not None else None
    if reason is FinishReason.ABORT:
        return "the node gave the request up by itself"
    if hands_over(request, node):
        if reason is None or len(frame.token_ids) != 1 or frame.first_token_index != 0:
            return (
                f"a prefill job gave {len(frame.token_ids)} tokens from index "
                f"{frame.first_token_index}, not the first one at its end"
            )
        return None
    if reason is FinishReason.HANDOVER:
        return "the node hands over, and no other one is there to go on"
    waits_for_another = request.path() is Path.DISAGGREGATED and request.decode is not None
    if waits_for_another and request.phase is Phase.PREFILLING:
        return "a decode job gave tokens before it was given the first one"
    return None
