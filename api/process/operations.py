"""The operations listener of a process: /live, /ready, /metrics and /state."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import orjson
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from actors.metrics.log_metrics import LogMetrics
from api.config.addresses import split_address
from api.server.http_server import HttpServer
from api.server.sockets import bind
from core.errors import CallerError
from core.readiness import Readiness
from streams.outbox.outbox import Outbox


def create_operations_app(
    live: Callable[[], bool],
    ready: Callable[[], Readiness],
    registry: CollectorRegistry,
    state: Callable[[], dict[str, Any]],
) -> Starlette:
    """`/live` (the loop turns), `/ready` (200, or 503 with what is waited for; what is degraded in either case),
    `/metrics`, `/state` (identity and progress)."""

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


OPERATIONS_GRACE_S = 1.0


def operations_server(
    host: str,
    address: str,
    ready: Callable[[], Readiness],
    registry: CollectorRegistry,
    state: Callable[[], dict[str, Any]],
) -> HttpServer:
    """The operations listener, at `address`, else on a free port; it is live for as long as the loop turns and
    answers. CallerError if that is no address."""
    try:
        host, port = split_address(address) if address else (host, 0)
    except ValueError as error:
        raise CallerError(f"--ops: {error}") from error
    return HttpServer(create_operations_app(lambda: True, ready, registry, state), bind(host, port))


def watch_outbox(metrics: LogMetrics, stream: str, outbox: Callable[[], Outbox | None]) -> None:
    """The metrics show this outbox, whichever it is by then."""

    def read(what: Callable[[Outbox], int]) -> Callable[[], float]:
        return lambda: what(box) if (box := outbox()) else 0

    def counts() -> dict[str, int]:
        box = outbox()
        return dataclasses.asdict(box.counts) if box else {}

    metrics.watch_outbox(stream, read(lambda box: box.depth), read(lambda box: box.bytes), counts)
