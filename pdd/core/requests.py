"""A request as the scheduler sees it, and what it costs."""

from enum import StrEnum

from pdd.core.frames import Finish
from pdd.core.identity import NodeName, RequestId
from pdd.core.sampling import Sampling
from pdd.core.values import frozen

DEFAULT_TENANT = "default"
"""Whom requests belong to that name nobody."""


class Path(StrEnum):
    """Where the prompt is computed."""

    DISAGGREGATED = "disaggregated"  # on a prefill node; its KV blocks travel
    LOCAL = "local"  # on the decode node itself


@frozen
class GenerateRequest:
    """A checked request: tokenised once, here and nowhere else.

    ``affinity_key``: the caller's own name for what belongs together (``prompt_cache_key``, else
    ``user``): equal ones go to the same nodes while these have room. ``cache_salt`` and ``tenant``
    keep prefix caches apart. Lower ``priority`` runs earlier.
    ``choice_count``: outputs wanted for the one prompt (OpenAI's ``n``).
    ``deadline_s``: seconds from acceptance after which the request is ended with an error.
    ``resume``: the front door's own note, which travels with the work and lets another scheduler go
    on with it. Empty: if its scheduler is lost, the request is. ``resume_key``: what a client that
    comes back names it by instead of its id; empty where it gave no key.
    """

    request_id: RequestId
    prompt_token_ids: tuple[int, ...]
    sampling: Sampling
    tenant: str = DEFAULT_TENANT
    cache_salt: str = ""
    affinity_key: str = ""
    priority: int = 0
    choice_count: int = 1
    deadline_s: float = 600.0
    resume: bytes = b""
    resume_key: bytes = b""


@frozen
class PlannedPull:
    """A prefill node is to have the prompt's first ``token_count`` tokens, whole blocks, from the
    decode node, as far as it lacks them; what has not come after ``wait_s`` it computes."""

    token_count: int
    wait_s: float


@frozen
class Plan:
    """The scheduler's decision. ``reason`` says why this path, in words for an operator.

    ``decode_node`` is None when one token was asked for: the prefill node has it already.
    ``pull``: only where there are both.
    """

    path: Path
    prefill_node: NodeName | None
    decode_node: NodeName | None
    reason: str
    pull: PlannedPull | None = None


@frozen
class RequestUsage:
    """``usage`` and ``usage.pdd`` of a response; see README, "What every response tells you"."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    path: Path
    prefill_node: NodeName | None
    decode_node: NodeName | None
    queue_ms: float
    prefill_ms: float
    transfer_ms: float
    decode_ms: float
    transferred_bytes: int
    decode_computed_prompt_tokens: int
    pulled_tokens: int = 0
    pulled_bytes: int = 0


@frozen
class Ended:
    """How a request ended that finished by itself. ``finish``: of the choice that ended last."""

    finish: Finish
    usage: RequestUsage
