"""Public trace files as lists of requests. Pure: lines in, requests out.

Two formats, told apart by their first line:

* JSON lines (Mooncake): ``{"timestamp": ms, "input_length": tokens, "output_length": tokens,
  "hash_ids": [one number per 512 input tokens]}``. Equal numbers are equal blocks behind equal
  prefixes; the last block may be partial.
* CSV (Azure, 2023): ``TIMESTAMP,ContextTokens,GeneratedTokens`` with seven fractional digits.

Neither holds text. Requests are given in order of arrival, the first at 0 s.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from pdd.core.errors import ConfigError

HASH_BLOCK_TOKENS = 512
_CSV_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_TOKENS_MAX = 1 << 24


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRequest:
    """``hash_ids`` is empty where the trace does not tell what prompts share."""

    at_s: float
    input_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...] = ()


def parse_trace(lines: Iterable[str], *, name: str) -> list[TraceRequest]:
    """All requests of a trace.

    Args:
        name: of the file, for error messages.
    Raises:
        ConfigError: names file, line and what was expected there.
    """
    numbered = ((number, line.strip()) for number, line in enumerate(lines, 1))
    numbered = ((number, line) for number, line in numbered if line)
    first = next(numbered, None)
    if first is None:
        raise ConfigError(f"{name}: is empty; a trace has one request per line")
    requests: list[TraceRequest] = []
    if first[1].startswith("{"):
        requests.append(_from_json(first[1], place=f"{name}:{first[0]}"))
        requests += [_from_json(line, place=f"{name}:{number}") for number, line in numbered]
    elif tuple(first[1].split(",")) == _CSV_COLUMNS:
        requests += [_from_csv(line, place=f"{name}:{number}") for number, line in numbered]
    else:
        raise ConfigError(
            f"{name}:1: {first[1][:60]!r} begins neither a JSON object nor the header "
            f"{','.join(_CSV_COLUMNS)}"
        )
    if not requests:
        raise ConfigError(f"{name}: has a header and no request")
    requests.sort(key=lambda request: request.at_s)
    begin_s = requests[0].at_s
    return [
        TraceRequest(
            at_s=request.at_s - begin_s,
            input_tokens=request.input_tokens,
            output_tokens=request.output_tokens,
            hash_ids=request.hash_ids,
        )
        for request in requests
    ]


def _from_json(line: str, *, place: str) -> TraceRequest:
    try:
        fields = json.loads(line)
        request = TraceRequest(
            at_s=float(fields["timestamp"]) / 1e3,
            input_tokens=int(fields["input_length"]),
            output_tokens=int(fields["output_length"]),
            hash_ids=tuple(int(one) for one in fields.get("hash_ids", ())),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{place}: needs timestamp (ms), input_length and output_length: "
            f"{type(error).__name__}: {error}"
        ) from error
    return _checked(request, place=place)


def _from_csv(line: str, *, place: str) -> TraceRequest:
    try:
        stamp, context, generated = line.split(",")
        whole, _, fraction = stamp.partition(".")
        at = datetime.fromisoformat(f"{whole}.{fraction[:6] or '0':0<6}+00:00")
        request = TraceRequest(
            at_s=at.timestamp(), input_tokens=int(context), output_tokens=int(generated)
        )
    except ValueError as error:
        raise ConfigError(f"{place}: is no {','.join(_CSV_COLUMNS)}: {error}") from error
    return _checked(request, place=place)


def _checked(request: TraceRequest, *, place: str) -> TraceRequest:
    for field, value in (
        ("input tokens", request.input_tokens),
        ("output tokens", request.output_tokens),
    ):
        if not 0 <= value <= _TOKENS_MAX:
            raise ConfigError(f"{place}: {value} {field}; must be 0 to {_TOKENS_MAX:,}")
    return request
