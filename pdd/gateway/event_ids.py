"""The ``id:`` of a server-sent event: how much of its request's output a client has then. Pure.

::

    r-5f0c21...:0         the opening event, no token yet
    r-5f0c21...:17        what the first 17 output tokens show; the next one has index 17
    r-5f0c21...:42f       ... and the reason of the end
    r-5f0c21...:42fu      ... and the usage
    r-5f0c21...:17,42f,-  of three choices: 17 tokens, all of 42, and not even the opening event

The numbers are those of gRPC's ``ResumeFrom``. A client sends the last id back as
``Last-Event-ID``, and is told what comes behind it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pdd.core.errors import InvalidRequest
from pdd.core.identity import RequestId
from pdd.gateway.json_text import shorten

_CHOICE = r"(?:-|(?:0|[1-9][0-9]{0,8})f?)"
_ID = re.compile(rf"(?P<request_id>.{{1,128}}):(?P<choices>{_CHOICE}(?:,{_CHOICE})*)(?P<usage>u?)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoicePosition:
    """What of one choice a client has seen."""

    token_count: int = 0
    is_opened: bool = False
    is_finished: bool = False


UNSEEN = ChoicePosition()


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """A place between two events. ``choices``: empty at the start, before the first event."""

    choices: tuple[ChoicePosition, ...] = ()
    has_usage: bool = False

    @property
    def token_counts(self) -> tuple[int, ...]:
        """Tokens seen of each choice; empty at the start."""
        return tuple(choice.token_count for choice in self.choices)


START = Position()


def choice_id(token_count: int, *, is_opened: bool, is_finished: bool) -> bytes:
    """What an id says of one choice."""
    if not is_opened:
        return b"-"
    return b"%df" % token_count if is_finished else b"%d" % token_count


def position_of(
    last_event_id: str | None, *, request_id: RequestId, choice_count: int = 1
) -> Position:
    """Where the client of a stream is; at its start without an id.

    Raises:
        InvalidRequest: this is no id of an event of that request.
    """
    if not last_event_id:
        return START
    match = _ID.fullmatch(last_event_id)
    if match is not None and match["request_id"] == request_id:
        choices = tuple(map(_choice_of, match["choices"].split(",")))
        all_finished = all(choice.is_finished for choice in choices)
        if len(choices) == choice_count and (all_finished or not match["usage"]):
            return Position(choices=choices, has_usage=bool(match["usage"]))
    raise InvalidRequest(
        f"last-event-id: {shorten(last_event_id)} is no id of an event of {request_id}; send "
        "the id of the last event that came, or none for all of the stream",
        field="last-event-id",
        code="invalid_event_id",
    )


def _choice_of(text: str) -> ChoicePosition:
    if text == "-":
        return UNSEEN
    count = int(text.removesuffix("f"))
    return ChoicePosition(token_count=count, is_opened=True, is_finished=text.endswith("f"))


def check_told(token_counts: Sequence[int], cuts: Sequence[int], *, what: str) -> None:
    """Raises InvalidRequest where a client says that it has seen more than there is."""
    for index, (count, cut) in enumerate(zip(token_counts, cuts, strict=False)):
        if cut > count:
            raise invalid_position(index, cut, f"{what} has {count}")


def invalid_position(choice_index: int, token_count: int, why: str) -> InvalidRequest:
    """An id that looks like one, of an event that there never was."""
    return InvalidRequest(
        f"choice {choice_index} is to be continued after {token_count} tokens: {why}; name the "
        "last event that came",
        code="invalid_event_id",
    )
