"""One request's turn on its connection: whoever answers it does so through this, once."""

from collections.abc import Callable
from typing import Protocol

from pdd.core.identity import RequestId
from pdd.gateway.errors import edge_of, error_body, make_error_body, retry_after_s
from pdd.gateway.http_request import HttpFault, HttpRequest
from pdd.gateway.http_response import JSON, head
from pdd.gateway.json_text import json_bytes
from pdd.gateway.request_ids import client_request_id, new_request_id

LAST_CHUNK = b"0\r\n\r\n"
"""Ends a chunked body."""


class Exchange(Protocol):
    """Who answers a request, as the connection sees it. All calls come on the event loop."""

    def client_left(self) -> None:
        """The connection is gone; nothing can be written any more. At most once."""
        ...

    def paused(self) -> None:
        """The client does not keep up: write no more until ``resumed``."""
        ...

    def resumed(self) -> None:
        """The client has taken most of what waited."""
        ...


class Wire(Protocol):
    """The connection, as who answers sees it."""

    @property
    def write(self) -> Callable[[bytes], None]:
        """Hand bytes to the transport, which sends them at once if it can."""
        ...

    @property
    def write_paused(self) -> bool:
        """Between ``Exchange.paused`` and ``Exchange.resumed``."""
        ...

    @property
    def unsent_bytes(self) -> int:
        """What waits in the transport."""
        ...

    def turn_over(self, *, keep_alive: bool) -> None:
        """The answer is written: the next request's turn, or the end of the connection."""
        ...

    def abort(self) -> None:
        """Drop the connection and what was not sent."""
        ...

    def extra_info(self, name: str) -> object:
        """What the transport knows: ``peername``, ``ssl_object``..."""
        ...


class Turn:
    """``request_id`` is ours, ``client_request_id`` what the client called it (or ours again).

    ``headers`` go with whatever answer is given.
    """

    __slots__ = ("client_request_id", "headers", "keep_alive", "request", "request_id", "wire")

    def __init__(
        self, wire: Wire, request: HttpRequest, *, headers: dict[str, str], keep_alive: bool
    ) -> None:
        self.wire = wire
        self.request = request
        self.keep_alive = keep_alive
        self.request_id: RequestId = new_request_id()
        self.client_request_id = client_request_id(request) or self.request_id
        self.headers = {
            **headers,
            "x-pdd-request-id": self.request_id,
            "x-request-id": self.client_request_id,
        }

    def is_about(self, request_id: RequestId) -> None:
        """It is about a request that runs already, under its own name."""
        if self.client_request_id == self.request_id:
            self.client_request_id = request_id
        self.request_id = request_id
        self.headers["x-pdd-request-id"] = request_id
        self.headers["x-request-id"] = self.client_request_id

    def respond(
        self, status: int, body: bytes, *, content_type: str = JSON, **headers: str
    ) -> None:
        """The whole answer in one write."""
        fields = {"Content-Length": str(len(body)), **self.headers}
        if status == 204:
            del fields["Content-Length"]
        if body:
            fields["Content-Type"] = content_type
        fields.update((name.replace("_", "-"), value) for name, value in headers.items())
        self.wire.write(self.head(status, fields) + (b"" if self._is_head() else body))
        self.wire.turn_over(keep_alive=self.keep_alive)

    def respond_error(self, error: Exception) -> None:
        """An error of the edge table as the whole answer."""
        seconds = retry_after_s(error)
        headers = {} if seconds is None else {"Retry_After": str(seconds)}
        self.respond(edge_of(error).status, json_bytes(error_body(error)), **headers)

    def respond_fault(self, fault: HttpFault, **headers: str) -> None:
        """A refusal on HTTP's own account."""
        self.respond(fault.status, fault_body(fault), **headers)

    def head(self, status: int, headers: dict[str, str]) -> bytes:
        """The head of an answer whose body the caller writes."""
        return head(
            status, headers, is_http_1_0=self.request.is_http_1_0, keep_alive=self.keep_alive
        )

    def _is_head(self) -> bool:
        return self.request.method == "HEAD"


def fault_body(fault: HttpFault) -> bytes:
    """OpenAI's error object."""
    return json_bytes(make_error_body(fault.message, kind="invalid_request_error", code=fault.code))
