"""The front door: which request is answered by whom.

Inference is answered natively (``answer``); everything else by the application (``app``, run by
``framework``).
"""

from collections.abc import Callable

import structlog
from aiohttp import web

from pdd.core.identity import RequestId
from pdd.core.ports import Clock
from pdd.gateway.answer import Answer, Serving
from pdd.gateway.chat import ChatReply
from pdd.gateway.completions import CompletionReply
from pdd.gateway.cors import Cors
from pdd.gateway.door import Door
from pdd.gateway.ending import Ending
from pdd.gateway.event_ids import Position
from pdd.gateway.framework import Framework
from pdd.gateway.http_connection import HttpConnection
from pdd.gateway.http_request import HttpFault, HttpRequest
from pdd.gateway.http_response import DateHeader
from pdd.gateway.job import Job
from pdd.gateway.reply import Reply
from pdd.gateway.request_opening import STREAMS_PATH, Endpoint, Opening, StreamEndpoint
from pdd.gateway.turn import Exchange, Turn

log = structlog.get_logger(__name__)

# What a connection that is closed at shutdown gets, after its requests were ended.
_PAGES_SHUTDOWN_S = 1.0


class Front:
    """Implements ``http_connection.FrontDoor``. Serve it with ``server.serve``."""

    def __init__(self, *, serving: Serving, door: Door, app: web.Application, clock: Clock) -> None:
        settings = serving.settings
        self.settings = settings
        self.stopping = False
        self.connections: set[HttpConnection] = set()
        self.framework = Framework(
            app, max_head_bytes=settings.max_head_bytes, shutdown_s=_PAGES_SHUTDOWN_S
        )
        self._serving = serving
        self._cors = Cors(settings.cors_origins)
        self._date = DateHeader(clock)
        self._endpoints = _endpoints(door, serving)
        self._streams = StreamEndpoint(endpoints=self._endpoints, runs=serving.runs)
        self._endings: set[Ending] = set()
        """One for each connection at most."""
        self._on_empty: Callable[[], None] | None = None

    # --- for connections ---------------------------------------------------------------------

    def opened(self, connection: HttpConnection) -> None:
        self.connections.add(connection)

    def closed(self, connection: HttpConnection) -> None:
        self.connections.discard(connection)
        if not self.connections and self._on_empty is not None:
            self._on_empty()

    def turn(self, connection: HttpConnection, request: HttpRequest) -> Turn:
        return Turn(
            connection,
            request,
            headers={"Date": str(self._date), **self._cors.headers(request)},
            keep_alive=request.keep_alive and not self.stopping,
        )

    def begin(self, turn: Turn) -> Exchange | None:
        request = turn.request
        opening, methods = self._opening(request.path)
        if self._cors.is_preflight(request):
            self._preflight(turn)
        elif request.target == "*":
            turn.respond(204, b"", Allow="GET, HEAD, POST, DELETE, OPTIONS")
        elif opening is None:
            return self.framework.begin(turn)
        elif request.method == "OPTIONS":
            turn.respond(204, b"", Allow=f"{methods}, OPTIONS")
        elif (fault := _misfit(request, methods)) is not None:
            self.refused(fault)
            turn.respond_fault(fault, **({"Allow": methods} if fault.status == 405 else {}))
        elif request.method == "DELETE":
            ending = Ending(turn, runs=self._serving.runs, over=self._endings.discard)
            self._endings.add(ending)
            ending.begin(RequestId(request.path.removeprefix(STREAMS_PATH)))
            return ending
        else:
            answer = Answer(serving=self._serving, turn=turn, opening=opening)
            answer.begin()
            return answer
        return None

    def refused(self, fault: HttpFault) -> None:
        self._serving.metrics.http_refused.add(1.0, (str(fault.status),))
        log.debug("http_request_refused", status=fault.status, code=fault.code, why=fault.message)

    # --- for the server ----------------------------------------------------------------------

    def when_empty(self, call: Callable[[], None]) -> None:
        """``call`` when the last connection is gone, or now."""
        self._on_empty = call
        if not self.connections:
            call()

    async def stop(self) -> None:
        """End what is open: idle connections now, requests by themselves within the grace period
        or with an error."""
        self.stopping = True
        for connection in list(self.connections):
            connection.close_if_idle()
        await self._serving.open_requests.stop(grace_s=self.settings.shutdown_grace_s)
        for ending in list(self._endings):
            await ending.stop()
        self._serving.runs.close()
        await self.framework.stop()

    def _opening(self, path: str) -> tuple[Opening | None, str]:
        """How a path's answers begin, and its methods; None where it is no inference."""
        if path.startswith(STREAMS_PATH):
            return self._streams, "GET, DELETE"
        return self._endpoints.get(path), "POST"

    def _preflight(self, turn: Turn) -> None:
        if self._cors.allows(turn.request):
            turn.headers.update(self._cors.preflight_headers())
            turn.respond(204, b"")
            return
        fault = HttpFault(
            status=403,
            code="origin_not_allowed",
            message="pages of this origin may not call this server; see http.cors_origins",
        )
        self.refused(fault)
        turn.respond_fault(fault)


def _misfit(request: HttpRequest, methods: str) -> HttpFault | None:
    """Why a request for inference cannot be answered, whatever its body says."""
    if request.method not in methods.split(", "):
        return HttpFault(
            status=405,
            code="method_not_allowed",
            message=f"{request.method} {request.path}: Method Not Allowed; use {methods}",
        )
    if _refuses_plain(request.header(b"accept-encoding")):
        return HttpFault(
            status=406,
            code="encoding_not_available",
            message="accept-encoding: answers are not compressed, and this refuses plain ones; "
            "leave 'identity;q=0' and '*;q=0' out",
        )
    return None


def _refuses_plain(accept_encoding: str | None) -> bool:
    """An answer that is not compressed would not be taken (RFC 9110, 12.5.3)."""
    if accept_encoding is None or ";" not in accept_encoding:
        return False
    weights = {}
    for part in accept_encoding.lower().replace(" ", "").split(","):
        coding, _, weight = part.partition(";q=")
        weights[coding] = weight
    said = weights.get("identity", weights.get("*", "1"))
    return said != "" and said.strip("0.") == ""


def _endpoints(door: Door, serving: Serving) -> dict[str, Endpoint]:
    name = door.model.name
    runs, max_body_bytes = serving.runs, serving.settings.max_body_bytes
    deadline_s = serving.settings.request_deadline_s

    def completion(job: Job, position: Position) -> Reply:
        return CompletionReply(job, model_name=name, position=position)

    def chat(job: Job, position: Position) -> Reply:
        return ChatReply(job, model_name=name, position=position)

    return {
        "/v1/completions": Endpoint(
            prepare=lambda body, request_id, tenant: door.completion(
                body, request_id=request_id, deadline_s=deadline_s, tenant=tenant
            ),
            make_reply=completion,
            runs=runs,
            max_body_bytes=max_body_bytes,
        ),
        "/v1/chat/completions": Endpoint(
            prepare=lambda body, request_id, tenant: door.chat(
                body, request_id=request_id, deadline_s=deadline_s, tenant=tenant
            ),
            make_reply=chat,
            runs=runs,
            max_body_bytes=max_body_bytes,
        ),
    }
