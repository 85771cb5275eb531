"""What schedulers of a group tell each other's cores. The package's first page tells who does what.

The scheduler with the client *holds* a request; the *leader* gives places. Both keep the request
and step it with the same events; what one of them decides alone is here.
"""

from dataclasses import dataclass

from pdd.core.errors import PddError
from pdd.core.identity import RequestId
from pdd.core.requests import GenerateRequest, Plan
from pdd.scheduler.requests import Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadershipChanged:
    """This scheduler gives places from now on, or no longer."""

    leads: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTold:
    """To the leader: a request that another scheduler holds, new or as it stands.

    ``request``: of its prompt only the length is known. ``holder``: the other scheduler's name.
    ``age_s``: since it was accepted. ``plan``: of the present attempt, if it runs.
    ``output_token_count``: that its client has, of its longest choice. ``open_choices``: those that
    have not ended; None: none has. ``first_token_choices``: whose first token this attempt has.
    """

    request: GenerateRequest
    holder: str
    keys: bytes = b""
    caller_key: str = ""
    age_s: float = 0.0
    generation: int = 0
    phase: Phase = Phase.QUEUED
    plan: Plan | None = None
    granted_tokens: int = 0
    is_whole: bool = False
    interruption: str = ""
    output_token_count: int = 0
    open_choices: tuple[int, ...] | None = None
    first_token_choices: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnded:
    """To the leader: the holder has given an attempt up, and waits for a place for the next one.

    ``has_output``: its client has a token, so that the next one resumes.
    """

    request_id: RequestId
    generation: int
    why: str
    has_output: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HolderLost:
    """To the leader: a scheduler has been gone for so long that nobody runs its requests."""

    holder: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceGiven:
    """From the leader: where a request's attempt ``generation`` runs."""

    request_id: RequestId
    generation: int
    plan: Plan
    granted_tokens: int
    is_whole: bool = False
    interruption: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceTaken:
    """From the leader: the attempt before ``generation`` is over, its blocks are somebody else's;
    the next one waits for room."""

    request_id: RequestId
    generation: int
    interruption: str
    is_whole: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRefused:
    """From the leader: no place now and none by waiting, or no more attempts."""

    request_id: RequestId
    error: PddError


GroupEvent = (
    LeadershipChanged
    | RequestTold
    | AttemptEnded
    | HolderLost
    | PlaceGiven
    | PlaceTaken
    | RequestRefused
)
