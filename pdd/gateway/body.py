"""A request's body as JSON: bounded in bytes and nesting, and strictly JSON."""

import asyncio
import zlib

import pydantic_core

from pdd.core.errors import InvalidRequest, RequestTooLarge
from pdd.gateway.http_request import HttpRequest, body_too_large
from pdd.gateway.json_text import shorten


async def read_json_object(http: HttpRequest, *, max_body_bytes: int) -> dict[str, object]:
    """The body as a JSON object.

    Raises:
        RequestTooLarge, InvalidRequest: the client's fault; nothing was started.
    """
    _check_content_type(http)
    raw = bytes(http.body)
    coding = (http.header(b"content-encoding") or "identity").strip().lower()
    if coding != "identity":
        raw = await _decompress(raw, coding=coding, max_body_bytes=max_body_bytes)
    return parse_json_object(raw)


def parse_json_object(raw: bytes) -> dict[str, object]:
    """Parse strictly: no NaN, no lone surrogates, at most about 200 levels deep.

    Raises:
        InvalidRequest: with line and column where the parser gave up.
    """
    try:
        value = pydantic_core.from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}", code="invalid_json") from error
    if not isinstance(value, dict):
        raise InvalidRequest(
            f"the body must be a JSON object, not {shorten(value)}", code="invalid_json"
        )
    return value


def _check_content_type(http: HttpRequest) -> None:
    """JSON by name, or no name at all. Forms are refused: curl -d sends one by default."""
    declared = http.header(b"content-type")
    if declared is None:
        return
    kind = declared.partition(";")[0].strip().lower()
    if kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json")):
        return
    raise InvalidRequest(
        f"content-type {shorten(kind)} is not supported; send 'content-type: application/json'",
        code="invalid_content_type",
    )


async def _decompress(raw: bytes, *, coding: str, max_body_bytes: int) -> bytes:
    """Off the event loop: a body of some megabytes takes longer than a token may wait."""
    # What zlib calls the window: 31 reads gzip's header, 15 zlib's, which "deflate" means.
    window = {"gzip": 31, "x-gzip": 31, "deflate": 15}.get(coding)
    if window is None:
        raise InvalidRequest(
            f"content-encoding {shorten(coding)} is not supported; send gzip, or plain JSON",
            code="invalid_content_encoding",
        )

    def work() -> tuple[bytes, bool]:
        decompressor = zlib.decompressobj(window)
        return decompressor.decompress(raw, max_body_bytes + 1), decompressor.eof

    try:
        plain, whole = await asyncio.to_thread(work)
    except zlib.error as error:
        raise InvalidRequest(
            f"the body cannot be read as {coding}: {error}", code="invalid_body"
        ) from error
    if len(plain) > max_body_bytes:
        fault = body_too_large("a longer body", max_body_bytes=max_body_bytes)
        raise RequestTooLarge(fault.message, code=fault.code)
    if not whole:
        raise InvalidRequest(f"the body ends in the middle of its {coding}", code="invalid_body")
    return plain
