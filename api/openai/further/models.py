"""`/v1/models`: what can be asked for here, as OpenAI lists it, with vLLM's fields and ours beside."""

from __future__ import annotations

from typing import Any

import orjson
from fastapi import APIRouter, Response

from api.openai.backend import Backend
from core.models import ModelCard

MODELS = "/v1/models"
READING = ["GET", "HEAD"]
"""Methods of a route that is only read: the second one is the first without the body."""


def model_routes(backend: Backend) -> APIRouter:
    """`/v1/models` and `/v1/models/{id}`; an unknown id is answered with 404 in OpenAI's shape."""
    router = APIRouter()

    @router.api_route(MODELS, methods=READING)
    async def list_models() -> Response:
        data = [_model(card, name) for card in backend.models() for name in (card.name, *card.further_names)]
        return _json({"object": "list", "data": data})

    @router.api_route("/v1/models/{model:path}", methods=READING)
    async def show_model(model: str) -> Response:
        return _json(_model(backend.card(model), model))

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


def _json(value: Any) -> Response:
    return Response(orjson.dumps(value), media_type="application/json")
