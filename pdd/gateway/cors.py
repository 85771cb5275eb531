"""Which web pages may call this server, and how a browser is told (the Fetch standard's CORS)."""

from pdd.gateway.http_request import HttpRequest

_PREFLIGHT_AGE_S = 600

ALLOWED_HEADERS = (
    "authorization, content-type, idempotency-key, last-event-id, x-pdd-tenant, x-request-id"
)
EXPOSED_HEADERS = "retry-after, x-pdd-path, x-pdd-request-id, x-request-id"


class Cors:
    """``origins``: as ``http.cors_origins`` has them; "*" is any, empty is none."""

    def __init__(self, origins: tuple[str, ...]) -> None:
        self._origins = frozenset(origins)
        self._allows_any = "*" in origins

    def headers(self, request: HttpRequest) -> dict[str, str]:
        """What any answer says about who may read it; nothing where no page may."""
        if not self._origins:
            return {}
        vary = {} if self._allows_any else {"Vary": "Origin"}
        if not self.allows(request):
            return vary
        origin = "*" if self._allows_any else request.header(b"origin") or ""
        return {
            "Access-Control-Allow-Origin": origin,
            "Access-Control-Expose-Headers": EXPOSED_HEADERS,
            **vary,
        }

    def allows(self, request: HttpRequest) -> bool:
        """The request comes from a page that may call us."""
        origin = request.header(b"origin")
        return origin is not None and (self._allows_any or origin in self._origins)

    @staticmethod
    def is_preflight(request: HttpRequest) -> bool:
        """A browser asks whether it may send a request."""
        return (
            request.method == "OPTIONS"
            and request.header(b"origin") is not None
            and request.header(b"access-control-request-method") is not None
        )

    def preflight_headers(self) -> dict[str, str]:
        """What may be sent; to be joined with ``headers``."""
        return {
            "Access-Control-Allow-Methods": "GET, HEAD, POST, DELETE, OPTIONS",
            "Access-Control-Allow-Headers": ALLOWED_HEADERS,
            "Access-Control-Max-Age": str(_PREFLIGHT_AGE_S),
        }
