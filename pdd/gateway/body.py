"""Reading a request's body: bounded in bytes, seconds and nesting, and strictly JSON."""

import asyncio

import pydantic_core
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from pdd.core.errors import InvalidRequest, RequestTooLarge
from pdd.gateway.json_text import shorten
from pdd.gateway.settings import GatewaySettings


class BodyTimeout(InvalidRequest):
    """The client did not send its body in time; HTTP 408."""


async def read_json_object(http: web.Request, *, settings: GatewaySettings) -> dict[str, object]:
    """The body as a JSON object.

    Raises:
        RequestTooLarge, BodyTimeout, InvalidRequest: the client's fault; nothing was started.
    """
    _check_content_type(http)
    declared = http.content_length
    if declared is not None and declared > settings.max_body_bytes:
        raise _too_large(f"{declared} bytes", settings)
    try:
        async with asyncio.timeout(settings.body_timeout_s):
            raw = await http.read()
    except TimeoutError as error:
        raise BodyTimeout(
            f"the body did not arrive within {settings.body_timeout_s:g} s", code="body_timeout"
        ) from error
    except web.HTTPRequestEntityTooLarge as error:
        raise _too_large("a longer body", settings) from error
    except (HttpProcessingError, web.RequestPayloadError) as error:
        message = " ".join(str(error).split())
        raise InvalidRequest(f"the body cannot be read: {message}", code="invalid_body") from error
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


def _check_content_type(http: web.Request) -> None:
    """JSON by name, or no name at all. Forms are refused: curl -d sends one by default."""
    if "Content-Type" not in http.headers:
        return
    kind = http.content_type
    if kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json")):
        return
    raise InvalidRequest(
        f"content-type {shorten(kind)} is not supported; send 'content-type: application/json'",
        code="invalid_content_type",
    )


def _too_large(size: str, settings: GatewaySettings) -> RequestTooLarge:
    return RequestTooLarge(
        f"the body has {size}; at most {settings.max_body_bytes} bytes are taken",
        code="request_too_large",
    )
