"""Bytes of one connection to requests, in order and within bounds. No socket, no clock.

The owner hears ``head_arrived`` and ``request_arrived`` once per request, and ``fault_arrived`` at
most once: after a fault nothing that follows can be understood, so the rest is thrown away.
"""

from enum import StrEnum
from typing import Protocol

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

from pdd.gateway.http_request import (
    MAX_HEADER_COUNT,
    HttpFault,
    HttpRequest,
    body_too_large,
    check_head,
    path_of,
)

CHUNK_FRAME_BYTES = 16
"""What each chunk of a body may have around it: its size, with some zeros before, and line ends."""


class Phase(StrEnum):
    """What the reader waits for."""

    NOTHING = "nothing"  # between requests
    HEAD = "head"
    BODY = "body"
    END = "end"  # after a fault


class RequestOwner(Protocol):
    """Who is told. Called from within ``feed``."""

    def head_arrived(self, request: HttpRequest) -> None:
        """Its headers are here and in order; the body is on its way."""
        ...

    def request_arrived(self, request: HttpRequest) -> None:
        """All of it is here."""
        ...

    def fault_arrived(self, fault: HttpFault, request: HttpRequest | None) -> None:
        """The last thing that is heard. ``request``: whose headers were read, if any."""
        ...


class HttpReader:
    """One per connection.

    Bounds: ``max_head_bytes`` and ``MAX_HEADER_COUNT`` for a head, ``max_body_bytes`` for a body,
    ``max_head_bytes`` again for what comes beside a body (chunk extensions, trailers) in later
    pieces than the end of its head; at each of them a fault.
    """

    def __init__(self, owner: RequestOwner, *, max_head_bytes: int, max_body_bytes: int) -> None:
        self._owner = owner
        self._max_head_bytes = max_head_bytes
        self._max_body_bytes = max_body_bytes
        self._parser = HttpRequestParser(self)
        self._request: HttpRequest | None = None
        self._head_size_bytes = 0
        self._line_bytes = 0
        self._begun_count = 0
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._body_skipped = False
        self._resuming = False
        self._chunk_count = 0
        self._beside_body_bytes = 0
        self.phase = Phase.NOTHING

    @property
    def arriving(self) -> HttpRequest | None:
        """The request whose head is here and whose body is not."""
        return self._request

    def feed(self, data: bytes) -> None:
        """Take what the client sent."""
        while data and self.phase is not Phase.END:
            data = self._feed(data)

    def give_up(self, fault: HttpFault) -> None:
        """Understand no more, for a reason that the owner has."""
        if self.phase is not Phase.END:
            self.phase = Phase.END
            self._owner.fault_arrived(fault, self._request)

    def _feed(self, data: bytes) -> bytes:
        """The rest, if this ended in a request to upgrade, which is answered like any other."""
        heads_begun = self._begun_count + (self.phase is Phase.NOTHING)
        request = self._request
        body_bytes = 0 if request is None else len(request.body)
        chunk_count = self._chunk_count
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade as upgrade:
            self._parser = HttpRequestParser(self)
            if self._body_skipped:
                self._resume_body()
            return data[upgrade.args[0] :]
        except HttpParserError as error:
            self._fail(400, "malformed_request", f"this is not HTTP/1.1: {error}")
        if self.phase is Phase.HEAD:
            # Behind another request, where it begins is not known: it is counted from the next
            # piece on.
            self._count_line(data if self._begun_count == heads_begun else b"")
        if request is not None and self._request is request:  # all of it was this one's body
            self._count_beside_body(
                len(data)
                - (len(request.body) - body_bytes)
                - CHUNK_FRAME_BYTES * (self._chunk_count - chunk_count)
            )
        return b""

    # --- called by the parser ----------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._resuming:
            return
        self._url = b""
        self._headers = []
        self._head_size_bytes = 0
        self._line_bytes = 0
        self._begun_count += 1
        if self.phase is not Phase.END:
            self.phase = Phase.HEAD

    def on_url(self, url: bytes) -> None:
        if self._resuming:
            return
        self._url += url
        self._head_size_bytes += len(url)
        self._line_bytes -= len(url)  # heard, so not to be counted again with its line
        self._check_head_size()

    def on_header(self, name: bytes, value: bytes | None) -> None:
        if self.phase is not Phase.HEAD:
            return  # a trailer of a chunked body, or after a fault
        value = value or b""
        self._head_size_bytes += len(name) + len(value)
        self._headers.append((name.lower(), value))
        self._check_head_size()

    def on_headers_complete(self) -> None:
        if self._resuming or self.phase is Phase.END:
            self._resuming = False
            return
        method = self._parser.get_method().decode("latin-1")
        target = self._url.decode("latin-1")
        path = path_of(target)
        if path is None and (method, target) != ("OPTIONS", "*"):
            self._fail(400, "invalid_target", "the request target must be a path, as in /v1/models")
            return
        self._request = HttpRequest(
            method=method,
            target=target,
            path=path or target,
            is_http_1_0=self._parser.get_http_version() == "1.0",
            keep_alive=self._parser.should_keep_alive(),
            headers=self._headers,
        )
        fault = check_head(self._request, max_body_bytes=self._max_body_bytes)
        if fault is not None:
            self.give_up(fault)
            return
        self._body_skipped = self._parser.should_upgrade() and _body_header(self._request) != b""
        self._beside_body_bytes = 0
        self.phase = Phase.BODY
        self._owner.head_arrived(self._request)

    def on_chunk_header(self) -> None:
        self._chunk_count += 1

    def on_body(self, part: bytes) -> None:
        if self.phase is Phase.END:
            return
        assert self._request is not None, "a body has a head"
        body = self._request.body
        if len(body) + len(part) > self._max_body_bytes:
            self.give_up(body_too_large("a longer body", max_body_bytes=self._max_body_bytes))
            return
        body += part

    def on_message_complete(self) -> None:
        if self._body_skipped or self.phase is Phase.END:
            return
        request, self._request = self._request, None
        assert request is not None, "a message has a head"
        self.phase = Phase.NOTHING
        self._owner.request_arrived(request)

    # --- helpers -----------------------------------------------------------------------------

    def _resume_body(self) -> None:
        """Read the body of a request to upgrade, which the parser leaves to the new protocol.

        A parser knows how a body ends by the head before it; it is given one that says just that.
        """
        assert self._request is not None, "its head was read"
        self._body_skipped = False
        self._resuming = True
        self._parser.feed_data(b"POST / HTTP/1.1\r\n" + _body_header(self._request) + b"\r\n\r\n")

    def _count_line(self, data: bytes) -> None:
        """The parser keeps a header until it ends, and nobody else would bound that."""
        line_begins = data.rfind(b"\n") + 1
        if line_begins:
            self._line_bytes = 0
        self._line_bytes += len(data) - line_begins
        self._check_head_size(unheard_bytes=self._line_bytes)

    def _check_head_size(self, *, unheard_bytes: int = 0) -> None:
        size_bytes = self._head_size_bytes + unheard_bytes
        if size_bytes > self._max_head_bytes or len(self._headers) > MAX_HEADER_COUNT:
            self._fail(
                431,
                "headers_too_large",
                f"request line and headers are more than {self._max_head_bytes} bytes or "
                f"{MAX_HEADER_COUNT} headers",
            )

    def _count_beside_body(self, more_bytes: int) -> None:
        """The parser keeps a trailer until it ends, and nobody else would bound what it skips."""
        # Not below zero: what small chunks leave of their allowance is not saved for a trailer.
        self._beside_body_bytes = max(0, self._beside_body_bytes + more_bytes)
        if self._beside_body_bytes > self._max_head_bytes:
            self._fail(
                431,
                "headers_too_large",
                f"chunk extensions and trailers are more than {self._max_head_bytes} bytes; "
                "leave them out",
            )

    def _fail(self, status: int, code: str, message: str) -> None:
        self.give_up(HttpFault(status=status, code=code, message=message))


def _body_header(request: HttpRequest) -> bytes:
    """The header that says where the body ends; b"" if there is none."""
    for name, value in request.headers:
        if name in (b"transfer-encoding", b"content-length") and value.strip(b"0 ") != b"":
            return name + b": " + value
    return b""
