"""Requests and streams that go on when a connection breaks or a scheduler is lost.

Every request is sent with an ``Idempotency-Key``, so that it runs once however often it is sent. A
stream that broke is continued with ``GET /v1/streams/{id}`` behind the last event that came; if
none came, it is sent again. Who leaves a stream early says so (``DELETE``): with a key, the request
would run on for a while. Other servers than pdd are used as far as they go: without event ids, or
without ``x-pdd-request-id``, a stream that broke is an error.
"""

import asyncio
import contextlib
import json
import secrets
import socket
import ssl
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import aiohttp

from pdd.client.retry import Retry
from pdd.client.sse import EventStream
from pdd.core.errors import ConfigError, NodeUnavailable, RequestFailed

_CONNECT_TIMEOUT_S = 5.0
_SILENCE_TIMEOUT_S = 600.0
"""A long prompt on a slow machine is silent for minutes. A server that is gone without a word is
noticed by TCP: see ``_socket``."""
_GOODBYE_TIMEOUT_S = 1.0
_PATIENCE_S = 30.0
_ERROR_CHARS_MAX = 500
_STOPPING_CODE = "scheduler_stopping"


class Client:
    """Use it as an async context manager; any number of requests at once.

    ``addresses``: URLs of schedulers, with or without ``/v1``; the first one is asked first.
    ``tls``: for https; None trusts what this machine trusts. ``headers``: sent with every request
    (``x-pdd-tenant``...). ``patience_s``: how long a request that was taken is looked for, see
    ``retry``. Raises ConfigError for an address that is no URL.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        tls: ssl.SSLContext | None = None,
        headers: Mapping[str, str] | None = None,
        patience_s: float = _PATIENCE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._addresses = _checked(addresses)
        self._tls = tls
        self._headers = dict(headers or {})
        self._patience_s = patience_s
        self._clock = clock
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=_CONNECT_TIMEOUT_S, sock_read=_SILENCE_TIMEOUT_S
            ),
            connector=aiohttp.TCPConnector(
                ssl=True if self._tls is None else self._tls, limit=0, socket_factory=_socket
            ),
            headers=self._headers,
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._open_session().close()

    async def models(self) -> list[str]:
        """Names of the models that are served."""
        document = await self._whole("GET", "/v1/models", None)
        return [str(model["id"]) for model in document["data"]]

    async def post(self, path: str, body: Mapping[str, object]) -> dict[str, Any]:
        """A whole answer.

        Raises:
            NodeUnavailable: nobody serves at any address.
            RequestFailed: a server refused it, or nobody knows of it any more.
        """
        return await self._whole("POST", path, body)

    async def stream(
        self, path: str, body: Mapping[str, object]
    ) -> AsyncGenerator[dict[str, Any], None]:
        """The documents of a stream, each once; ``stream`` is set in the body. Close it
        (``aclose``) to leave early.

        Raises:
            NodeUnavailable: nobody serves at any address.
            RequestFailed: a server refused it, it has failed, or nobody knows of it any more.
        """
        follow = _Follow(path, {**body, "stream": True})
        retry = Retry(self._addresses, patience_s=self._patience_s)
        try:
            while not follow.is_over:
                try:
                    async with follow.ask(self._open_session(), retry.address) as response:
                        async for document in follow.hear(response, retry, self._clock):
                            yield document
                except _Lost as error:
                    await self._go_on(retry, error)
                except (aiohttp.ClientError, TimeoutError) as error:
                    await self._go_on(retry, _lost(error, retry, follow.may_run(error)))
        finally:
            if retry.is_taken and not follow.is_over:
                await self._leave(follow, retry.address)

    async def _whole(
        self, method: str, path: str, body: Mapping[str, object] | None
    ) -> dict[str, Any]:
        headers = _key_headers()
        retry = Retry(self._addresses, patience_s=self._patience_s)
        while True:
            url = f"{retry.address}{path}"
            try:
                async with self._open_session().request(
                    method, url, json=body, headers=headers
                ) as response:
                    await _check(response, is_retry=retry.is_taken)
                    return _document(await response.text(errors="replace"))
            except _Lost as error:
                await self._go_on(retry, error)
            except (aiohttp.ClientError, TimeoutError) as error:
                sent = not isinstance(error, aiohttp.ClientConnectorError)
                await self._go_on(retry, _lost(error, retry, sent))

    async def _go_on(self, retry: Retry, error: "_Lost") -> None:
        """Wait for the next attempt; raises when there is none."""
        if error.may_run and not retry.is_taken:
            retry.taken(now_s=self._clock())
        pause_s = None if error.is_final else retry.failed(now_s=self._clock())
        if pause_s is None:
            raise error.reason from error
        await asyncio.sleep(pause_s)

    async def _leave(self, follow: "_Follow", address: str) -> None:
        """Tell the server that nobody comes back, if it can still be told."""
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            async with asyncio.timeout(_GOODBYE_TIMEOUT_S):
                await follow.goodbye(self._open_session(), address)

    def _open_session(self) -> aiohttp.ClientSession:
        assert self._session is not None, "use the client as a context manager"
        return self._session


class _Follow:
    """One stream over all its connections."""

    def __init__(self, path: str, body: dict[str, object]) -> None:
        self._path = path
        self._body = body
        self._headers = _key_headers()
        self._request_id = ""
        self._last_id = ""
        self._is_heard = False
        self.is_over = False

    @property
    def _can_go_on(self) -> bool:
        """Whether the rest can be asked for: by the stream's name, and the id of what came last."""
        return bool(self._last_id and self._request_id)

    def ask(self, session: aiohttp.ClientSession, address: str) -> Any:
        """The request for what comes next, to be entered."""
        if self._can_go_on:
            return session.get(
                f"{address}/v1/streams/{self._request_id}",
                headers={"Last-Event-ID": self._last_id},
            )
        return session.post(f"{address}{self._path}", json=self._body, headers=self._headers)

    async def hear(
        self, response: aiohttp.ClientResponse, retry: Retry, clock: Callable[[], float]
    ) -> AsyncGenerator[dict[str, Any], None]:
        """The documents of one connection. Raises _Lost where it ends before the stream does."""
        await _check(response, is_retry=retry.is_taken)
        retry.taken(now_s=clock())
        self._request_id = response.headers.get("x-pdd-request-id", self._request_id)
        events = EventStream()
        async for chunk in response.content.iter_any():
            for event in events.feed(chunk):
                if event.data == "[DONE]":
                    self.is_over = True
                    return
                document = _document(event.data)
                if "error" in document:
                    message, code = _fault(document)
                    self.is_over = code != _STOPPING_CODE
                    raise _Lost(message, is_final=self.is_over)
                self._last_id, self._is_heard = event.last_id, True
                retry.heard()
                yield document
        raise self._broke_off("the stream ended without [DONE]")

    def may_run(self, error: Exception) -> bool:
        """Whether a server may have the request although its connection failed."""
        if isinstance(error, aiohttp.ClientConnectorError):
            return False
        if self._is_heard and not self._can_go_on:
            raise self._broke_off(f"{type(error).__name__}: {error}").reason from error
        return True

    async def goodbye(self, session: aiohttp.ClientSession, address: str) -> None:
        """Have the request cancelled."""
        if self._request_id:
            async with session.delete(f"{address}/v1/streams/{self._request_id}"):
                pass  # whatever it says

    def _broke_off(self, why: str) -> "_Lost":
        """What came cannot be told from the rest: sent again, it would come twice."""
        is_final = self._is_heard and not self._can_go_on
        return _Lost(f"the answer broke off: {why}", is_final=is_final, may_run=True)


class _Lost(Exception):
    """An attempt that gave nothing (more). ``reason``: what to raise if it was the last one."""

    def __init__(
        self,
        reason: Exception | str,
        *,
        is_final: bool = False,
        may_run: bool = False,
    ) -> None:
        super().__init__(str(reason))
        self.reason = RequestFailed(reason) if isinstance(reason, str) else reason
        self.is_final = is_final
        self.may_run = may_run


def _lost(error: Exception, retry: Retry, may_run: bool) -> _Lost:
    """A transport's failure in our words."""
    address = retry.address
    match error:
        case aiohttp.InvalidURL():
            return _Lost(RequestFailed(f"{address} is not a URL"), is_final=True)
        case aiohttp.ClientConnectorCertificateError():
            return _Lost(
                NodeUnavailable(
                    f"{address} shows a certificate that is not trusted: "
                    f"{error.certificate_error}; name its authority with --ca"
                )
            )
        case aiohttp.ClientConnectorError():
            return _Lost(NodeUnavailable(f"nobody serves at {address}: {error.strerror}"))
        case _:
            why = f"connection to {address} broke: {type(error).__name__}: {error}"
            return _Lost(RequestFailed(why), may_run=may_run)


async def _check(response: aiohttp.ClientResponse, *, is_retry: bool) -> None:
    """Raises _Lost for what is no answer. A scheduler that cannot serve (503) is left for the next
    one; what may be known elsewhere (404) is asked for there if it was taken once."""
    if response.status == 200:
        return
    text = await response.text(errors="replace")
    try:
        message, _ = _fault(json.loads(text))
    except ValueError:
        message = text[:_ERROR_CHARS_MAX]
    may_pass = response.status == 503 or (is_retry and response.status == 404)
    raise _Lost(f"HTTP {response.status}: {message}", is_final=not may_pass)


def _document(text: str) -> dict[str, Any]:
    """What a server says. Raises _Lost: it is not JSON, or no object; whoever asks again would hear
    the same."""
    try:
        document = json.loads(text)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        shown = text[:_ERROR_CHARS_MAX]
        raise _Lost(f"the server said what is no JSON object: {shown!r}", is_final=True)
    return document


def _fault(document: object) -> tuple[str, object]:
    """Message and code of an error: OpenAI's shape, or whatever another server makes of it."""
    error = document.get("error", document) if isinstance(document, dict) else document
    if isinstance(error, dict):
        return str(error.get("message", error))[:_ERROR_CHARS_MAX], error.get("code")
    return str(error)[:_ERROR_CHARS_MAX], None


def _checked(addresses: Sequence[str]) -> list[str]:
    """Without ``/v1``. Raises ConfigError."""
    if isinstance(addresses, str):
        raise ConfigError(f"addresses is {addresses!r}; give a list of URLs: [{addresses!r}]")
    if not addresses:
        raise ConfigError("addresses is empty; give the URL of at least one scheduler")
    for address in addresses:
        if not address.startswith(("http://", "https://")):
            raise ConfigError(
                f"addresses: {address!r} is no URL; write http://HOST:PORT or https://HOST:PORT"
            )
    return [address.rstrip("/").removesuffix("/v1") for address in addresses]


def _key_headers() -> dict[str, str]:
    return {"Idempotency-Key": f"pdd-{secrets.token_hex(16)}"}


def _socket(address: tuple[int, int, int, str, tuple[Any, ...]]) -> socket.socket:
    """A host that is gone without a word is noticed after 5 + 3 * 2 s."""
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    return made
