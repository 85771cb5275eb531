"""One HTTP request as it came, and what can be wrong with it before anybody looks inside."""

from dataclasses import dataclass, field

MAX_HEADER_COUNT = 128
"""More headers than that are HTTP 431."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpFault:
    """Why a request is refused on HTTP's own account; always the client's fault, status 4xx."""

    status: int
    code: str
    message: str


@dataclass(slots=True, kw_only=True)
class HttpRequest:
    """``headers``: names in lower case, values as they came, in order.

    ``target`` is what the request line says; ``path`` is it without query and authority, still
    percent-encoded. ``body``: whole only when the reader says so.
    """

    method: str
    target: str
    path: str
    is_http_1_0: bool = False
    keep_alive: bool = True
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytearray = field(default_factory=bytearray)
    _first_values: dict[bytes, bytes] | None = field(
        default=None, init=False, repr=False, compare=False
    )

    def header(self, name: bytes) -> str | None:
        """The first value of a header, or None. ``name`` in lower case. Once it has been asked,
        ``headers`` must not change any more."""
        if self._first_values is None:
            self._first_values = dict(reversed(self.headers))
        value = self._first_values.get(name)
        return None if value is None else value.decode("latin-1")

    @property
    def wants_continue(self) -> bool:
        """The client waits for ``100 Continue`` before it sends the body (HTTP/1.1 only)."""
        expect = None if self.is_http_1_0 else self.header(b"expect")
        return expect is not None and expect.lower() == "100-continue"


def path_of(target: str) -> str | None:
    """The path of a request target; None where it is no path: ``CONNECT`` and nonsense.

    Both forms that a server must take (RFC 9112, 3.2): ``/path?query`` and ``http://host/path``.
    """
    if not target.isascii():
        return None
    if target.startswith("/"):
        return target.partition("?")[0]
    scheme, found, rest = target.partition("://")
    if found and scheme.lower() in ("http", "https"):
        return "/" + rest.partition("?")[0].partition("/")[2]
    return None


def check_head(request: HttpRequest, *, max_body_bytes: int) -> HttpFault | None:
    """What is wrong with a request whose headers have arrived, as far as headers can tell."""
    hosts = sum(name == b"host" for name, _ in request.headers)
    if hosts > 1 or (hosts == 0 and not request.is_http_1_0):
        return HttpFault(
            status=400, code="invalid_host", message=f"the request has {hosts} Host headers, not 1"
        )
    expect = request.header(b"expect")
    if expect is not None and expect.lower() != "100-continue":
        return HttpFault(
            status=417,
            code="expectation_failed",
            message="expect: only '100-continue' is understood; leave the header out",
        )
    if request.method == "CONNECT":
        return HttpFault(status=405, code="method_not_allowed", message="this is not a proxy")
    coding = request.header(b"transfer-encoding")
    if coding is not None and coding.strip().lower() != "chunked":
        return HttpFault(
            status=400,
            code="invalid_transfer_encoding",
            message="transfer-encoding: only 'chunked' is understood",
        )
    declared = request.header(b"content-length")
    # The parser has seen to it that this is a number.
    if declared is not None and int(declared) > max_body_bytes:
        return body_too_large(f"{declared} bytes", max_body_bytes=max_body_bytes)
    return None


def body_too_large(size: str, *, max_body_bytes: int) -> HttpFault:
    """HTTP 413."""
    return HttpFault(
        status=413,
        code="request_too_large",
        message=f"the body has {size}; at most {max_body_bytes} bytes are taken",
    )
