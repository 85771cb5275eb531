"""Names of requests: pdd's own, and the one a client or proxy brought along."""

import re
import secrets

from pdd.core.identity import RequestId
from pdd.gateway.http_request import HttpRequest

_OURS = re.compile(r"r-[0-9a-f]{24}")

MAX_CLIENT_ID_CHARS = 128
"""A longer x-request-id is ignored, as is one with characters that could break a log or header."""


def new_request_id() -> RequestId:
    """96 random bits: unique without asking anybody."""
    return RequestId(f"r-{secrets.token_hex(12)}")


def may_be_request_id(text: str) -> bool:
    """Whether some scheduler may have given this name; no other is worth waiting for."""
    return _OURS.fullmatch(text) is not None


def client_request_id(request: HttpRequest) -> str | None:
    """``x-request-id`` if it can be echoed safely."""
    value = request.header(b"x-request-id") or ""
    if 0 < len(value) <= MAX_CLIENT_ID_CHARS and value.isascii() and value.isprintable():
        return value
    return None
