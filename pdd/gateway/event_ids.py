"""The ``id:`` of a server-sent event: how much of its request's output a client has then. Pure.

::

    r-5f0c21...:0      the opening event, no token yet
    r-5f0c21...:17     what the first 17 output tokens show; the next one has index 17
    r-5f0c21...:42f    ... and the reason of the end
    r-5f0c21...:42fu   ... and the usage

The number is that of gRPC's ``next_token_index``. A client sends the last id back as
``Last-Event-ID``, and is told what comes behind it.

Of several choices the number counts the tokens of all. That does not say how many of each, so such
a stream is not continued; repeating its request with its Idempotency-Key tells it from the start.
"""

import re
from dataclasses import dataclass

from pdd.core.errors import InvalidRequest
from pdd.core.identity import RequestId
from pdd.gateway.job import Job
from pdd.gateway.json_text import shorten

_ID = re.compile(r"(?P<request_id>.{1,128}):(?P<count>0|[1-9][0-9]{0,8})(?P<closing>f?u?)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """A place between two events. The start is before the opening event."""

    token_count: int = 0
    is_opened: bool = False
    is_finished: bool = False
    has_usage: bool = False


START = Position()


def position_of(last_event_id: str | None, *, request_id: RequestId) -> Position:
    """Where the client of a stream is; at its start without an id.

    Raises:
        InvalidRequest: this is no id of an event of that request.
    """
    if not last_event_id:
        return START
    match = _ID.fullmatch(last_event_id)
    if match is None or match["request_id"] != request_id or match["closing"] == "u":
        raise InvalidRequest(
            f"last-event-id: {shorten(last_event_id)} is no id of an event of {request_id}; send "
            "the id of the last event that came, or none for all of the stream",
            field="last-event-id",
            code="invalid_event_id",
        )
    return Position(
        token_count=int(match["count"]),
        is_opened=True,
        is_finished="f" in match["closing"],
        has_usage="u" in match["closing"],
    )


def refuse_choices(job: Job) -> None:
    """Raises InvalidRequest where a position says too little; see the module."""
    if job.request.choice_count > 1:
        raise InvalidRequest(
            f"request {job.request.request_id} has n = {job.request.choice_count} choices and "
            "cannot be continued in the middle; repeat it as it was, with its Idempotency-Key",
            field="n",
            code="not_resumable",
        )


def invalid_position(token_count: int, why: str) -> InvalidRequest:
    """An id that looks like one, of an event that there never was."""
    return InvalidRequest(
        f"to be continued after {token_count} output tokens: {why}; name the last event that came",
        code="invalid_event_id",
    )
