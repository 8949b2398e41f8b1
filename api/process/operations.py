"""The operations listener of a process: /live, /ready, /metrics and /state.

It shares the event loop with requests, so that its answers have a rate, and its connections a bound.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hmac
import math
from collections.abc import Callable
from typing import Any

import orjson
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from actors.metrics.log_metrics import LogMetrics
from api.auth.cross_origin import foreign_host
from api.config.addresses import is_loopback, split_address
from api.config.deployment_ref import operations_token
from api.config.schema import OperationsSection
from api.server.http_server import HttpServer
from api.server.limits import HttpLimits
from api.server.sockets import bind
from core.errors import CallerError
from core.readiness import Readiness
from streams.outbox.outbox import Outbox

CONNECTIONS_MAX = 64
"""Open at once on one listener; beyond them the idle ones make room."""
METRICS_EVERY_S = 1.0
"""Metrics are rendered so often at most; a rendering takes some 4 ms of the event loop."""
REQUESTS_PER_S = 100
"""Answers of one listener, all paths together; later ones wait for their turn, at most CONNECTIONS_MAX of them."""
REQUESTS_BURST = 100
"""So many come at once after a pause."""
OPERATIONS_GRACE_S = 1.0
CLOSED = frozenset({"/metrics", "/state"})
"""Paths that ask for the token, if there is one; a kubelet's probes have none."""
UNAUTHORIZED = "this path asks for the operations token: send it as `Authorization: Bearer TOKEN`"
FOREIGN_HOST = "Host names {name!r}, and this listener answers to localhost, IP addresses and private names alone"


class OperationsAccess:
    """ASGI middleware around the operations application: names, token and rate."""

    def __init__(self, app: ASGIApp, *, local: bool, token: str | None) -> None:
        """`local` refuses public names in Host, against DNS rebinding; beyond loopback the operator's names are
        unknown."""
        self._app = app
        self._local = local
        self._token = token
        self._next_s = 0.0
        """The turn of the next request."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        if self._local and (name := foreign_host(headers.get("host", ""))):
            await PlainTextResponse(FOREIGN_HOST.format(name=name) + "\n", 403)(scope, receive, send)
            return
        await self._turn()
        if scope["path"] in CLOSED and not self._knows(headers.get("authorization", "")):
            refusal = PlainTextResponse(UNAUTHORIZED + "\n", 401, {"www-authenticate": "Bearer"})
            await refusal(scope, receive, send)
            return
        await self._app(scope, receive, send)

    async def _turn(self) -> None:
        """Returns when the rate allows one more answer."""
        now_s = asyncio.get_running_loop().time()
        self._next_s = max(self._next_s, now_s - REQUESTS_BURST / REQUESTS_PER_S) + 1 / REQUESTS_PER_S
        if self._next_s > now_s:
            await asyncio.sleep(self._next_s - now_s)

    def _knows(self, authorization: str) -> bool:
        scheme, _, given = authorization.partition(" ")
        if self._token is None:
            return True
        return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), self._token.encode())


class MetricsRenderer:
    """The metrics of a registry as text, rendered at most once in METRICS_EVERY_S for all that ask."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._text = b""
        self._rendered_s = -math.inf

    def text(self) -> bytes:
        """The metrics now, or as they were less than METRICS_EVERY_S ago."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._rendered_s >= METRICS_EVERY_S:
            self._text, self._rendered_s = generate_latest(self._registry), now_s
        return self._text


def create_operations_app(
    live: Callable[[], bool],
    ready: Callable[[], Readiness],
    registry: CollectorRegistry,
    state: Callable[[], dict[str, Any]],
) -> Starlette:
    """`/live` (the loop turns), `/ready` (200, or 503 with what is waited for; what is degraded in either case),
    `/metrics`, `/state` (identity and progress)."""
    metrics = MetricsRenderer(registry)

    async def show_live(_request: Request) -> Response:
        alive = live()  # answering at all shows that the loop turns
        return _json({"live": alive}, alive)

    async def show_ready(_request: Request) -> Response:
        now = ready()
        return _json(now.to_mapping(), now.ready)

    async def show_state(_request: Request) -> Response:
        return _json(state(), ok=True)

    async def show_metrics(_request: Request) -> Response:
        return Response(metrics.text(), headers={"content-type": CONTENT_TYPE_LATEST})

    routes = {"/live": show_live, "/ready": show_ready, "/metrics": show_metrics, "/state": show_state}
    return Starlette(routes=[Route(path, show) for path, show in routes.items()])


def _json(value: dict[str, Any], ok: bool) -> Response:
    return Response(orjson.dumps(value), 200 if ok else 503, media_type="application/json")


def operations_server(
    section: OperationsSection,
    address: str,
    ready: Callable[[], Readiness],
    registry: CollectorRegistry,
    state: Callable[[], dict[str, Any]],
) -> HttpServer:
    """The operations listener, at `address`, else on a free port of the section's host; it is live for as long as the
    loop turns and answers. CallerError if that is no address, or the token cannot be read."""
    try:
        host, port = split_address(address) if address else (section.host, 0)
    except ValueError as error:
        raise CallerError(f"--ops: {error}") from error
    app = create_operations_app(lambda: True, ready, registry, state)
    access = OperationsAccess(app, local=is_loopback(host), token=operations_token(section))
    return HttpServer(access, bind(host, port), limits=HttpLimits(connections_max=CONNECTIONS_MAX))


def watch_outbox(metrics: LogMetrics, stream: str, outbox: Callable[[], Outbox | None]) -> None:
    """The metrics show this outbox, whichever it is by then."""

    def read(what: Callable[[Outbox], int]) -> Callable[[], float]:
        return lambda: what(box) if (box := outbox()) else 0

    def counts() -> dict[str, int]:
        box = outbox()
        return dataclasses.asdict(box.counts) if box else {}

    metrics.watch_outbox(stream, read(lambda box: box.depth), read(lambda box: box.bytes), counts)
