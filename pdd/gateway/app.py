"""The HTTP application: routes, and errors that are not an inference request's."""

import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import structlog
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from pdd.core.errors import PddError
from pdd.core.identity import RequestId
from pdd.core.ports import Clock, Inference
from pdd.gateway.chat import ChatReply
from pdd.gateway.completions import CompletionReply
from pdd.gateway.door import Door
from pdd.gateway.errors import make_error_body
from pdd.gateway.job import Job
from pdd.gateway.json_text import json_bytes, shorten
from pdd.gateway.metrics import GatewayMetrics
from pdd.gateway.open_requests import OpenRequests
from pdd.gateway.served import Health, ServedModel
from pdd.gateway.serving import Serving, error_response
from pdd.gateway.settings import GatewaySettings
from pdd.gateway.tokenizer import Tokenizer

log = structlog.get_logger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def make_app(
    *,
    inference: Inference,
    tokenizer: Tokenizer,
    model: ServedModel,
    settings: GatewaySettings,
    health: Callable[[], Health],
    metrics: GatewayMetrics,
    clock: Clock = time.monotonic,
) -> web.Application:
    """The front door as an aiohttp application. Serve it with ``server.make_runner``."""
    open_requests = OpenRequests(limit=settings.max_running_requests)
    serving = Serving(
        inference=inference,
        metrics=metrics,
        settings=settings,
        open_requests=open_requests,
        clock=clock,
    )
    door = Door(model=model, tokenizer=tokenizer)
    inference_routes = _InferenceRoutes(door=door, serving=serving, settings=settings)
    other_routes = _OtherRoutes(
        model=model, health=health, metrics=metrics, open_requests=open_requests
    )
    app = web.Application(middlewares=[_errors], client_max_size=settings.max_body_bytes)
    app.add_routes(
        [
            web.post("/v1/completions", inference_routes.completions),
            web.post("/v1/chat/completions", inference_routes.chat),
            web.get("/v1/models", other_routes.models),
            web.get("/v1/models/{model:.+}", other_routes.model),
            web.get("/health", other_routes.health),
            web.get("/metrics", other_routes.metrics),
        ]
    )

    async def stop(_app: web.Application) -> None:
        await open_requests.stop(grace_s=settings.shutdown_grace_s)

    app.on_shutdown.append(stop)
    return app


class _InferenceRoutes:
    def __init__(self, *, door: Door, serving: Serving, settings: GatewaySettings) -> None:
        self._door = door
        self._serving = serving
        self._deadline_s = settings.request_deadline_s
        self._model_name = door.model.name

    async def completions(self, http: web.Request) -> web.StreamResponse:
        async def prepare(body: dict[str, object], request_id: RequestId) -> Job:
            return await self._door.completion(
                body, request_id=request_id, deadline_s=self._deadline_s
            )

        def reply(job: Job) -> CompletionReply:
            return CompletionReply(job, model_name=self._model_name, created_s=_epoch_s())

        return await self._serving.answer(http, prepare=prepare, make_reply=reply)

    async def chat(self, http: web.Request) -> web.StreamResponse:
        async def prepare(body: dict[str, object], request_id: RequestId) -> Job:
            return await self._door.chat(body, request_id=request_id, deadline_s=self._deadline_s)

        def reply(job: Job) -> ChatReply:
            return ChatReply(job, model_name=self._model_name, created_s=_epoch_s())

        return await self._serving.answer(http, prepare=prepare, make_reply=reply)


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
            body=generate_latest(self._metrics.registry),
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
        headers = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
        return _json(
            make_error_body(
                f"{where}: {error.reason}",
                kind="invalid_request_error" if error.status < 500 else "server_error",
                code=error.reason.lower().replace(" ", "_"),
            ),
            status=error.status,
            headers=headers,
        )
    except PddError as error:
        return error_response(error)
    except Exception as error:
        log.exception("http_handler_failed", path=request.path)
        return error_response(error)


def _json(
    body: dict[str, object], *, status: int = 200, headers: dict[str, str] | None = None
) -> web.Response:
    return web.Response(
        body=json_bytes(body), status=status, content_type="application/json", headers=headers
    )


def _epoch_s() -> int:
    """Wall time, only to be shown: OpenAI's ``created``."""
    return int(datetime.now(UTC).timestamp())
