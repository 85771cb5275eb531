"""``pdd chat``: one question to ``pdd.client``, its answer to stdout."""

import asyncio
import ssl
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import click

from pdd.client import Client
from pdd.core.errors import NodeUnavailable


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """One question. ``urls``: of schedulers; ``sampling`` goes into the body as it is.

    ``tls``: for https; None trusts what this machine trusts.
    """

    urls: Sequence[str]
    prompt: str
    system: str | None
    model: str | None
    sampling: Mapping[str, object]
    tls: ssl.SSLContext | None = None

    def body(self, model: str) -> dict[str, object]:
        messages = [{"role": "user", "content": self.prompt}]
        if self.system is not None:
            messages.insert(0, {"role": "system", "content": self.system})
        return {"model": model, "messages": messages, **self.sampling}


def run_chat(request: ChatRequest) -> int:
    """Stream the answer to stdout. Returns the exit code.

    Raises:
        NodeUnavailable: nobody serves at the URLs.
        RequestFailed: the server refused, or the answer broke off for good.
    """
    return asyncio.run(_run(request))


async def _run(request: ChatRequest) -> int:
    async with Client(request.urls, tls=request.tls) as client:
        model = request.model or await _served_model(client)
        stream = client.stream("/v1/chat/completions", request.body(model))
        try:
            async with aclosing(stream) as documents:
                async for document in documents:
                    click.echo(_text_of(document), nl=False)
        finally:
            click.echo()
    return 0


async def _served_model(client: Client) -> str:
    models = await client.models()
    if not models:
        raise NodeUnavailable("no model is served there")
    return models[0]


def _text_of(document: Mapping[str, Any]) -> str:
    choices = document.get("choices") or [{}]
    return str(choices[0].get("delta", {}).get("content") or "")
