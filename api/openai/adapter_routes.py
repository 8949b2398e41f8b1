"""The routes by which an operator changes the adapters of workers: vLLM's, behind a token of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import orjson
from starlette.types import ASGIApp

from actors.router.router import Router
from api.auth.token_check import TokenCheck
from api.openai.unary_route import UnaryRequest, UnaryRoute
from core.errors import CallerError
from core.models import ModelCard

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
TOKEN_HEADER = b"x-contrail-operator-token"


class LoadBody(msgspec.Struct, frozen=True, kw_only=True):
    """An adapter to load, as vLLM's server takes it."""

    lora_name: str
    """The name that clients are to ask for."""
    lora_path: str
    """Folder of the adapter, on each worker's machine."""
    base: str = ""
    """The model that it adapts; not needed if there is one model."""
    workers: tuple[str, ...] = ()
    """Names of the workers that are to load it; none for all of the model."""


class UnloadBody(msgspec.Struct, frozen=True, kw_only=True):
    """An adapter to unload."""

    lora_name: str
    base: str = ""
    """As in LoadBody; not needed of an adapter that is served."""
    workers: tuple[str, ...] = ()
    """Names of the workers that are to unload it; none for all that serve it."""


class OperatorAccess(NamedTuple):
    """The router whose workers are changed, and the token that an operator must send."""

    router: Router
    token: str


class AdapterRoutes:
    """Answers for both routes of one front end."""

    def __init__(self, router: Router) -> None:
        self._router = router

    async def load(self, body: LoadBody, _: UnaryRequest) -> bytes:
        """The id by each worker's name. Errors are those of `AdapterChanges.load`; CallerError where several models
        could be meant."""
        changed = await self._router.adapter_changes.load(
            self._base(body.base), body.lora_name, body.lora_path, body.workers
        )
        return orjson.dumps({"lora_name": body.lora_name, "workers": changed})

    async def unload(self, body: UnloadBody, _: UnaryRequest) -> bytes:
        """As `load`."""
        base = body.base or self._router.model_of(body.lora_name)
        if base == body.lora_name:
            base = self._base("")
        changed = await self._router.adapter_changes.unload(base, body.lora_name, body.workers)
        return orjson.dumps({"lora_name": body.lora_name, "workers": changed})

    def _base(self, name: str) -> str:
        if name:
            return self._router.card(name).name
        cards: list[ModelCard] = self._router.models()
        if len(cards) != 1:
            raise CallerError(f"base: name one of {', '.join(card.name for card in cards) or 'no models yet'}")
        return cards[0].name


def adapter_routes(access: OperatorAccess, unary: Callable[..., UnaryRoute[Any]]) -> dict[str, ASGIApp]:
    """The application for each path."""
    routes = AdapterRoutes(access.router)
    apps = {LOAD: unary(LoadBody, routes.load), UNLOAD: unary(UnloadBody, routes.unload)}
    return {path: TokenCheck(app, TOKEN_HEADER, "operator", access.token) for path, app in apps.items()}
