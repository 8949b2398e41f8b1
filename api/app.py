"""The API of one front end."""

from __future__ import annotations

from collections.abc import Mapping

import orjson
from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.routing import Route
from starlette.types import ASGIApp

from actors.metrics.frontend_metrics import FrontendMetrics
from api.answers import Answers
from api.anthropic.errors import told_at
from api.description.document import description
from api.junction import Junction
from api.openai.backend import Backend
from api.openai.endpoints import further_routes, reading_routes
from api.openai.errors import ApiError, answer_to, internal_error, of_status
from api.openai.further.models import MODELS, READING
from api.openai.responses.reasoning_seal import ReasoningSeal
from api.openai.routes import generation_routes
from api.openai.settings import ApiSettings
from api.openai.text.tokenizer import Tokenizers
from api.security.cors import Cors
from api.security.gate import Gate
from api.security.policy import AccessPolicy
from api.security.tenancy import Tenancy
from core.clock import Clock, SystemClock
from core.errors import ContrailError

ROUTES = "see /v1/models, /v1/chat/completions, /v1/completions"
METRICS = (
    "each process shows its metrics at its operations address: --ops, or what `contrail up` writes to metrics.json in "
    "its data folder"
)


def create_app(
    backend: Backend,
    metrics: FrontendMetrics,
    settings: ApiSettings,
    clock: Clock | None = None,
    page: ASGIApp | None = None,
    policy: AccessPolicy | None = None,
    seal: ReasoningSeal | None = None,
) -> ASGIApp:
    """The whole API over this backend; every error that leaves it has the shape that clients of its path know. `page`
    answers /debug and what is below it. Without a policy everybody may ask; without a seal, no other process opens the
    reasoning that clients bring back."""
    policy = policy or AccessPolicy()
    clock = clock or SystemClock()
    if policy.keyring is not None or policy.isolate_tenants:
        backend = Tenancy(backend, isolate=policy.isolate_tenants)
    tokenizers = Tokenizers()
    hot = generation_routes(backend, metrics, settings, clock, tokenizers)
    cold = further_routes(backend, metrics, settings, clock, tokenizers, seal)
    app = framework(backend, {**hot, **cold}, page)
    routes = Junction(hot, app, (*cold, MODELS))
    return Answers(_layers(routes, policy), backend.failed, traced_by=clock if policy.expose_routing else None)


def framework(backend: Backend, posts: Mapping[str, ASGIApp], page: ASGIApp | None = None) -> FastAPI:
    """All routes: those that take a POST, those that tell, and the page."""
    app = FastAPI(title="Contrail", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(ContrailError, _on_error)
    app.add_exception_handler(Exception, _on_defect)
    app.router.routes += [Route(path, route, methods=["POST"]) for path, route in posts.items()]
    app.include_router(reading_routes(backend))
    if page is not None:
        app.router.routes += [Route("/debug", page, methods=None), Route("/debug/{rest:path}", page, methods=None)]

    @app.api_route("/openapi.json", methods=READING)
    async def describe() -> Response:
        return Response(description(), media_type="application/json")

    @app.api_route("/health", methods=READING)
    async def health() -> Response:
        now = backend.ready()
        return Response(orjson.dumps(now.to_mapping()), 200 if now.ready else 503, media_type="application/json")

    return app


def _layers(app: ASGIApp, policy: AccessPolicy) -> ASGIApp:
    """What every request passes, the innermost first: pages of other sites may read refusals too."""
    if policy.keyring is not None:
        app = Gate(app, keyring=policy.keyring)
    if policy.cors:
        app = Cors(app, origins=policy.cors)
    return app


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = str(error.detail)
    if error.status_code == 404:
        message = f"there is no {request.url.path} here; {METRICS if request.url.path == '/metrics' else ROUTES}"
    if error.status_code == 405:
        message = f"{request.method} is not allowed on {request.url.path}"
    return _response(request, of_status(error.status_code, message, dict(error.headers or {})))


async def _on_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ContrailError)
    return _response(request, answer_to(error))


async def _on_defect(request: Request, _error: Exception) -> Response:
    """The framework raises it again behind this answer: it is logged outside, and nothing more is said."""
    return _response(request, internal_error())


def _response(request: Request, error: ApiError) -> Response:
    told = told_at(request.url.path, error, request.state.request_id)
    return Response(told.body(), told.status, told.headers, media_type="application/json")
