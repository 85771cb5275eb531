"""Who asks for what: the list of requests of a run. Pure."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from pdd.bench.prompts import Piece
from pdd.bench.traces import HASH_BLOCK_TOKENS, TraceRequest
from pdd.core.errors import ConfigError

_OWN = 1 << 40
"""Numbers of pieces that only one request has begin here; shared ones lie below."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRequest:
    """One request, before it has a text.

    ``due_s``: offset from the start of the load; in a closed loop, earliest start of the client
    that begins with it. ``shared`` pieces come first (in a chat: the system message).
    """

    index: int
    due_s: float
    shared: tuple[Piece, ...]
    own: tuple[Piece, ...]
    output_tokens: int
    persona: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Requests that look alike.

    ``input_tokens`` in all, of which the first ``shared_tokens`` are one of ``persona_count``
    texts. ``hot_fraction`` of the requests have persona 0, the rest any of the others.
    """

    input_tokens: int
    output_tokens: int
    shared_tokens: int = 0
    persona_count: int = 1
    hot_fraction: float = 0.0


CHAT_REPLIES = Shape(
    input_tokens=2210, output_tokens=30, shared_tokens=1800, persona_count=20, hot_fraction=0.5
)
"""Short chat replies: 1,800 tokens of a persona, one of which has half of all traffic."""


def requests_of_shape(
    shape: Shape, times_s: Sequence[float], *, rng: random.Random, overhead_tokens: float = 0.0
) -> list[PlannedRequest]:
    """One request per time.

    Args:
        overhead_tokens: what the server adds to each prompt (a chat template); taken off, so that
            the server's own count comes out right.
    """
    if shape.shared_tokens > shape.input_tokens:
        raise ConfigError(
            f"{shape.shared_tokens} shared tokens are more than a prompt's {shape.input_tokens}"
        )
    own_tokens = max(1, round(shape.input_tokens - shape.shared_tokens - overhead_tokens))
    requests = []
    for index, due_s in enumerate(times_s):
        persona = _persona(shape, rng) if shape.shared_tokens else -1
        requests.append(
            PlannedRequest(
                index=index,
                due_s=due_s,
                shared=(Piece(persona, shape.shared_tokens),) if shape.shared_tokens else (),
                own=(Piece(_OWN + rng.getrandbits(32), own_tokens),),
                output_tokens=shape.output_tokens,
                persona=persona,
            )
        )
    return requests


def requests_of_trace(
    trace: Sequence[TraceRequest],
    *,
    speed: float,
    duration_s: float | None,
    request_count: int | None,
    rng: random.Random,
    overhead_tokens: float = 0.0,
) -> list[PlannedRequest]:
    """The trace, ``speed`` times as fast, up to ``duration_s`` of the run's own time.

    Requests that want no output still get one token: an endpoint gives at least that.

    Raises:
        ConfigError: nothing is left of it.
    """
    requests: list[PlannedRequest] = []
    for one in trace:
        due_s = one.at_s / speed
        if (duration_s is not None and due_s >= duration_s) or len(requests) == request_count:
            break
        left = max(1, round(one.input_tokens - overhead_tokens))
        pieces: list[Piece] = []
        for hash_id in one.hash_ids:
            if left <= 0:
                break
            pieces.append(Piece(hash_id, min(left, HASH_BLOCK_TOKENS)))
            left -= pieces[-1].token_count
        if left > 0:
            pieces.append(Piece(_OWN + rng.getrandbits(32), left))
        requests.append(
            PlannedRequest(
                index=len(requests),
                due_s=due_s,
                shared=(),
                own=tuple(pieces),
                output_tokens=max(1, one.output_tokens),
            )
        )
    if not requests:
        raise ConfigError("no request of the trace lies within the duration")
    return requests


def _persona(shape: Shape, rng: random.Random) -> int:
    if shape.persona_count == 1 or rng.random() < shape.hot_fraction:
        return 0
    return rng.randrange(1, shape.persona_count)
