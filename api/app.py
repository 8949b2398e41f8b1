"""The API of one front end: its routes, and the middleware around them.

Requests for the generation routes skip the framework (`DirectDispatch`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Mapping
from functools import partial
from importlib.metadata import version
from typing import Any, NamedTuple

import orjson
from fastapi import APIRouter, FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from actors.metrics.frontend_metrics import FrontendMetrics
from actors.prompt_cache.digest_store import DigestStore
from api.anthropic.messages_encoder import MESSAGES, TokenCount
from api.anthropic.messages_types import CountRequest
from api.auth.access_policy import AccessPolicy
from api.auth.authentication import Authentication
from api.auth.cross_origin import CrossOriginProtection
from api.auth.tenancy import Tenancy
from api.docs_page import HEADERS, docs_page
from api.openai.adapter_routes import OperatorAccess, adapter_routes
from api.openai.embeddings import EmbeddingRequest, Embeddings
from api.openai.generation_route import CHAT, COMPLETION, GenerationRoute
from api.openai.request.body_reader import BodyIntake
from api.openai.request.preprocessor import Preprocessor
from api.openai.tokenization import DetokenizeRequest, Tokenization, TokenizeRequest
from api.openai.types.backend import Backend
from api.openai.unary_route import UnaryRoute
from api.openapi import openapi_json
from api.parsers.loaded_models import LoadedModels
from api.responses.reasoning_seal import ReasoningSeal
from api.responses.responses_encoder import responses_adapter
from api.route.proxy_routes import ProxyAccess, proxy_routes
from api.route.reservation_route import ReservationRoute
from api.server.errors import AnthropicError, ApiError, error_for_path, http_status_error, internal_error, to_api_error
from api.server.limits import ApiSettings
from api.server.middleware import ApiCorsMiddleware, RequestIdMiddleware
from core.clock import Clock, SystemClock
from core.errors import ContrailError
from core.models import ModelCard, ServedAdapter


class DirectDispatch:
    """Requests for the routes that generate go there straight; all others pass the framework: its layers and
    routing cost as much as a decision. Each of the paths may have a slash behind it."""

    def __init__(self, direct: Mapping[str, ASGIApp], app: ASGIApp, paths: Collection[str] = ()) -> None:
        self._direct = direct
        self._app = app
        self._slashed = {f"{path}/": path for path in (*direct, *paths)}

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] == "http" and scope["path"] in self._slashed:
            scope = {**scope, "path": self._slashed[scope["path"]]}
        route = self._direct.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        return (route or self._app)(scope, receive, send)


MODELS = "/v1/models"
READING = ["GET", "HEAD"]
"""Methods of a route that is only read: the second one is the first without the body."""


def model_routes(backend: Backend) -> APIRouter:
    """`/v1/models` and `/v1/models/{id}`; an unknown id is answered with 404 in OpenAI's shape."""
    router = APIRouter()

    @router.api_route(MODELS, methods=READING)
    async def list_models() -> Response:
        data: list[dict[str, Any]] = []
        for card in backend.models():
            data += [_model(card, name) for name in (card.name, *card.further_names)]
            data += [_adapter(card, adapter) for adapter in card.adapters]
        return _json({"object": "list", "data": data})

    @router.api_route("/v1/models/{model:path}", methods=READING)
    async def show_model(model: str) -> Response:
        card = backend.card(model)
        return _json(_model(card, model) if card.adapter is None else _adapter(card, card.adapter))

    return router


def _model(card: ModelCard, name: str) -> dict[str, Any]:
    """The model under this one of its names; `root` is its own."""
    return {
        "id": name,
        "object": "model",
        "created": card.created_s,
        "owned_by": "contrail",
        # vLLM's
        "root": card.name,
        "parent": None,
        "max_model_len": card.context_max,
        # ours
        "engine": card.engine,
        "context_max": card.context_max,
        "workers": card.workers,
    }


def _adapter(card: ModelCard, adapter: ServedAdapter) -> dict[str, Any]:
    """The adapter as a model, as vLLM lists it; `root` has the digest of its weights."""
    shown = {"id": adapter.name, "root": adapter.id, "parent": card.name, "workers": adapter.workers}
    return _model(card, adapter.name) | shown


def _json(value: Any) -> Response:
    return Response(orjson.dumps(value), media_type="application/json")


class PostRoutes(NamedTuple):
    """Path to the application that answers POST there."""

    direct: dict[str, ASGIApp]
    """Those that generate: each skips the framework."""
    further: dict[str, ASGIApp]


def post_routes(
    backend: Backend,
    metrics: FrontendMetrics,
    settings: ApiSettings,
    clock: Clock,
    seal: ReasoningSeal | None = None,
    texts: DigestStore | None = None,
    proxies: ProxyAccess | None = None,
    operators: OperatorAccess | None = None,
    *,
    isolate_tenants: bool = False,
) -> PostRoutes:
    """All routes that take a POST. Without a seal, no other process opens the reasoning that clients bring back.
    `texts` keeps tokenized texts, by default within the default bound. Without `proxies` nothing is routed for them.
    Without `operators` no adapter is changed."""
    models = LoadedModels(texts, isolate_tenants=isolate_tenants)
    intake = BodyIntake(settings, models.pool)
    preprocessor = Preprocessor(backend, settings, models, intake)
    generation = partial(GenerationRoute, preprocessor, backend, metrics, settings, clock, intake)
    unary = partial(UnaryRoute, metrics, intake, clock)
    embeddings = Embeddings(backend, settings, models)
    tokenization = Tokenization(backend, settings, models)
    proxied: dict[str, ASGIApp] = {}
    if proxies is not None:
        parts = (preprocessor, backend, metrics, settings, clock, intake)
        proxied = proxy_routes(proxies, partial(ReservationRoute, proxies.router, isolate_tenants, *parts), unary)
    return PostRoutes(
        {
            "/v1/chat/completions": generation(CHAT),
            "/v1/completions": generation(COMPLETION),
            "/v1/responses": generation(responses_adapter(seal or ReasoningSeal.of_this_process())),
            "/v1/messages": generation(MESSAGES),
        },
        {
            "/v1/embeddings": unary(EmbeddingRequest, embeddings.answer),
            "/v1/messages/count_tokens": unary(CountRequest, TokenCount(tokenization).answer, AnthropicError),
            "/tokenize": unary(TokenizeRequest, tokenization.tokenize),
            "/detokenize": unary(DetokenizeRequest, tokenization.detokenize),
            **proxied,
            **({} if operators is None else adapter_routes(operators, unary)),
        },
    )


def reading_routes(backend: Backend) -> APIRouter:
    """Routes that are only read: models and version."""
    router = APIRouter()
    router.include_router(model_routes(backend))

    @router.api_route("/version", methods=READING)
    async def show_version() -> Response:
        return Response(orjson.dumps({"version": version("contrail")}), media_type="application/json")

    return router


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
    texts: DigestStore | None = None,
    proxies: ProxyAccess | None = None,
    operators: OperatorAccess | None = None,
) -> ASGIApp:
    """The whole API over this backend; every error that leaves it has the shape that clients of its path know. `page`
    answers /debug and what is below it. Without a policy every client is admitted; for `seal`, `texts`,
    `proxies` and `operators` see `post_routes`."""
    policy = policy or AccessPolicy()
    clock = clock or SystemClock()
    if policy.keyring is not None or policy.isolates:
        backend = Tenancy(backend, isolate=policy.isolates)
    direct, further = post_routes(
        backend, metrics, settings, clock, seal, texts, proxies, operators, isolate_tenants=policy.isolates
    )
    app = framework(backend, {**direct, **further}, page, policy)
    routes = DirectDispatch(direct, app, (*further, MODELS))
    return RequestIdMiddleware(
        _layers(routes, policy), backend.failed, traced_by=clock if policy.expose_routing else None
    )


def framework(
    backend: Backend, posts: Mapping[str, ASGIApp], page: ASGIApp | None = None, policy: AccessPolicy | None = None
) -> FastAPI:
    """All routes: those that take a POST, those that tell, and the page."""
    policy = policy or AccessPolicy()
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
        return Response(openapi_json(), media_type="application/json")

    @app.api_route("/docs", methods=READING)
    async def show_docs(request: Request) -> Response:
        keyed = policy.keyring is not None
        # the page needs no key, and the models of a deployment with keys are for their holders
        model = None if keyed else next((card.name for card in backend.models()), None)
        text = docs_page(request.url.scheme, request.headers.get("host", ""), model, keyed=keyed)
        return Response(text, headers=HEADERS, media_type="text/html")

    @app.api_route("/health", methods=READING)
    async def health() -> Response:
        now = policy.ready(backend.ready())
        return Response(orjson.dumps(now.to_mapping()), 200 if now.ready else 503, media_type="application/json")

    return app


def _layers(app: ASGIApp, policy: AccessPolicy) -> ASGIApp:
    """The middleware of every request, the innermost first: pages of other sites may read refusals, too."""
    if policy.keyring is not None:
        app = Authentication(app, keyring=policy.keyring)
    if policy.keyring is None or policy.hosts:
        app = CrossOriginProtection(app, policy)
    if policy.cors:
        app = ApiCorsMiddleware(app, origins=policy.cors)
    return app


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = str(error.detail)
    if error.status_code == 404:
        message = f"there is no {request.url.path} here; {METRICS if request.url.path == '/metrics' else ROUTES}"
    if error.status_code == 405:
        message = f"{request.method} is not allowed on {request.url.path}"
    return _response(request, http_status_error(error.status_code, message, dict(error.headers or {})))


async def _on_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ContrailError)
    return _response(request, to_api_error(error))


async def _on_defect(request: Request, _error: Exception) -> Response:
    """The framework raises it again behind this answer: it is logged outside, and nothing more is said."""
    return _response(request, internal_error())


def _response(request: Request, error: ApiError) -> Response:
    answer = error_for_path(request.url.path, error, request.state.request_id)
    return Response(answer.body(), answer.status, answer.headers, media_type="application/json")
