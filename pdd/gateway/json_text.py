"""JSON that is safe inside a line-based stream, and short descriptions of bad values."""

import json
import math
from collections.abc import Callable
from json import encoder as json_encoder
from json.encoder import encode_basestring, encode_basestring_ascii

# str.splitlines() and some SSE clients take these for line ends; JSON leaves them as they are.
_LINE_BREAKS = {0x85: "\\u0085", 0x2028: "\\u2028", 0x2029: "\\u2029"}


def _make_encode() -> Callable[[object], str]:
    """Made once: json.dumps makes an encoder per call when it is given options, and an encoder its
    half in C, which is a third of what a short document costs. Where there is none in C, it is the
    encoder's own way. Documents here are trees: circles are not looked for."""
    encoder = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    make_chunks = getattr(json_encoder, "c_make_encoder", None)
    if make_chunks is None:
        return encoder.encode
    chunks = make_chunks(
        None, encoder.default, encode_basestring, None, ":", ",", False, False, False
    )
    return lambda value: "".join(chunks(value, 0))


_encode = _make_encode()

MIN_LOGPROB = -9999.0
"""What stands for minus infinity, which JSON cannot say (as vLLM does)."""


def json_string(text: str) -> bytes:
    """A JSON string literal in UTF-8, with no byte that any reader takes for a line end."""
    if text.isascii():
        return encode_basestring(text).encode()
    try:
        return encode_basestring(text).translate(_LINE_BREAKS).encode()
    except UnicodeEncodeError:  # a lone surrogate: only the escaped form is valid UTF-8
        return encode_basestring_ascii(text).encode()


def json_bytes(value: object) -> bytes:
    """A compact JSON document in UTF-8 on one line.

    Raises:
        ValueError: NaN or an infinity is in it, which is not JSON.
    """
    text = _encode(value)
    if text.isascii():
        return text.encode()
    try:
        return text.translate(_LINE_BREAKS).encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def finite_logprob(value: float) -> float:
    """``value``, or ``MIN_LOGPROB`` where JSON has no number for it."""
    return value if value >= MIN_LOGPROB and math.isfinite(value) else MIN_LOGPROB


def shorten(value: object, *, limit: int = 60) -> str:
    """A bad value as it is quoted in an error message: at most about ``limit`` characters."""
    if isinstance(value, (dict, list)):
        noun = "an object with" if isinstance(value, dict) else "a list of"
        return f"{noun} {len(value)} item{'' if len(value) == 1 else 's'}"
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 200:
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, str) and len(value) > limit:
        return f"{json.dumps(value[:limit])}... ({len(value)} characters)"
    is_scalar = value is None or isinstance(value, (str, bool, int, float))
    text = json.dumps(value) if is_scalar else repr(value)
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text)} characters)"
