"""Where requests go, and what they look like on the wire. Pure."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import urlsplit

from pdd.bench.prompts import Calibration, TextPool
from pdd.bench.workload import PlannedRequest
from pdd.core.errors import ConfigError

_CACHED_TEXTS_MAX = 256
"""Texts of shared pieces that are kept; the oldest goes first. An uncached one is made anew."""


class Endpoint(StrEnum):
    """Which of OpenAI's routes."""

    CHAT = "chat"
    COMPLETIONS = "completions"

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if self is Endpoint.CHAT else "/v1/completions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """An OpenAI endpoint. ``base_path`` has no slash at its end and no ``/v1``."""

    host: str
    port: int
    tls: bool = False
    base_path: str = ""
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """More headers, the API key among them: not shown in messages."""

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}{self.base_path}"

    def request_head(self, method: str, path: str) -> bytes:
        """Everything before the value of Content-Length."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        lines = [
            f"{method} {self.base_path}{path} HTTP/1.1",
            f"Host: {host}:{self.port}",
            "Content-Type: application/json",
            "User-Agent: pdd-bench",
            *(f"{name}: {value}" for name, value in self.headers),
            "Content-Length: ",
        ]
        return "\r\n".join(lines).encode("latin-1")


def parse_url(url: str, *, headers: tuple[tuple[str, str], ...] = ()) -> Target:
    """``http://host:port``, with or without ``/v1`` behind it.

    Raises:
        ConfigError: it is no such URL.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"{url!r} is no URL: {error}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"{url!r} is no URL; write http://host:port")
    if parts.query or parts.fragment or parts.username:
        raise ConfigError(f"{url!r}: a query, a fragment or a user has no place in it")
    tls = parts.scheme == "https"
    base_path = parts.path.rstrip("/")
    return Target(
        host=parts.hostname,
        port=port or (443 if tls else 80),
        tls=tls,
        base_path=base_path.removesuffix("/v1"),
        headers=headers,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyOptions:
    """What every request's body says beside its prompt.

    ``fixed_output``: ask for exactly the planned number of tokens (``min_tokens``, which is vLLM's
    and pdd's; others may refuse it). ``extra``: as it is.
    """

    endpoint: Endpoint
    model: str
    stream: bool = True
    usage: bool = True
    fixed_output: bool = True
    temperature: float = 0.0
    extra: Mapping[str, object] = field(default_factory=dict)


class BodyMaker:
    """Makes bodies of planned requests. Words are lower-case ASCII, so nothing is escaped."""

    def __init__(self, options: BodyOptions, *, calibration: Calibration, seed: int) -> None:
        self._options = options
        self._calibration = calibration
        self._pool = TextPool(seed=seed)
        self._texts: dict[object, str] = {}
        fields: dict[str, object] = {
            "model": options.model,
            "stream": options.stream,
            "temperature": options.temperature,
        }
        if options.stream and options.usage:
            fields["stream_options"] = {"include_usage": True}
        self._head = json.dumps(fields | dict(options.extra))[:-1]

    def body(self, request: PlannedRequest) -> bytes:
        """The JSON document."""
        shared, own = self.texts(request)
        count = request.output_tokens
        if self._options.endpoint is Endpoint.CHAT:
            system = f'{{"role":"system","content":"{shared}"}},' if shared else ""
            prompt = f'"messages":[{system}{{"role":"user","content":"{own}"}}]'
        else:
            prompt = f'"prompt":"{shared} {own}"' if shared else f'"prompt":"{own}"'
        least = f'"min_tokens":{count},' if self._options.fixed_output else ""
        return f'{self._head},"max_tokens":{count},{least}{prompt}}}'.encode()

    def texts(self, request: PlannedRequest) -> tuple[str, str]:
        """The shared part and the request's own."""
        shared = self._texts.get(request.shared)
        if shared is None:
            shared = self._pool.prompt(request.shared, self._calibration)
            if len(self._texts) >= _CACHED_TEXTS_MAX:
                del self._texts[next(iter(self._texts))]
            self._texts[request.shared] = shared
        return shared, self._pool.prompt(request.own, self._calibration)
