"""The HTTP side of ``pdd chat``."""

import asyncio
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
import click

from pdd.cli.sse import EventStream
from pdd.core.errors import NodeUnavailable, RequestFailed

_CONNECT_TIMEOUT_S = 5.0
_SILENCE_TIMEOUT_S = 600.0
"""A long prompt on a slow machine is silent for minutes; longer than this is a lost server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """One question. ``url`` without ``/v1``; ``sampling`` goes into the body as it is.

    ``tls``: for https; None trusts what this machine trusts.
    """

    url: str
    prompt: str
    system: str | None
    model: str | None
    sampling: Mapping[str, object]
    tls: ssl.SSLContext | None = None

    def body(self, model: str) -> dict[str, object]:
        messages = [{"role": "user", "content": self.prompt}]
        if self.system is not None:
            messages.insert(0, {"role": "system", "content": self.system})
        return {"model": model, "messages": messages, "stream": True, **self.sampling}


def run_chat(request: ChatRequest) -> int:
    """Stream the answer to stdout. Returns the exit code.

    Raises:
        NodeUnavailable: nobody serves at the URL.
        RequestFailed: the server refused, or the answer broke off.
    """
    return asyncio.run(_run(request))


async def _run(request: ChatRequest) -> int:
    timeout = aiohttp.ClientTimeout(
        total=None, sock_connect=_CONNECT_TIMEOUT_S, sock_read=_SILENCE_TIMEOUT_S
    )
    try:
        connector = aiohttp.TCPConnector(ssl=True if request.tls is None else request.tls)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
            model = request.model or await _served_model(session, request.url)
            async with session.post(
                f"{request.url}/v1/chat/completions", json=request.body(model)
            ) as response:
                await _refuse_errors(response)
                await _print_stream(response)
    except aiohttp.InvalidURL as error:
        raise click.UsageError(f"--url {request.url} is not a URL.") from error
    except aiohttp.ClientConnectorCertificateError as error:
        raise NodeUnavailable(
            f"{request.url} shows a certificate that is not trusted: {error.certificate_error}; "
            "name its authority with --ca"
        ) from error
    except aiohttp.ClientConnectorError as error:
        raise NodeUnavailable(f"nobody serves at {request.url}: {error.strerror}") from error
    except (aiohttp.ClientError, TimeoutError) as error:
        name = type(error).__name__
        raise RequestFailed(f"connection to {request.url} broke: {name}: {error}") from error
    return 0


async def _served_model(session: aiohttp.ClientSession, url: str) -> str:
    async with session.get(f"{url}/v1/models") as response:
        await _refuse_errors(response)
        models = (await response.json())["data"]
    if not models:
        raise NodeUnavailable(f"{url} serves no model")
    return str(models[0]["id"])


async def _refuse_errors(response: aiohttp.ClientResponse) -> None:
    if response.status == 200:
        return
    text = await response.text()
    raise RequestFailed(f"HTTP {response.status}: {_error_message(text)}")


def _error_message(text: str) -> str:
    """The message of an error in OpenAI's shape; else the beginning of the text."""
    try:
        return str(json.loads(text)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return text[:500]


async def _print_stream(response: aiohttp.ClientResponse) -> None:
    events = EventStream()
    async for chunk in response.content.iter_any():
        for data in events.feed(chunk):
            if data == "[DONE]":
                click.echo()
                return
            click.echo(_text_of(json.loads(data)), nl=False)
    click.echo()
    raise RequestFailed("the answer broke off: the stream ended without [DONE]")


def _text_of(event: Mapping[str, Any]) -> str:
    if "error" in event:
        click.echo()
        raise RequestFailed(str(event["error"].get("message", event["error"])))
    choices = event.get("choices") or [{}]
    return str(choices[0].get("delta", {}).get("content") or "")
