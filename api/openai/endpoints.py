"""The routes beside chat and completions: other ways to ask for a chat, embeddings, tokens, and what runs here."""

from __future__ import annotations

from functools import partial
from importlib.metadata import version

import orjson
from fastapi import APIRouter, Response
from starlette.types import ASGIApp

from actors.metrics.frontend_metrics import FrontendMetrics
from api.anthropic.body import CountRequest
from api.anthropic.dialect import MESSAGES, TokenCount
from api.anthropic.errors import AnthropicError
from api.openai.backend import Backend
from api.openai.dialect import DialectRoute
from api.openai.further.embedding_inputs import EmbeddingRequest
from api.openai.further.embeddings import Embeddings
from api.openai.further.errand import ErrandRoute
from api.openai.further.models import READING, model_routes
from api.openai.further.tokenizing import DetokenizeRequest, TokenizeRequest, Tokenizing
from api.openai.requests.intake import Intake
from api.openai.responses.dialect import responses_dialect
from api.openai.responses.reasoning_seal import ReasoningSeal
from api.openai.settings import ApiSettings
from api.openai.text.tokenizer import Tokenizers
from core.clock import Clock


def further_routes(
    backend: Backend,
    metrics: FrontendMetrics,
    settings: ApiSettings,
    clock: Clock,
    tokenizers: Tokenizers,
    seal: ReasoningSeal | None = None,
) -> dict[str, ASGIApp]:
    """Path to the application that answers POST there; `tokenizers` are those of the other routes. Without a seal, no
    other process opens the reasoning that clients bring back."""
    intake = Intake(backend, settings, tokenizers)
    errand = partial(ErrandRoute, metrics, settings, clock)
    dialect = partial(DialectRoute, intake, backend, metrics, settings, clock)
    embeddings = Embeddings(backend, settings, tokenizers)
    tokenizing = Tokenizing(backend, settings, tokenizers)
    return {
        "/v1/embeddings": errand(EmbeddingRequest, embeddings.answer),
        "/v1/responses": dialect(responses_dialect(seal or ReasoningSeal.of_this_process())),
        "/v1/messages": dialect(MESSAGES),
        "/v1/messages/count_tokens": errand(CountRequest, TokenCount(tokenizing).answer, AnthropicError),
        "/tokenize": errand(TokenizeRequest, tokenizing.tokenize),
        "/detokenize": errand(DetokenizeRequest, tokenizing.detokenize),
    }


def reading_routes(backend: Backend) -> APIRouter:
    """What is only read: models, and the version."""
    router = APIRouter()
    router.include_router(model_routes(backend))

    @router.api_route("/version", methods=READING)
    async def show_version() -> Response:
        return Response(orjson.dumps({"version": version("contrail")}), media_type="application/json")

    return router
