"""The operations listener of a process: is it alive, is it ready, its metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from core.readiness import Readiness


def create_operations_app(
    live: Callable[[], bool],
    ready: Callable[[], Readiness],
    registry: CollectorRegistry,
    state: Callable[[], dict[str, Any]],
) -> Starlette:
    """`/live` (the loop turns), `/ready` (200, or 503 with what is waited for; what is degraded in either case),
    `/metrics`, `/state` (who, how far)."""

    async def show_live(_request: Request) -> Response:
        alive = live()  # answering at all shows that the loop turns
        return _json({"live": alive}, alive)

    async def show_ready(_request: Request) -> Response:
        now = ready()
        return _json(now.to_mapping(), now.ready)

    async def show_state(_request: Request) -> Response:
        return _json(state(), ok=True)

    async def show_metrics(_request: Request) -> Response:
        return Response(generate_latest(registry), headers={"content-type": CONTENT_TYPE_LATEST})

    routes = {"/live": show_live, "/ready": show_ready, "/metrics": show_metrics, "/state": show_state}
    return Starlette(routes=[Route(path, show) for path, show in routes.items()])


def _json(value: dict[str, Any], ok: bool) -> Response:
    return Response(orjson.dumps(value), 200 if ok else 503, media_type="application/json")
