"""The pages that are not inference: models, health, metrics. An ordinary aiohttp application."""

from collections.abc import Awaitable, Callable

import structlog
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from pdd.core.errors import PddError
from pdd.gateway.errors import edge_of, error_body, make_error_body, retry_after_s
from pdd.gateway.exposition import exposition
from pdd.gateway.json_text import json_bytes, shorten
from pdd.gateway.metrics import GatewayMetrics
from pdd.gateway.open_requests import OpenRequests
from pdd.gateway.served import Health, ServedModel

log = structlog.get_logger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def make_app(
    *,
    model: ServedModel,
    health: Callable[[], Health],
    metrics: GatewayMetrics,
    open_requests: OpenRequests,
    max_body_bytes: int,
) -> web.Application:
    """The pages: what ``framework.Framework`` runs."""
    routes = _OtherRoutes(model=model, health=health, metrics=metrics, open_requests=open_requests)
    app = web.Application(middlewares=[_errors], client_max_size=max_body_bytes)
    app.add_routes(
        [
            web.get("/v1/models", routes.models),
            web.get("/v1/models/{model:.+}", routes.model),
            web.get("/health", routes.health),
            web.get("/metrics", routes.metrics),
        ]
    )
    return app


class _OtherRoutes:
    def __init__(
        self,
        *,
        model: ServedModel,
        health: Callable[[], Health],
        metrics: GatewayMetrics,
        open_requests: OpenRequests,
    ) -> None:
        self._model = model
        self._health = health
        self._metrics = metrics
        self._open_requests = open_requests

    async def models(self, _http: web.Request) -> web.Response:
        return _json({"object": "list", "data": [self._card()]})

    async def model(self, http: web.Request) -> web.Response:
        name = http.match_info["model"]
        if name != self._model.name:
            return _json(
                make_error_body(
                    f"model: {shorten(name)} does not exist here; {self._model.name!r} is served",
                    kind="invalid_request_error",
                    param="model",
                    code="model_not_found",
                ),
                status=404,
            )
        return _json(self._card())

    async def health(self, _http: web.Request) -> web.Response:
        health = self._health()
        ready = health.ready and not self._open_requests.stopping
        reason = "this scheduler is stopping" if self._open_requests.stopping else health.reason
        body: dict[str, object] = {
            "status": "ok" if ready else "unavailable",
            "reason": reason or ("" if ready else "no decode node is ready"),
            "model": self._model.name,
            "decode_ready_count": health.decode_ready_count,
            "prefill_ready_count": health.prefill_ready_count,
        }
        return _json(body, status=200 if ready else 503)

    async def metrics(self, _http: web.Request) -> web.Response:
        return web.Response(
            body=await exposition(self._metrics.registry),
            headers={"Content-Type": CONTENT_TYPE_LATEST},
        )

    def _card(self) -> dict[str, object]:
        return {
            "id": self._model.name,
            "object": "model",
            "created": self._model.created_s,
            "owned_by": "pdd",
            "root": self._model.name,
            "parent": None,
            "max_model_len": self._model.max_model_len,
        }


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Give every error OpenAI's shape, the framework's own (404, 405...) included."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        where = f"{request.method} {request.path[:200]}"
        advice = ""
        if isinstance(error, web.HTTPMethodNotAllowed):
            advice = f"; use {' or '.join(sorted(error.allowed_methods))}"
        headers = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
        return _json(
            make_error_body(
                f"{where}: {error.reason}{advice}",
                kind="invalid_request_error" if error.status < 500 else "server_error",
                code=error.reason.lower().replace(" ", "_"),
            ),
            status=error.status,
            headers=headers,
        )
    except Exception as error:
        if not isinstance(error, PddError):
            log.exception("http_handler_failed", path=request.path)
        seconds = retry_after_s(error)
        return _json(
            error_body(error),
            status=edge_of(error).status,
            headers={} if seconds is None else {"Retry-After": str(seconds)},
        )


def _json(
    body: dict[str, object], *, status: int = 200, headers: dict[str, str] | None = None
) -> web.Response:
    return web.Response(
        body=json_bytes(body), status=status, content_type="application/json", headers=headers
    )
