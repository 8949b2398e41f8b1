"""The API of one front end."""

from __future__ import annotations

import orjson
from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.routing import Route
from starlette.types import ASGIApp

from actors.metrics import FrontendMetrics
from api.answers import Answers
from api.openai.backend import Backend
from api.openai.errors import ApiError, answer_to, of_status
from api.openai.routes import generation_routes, model_routes
from api.openai.settings import ApiSettings
from core.clock import Clock, SystemClock
from core.errors import ContrailError


def create_app(
    backend: Backend,
    metrics: FrontendMetrics,
    settings: ApiSettings,
    clock: Clock | None = None,
    page: ASGIApp | None = None,
) -> FastAPI:
    """The whole API over this backend; every error that leaves it has OpenAI's shape. `page` answers /debug and what
    is below it."""
    app = FastAPI(title="Contrail", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    app.add_middleware(Answers)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(ContrailError, _on_error)
    for path, route in generation_routes(backend, metrics, settings, clock or SystemClock()).items():
        app.router.routes.append(Route(path, route, methods=["POST"]))
    app.include_router(model_routes(backend))
    if page is not None:
        app.router.routes += [Route("/debug", page, methods=None), Route("/debug/{rest:path}", page, methods=None)]

    @app.get("/health")
    async def health() -> Response:
        now = backend.ready()
        return Response(orjson.dumps(now.to_mapping()), 200 if now.ready else 503, media_type="application/json")

    return app


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = str(error.detail)
    if error.status_code == 404:
        message = f"there is no {request.url.path} here; see /v1/models, /v1/chat/completions, /v1/completions"
    if error.status_code == 405:
        message = f"{request.method} is not allowed on {request.url.path}"
    return _response(of_status(error.status_code, message, dict(error.headers or {})))


async def _on_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, ContrailError)
    return _response(answer_to(error))


def _response(error: ApiError) -> Response:
    return Response(error.body(), error.status, error.headers, media_type="application/json")
