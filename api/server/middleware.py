"""Middleware around the whole API: request id, error boundary, routing trace and CORS.

Every answer has a request id in a header, and every error the shape of its API. The routing trace names the worker and
the times of a request in headers. CORS is closed unless an operator names origins, each exactly.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.server.caller import header_tenant
from api.server.errors import ApiError, error_for_path, internal_error, redacted_traceback, stopping
from api.server.exchange import EXCHANGE_KEY, HttpExchange, RoutingTrace
from core.clock import Clock

FailureCallback = Callable[[str, str, str, Exception], None]
"""`Backend.failed`."""

log = logging.getLogger(__name__)

REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}")
"""A request id that a client may choose."""


class RequestIdMiddleware:
    """The outermost layer: after it every answer has `x-request-id`, and no exception reaches the server.

    `failed` hears of each failure inside that a request of the API met: its id, its model as far as it is known, what
    its client calls its tenant, and the failure. With a clock, answers also say where their request went
    (`api.server.exchange`); nothing is done per chunk.
    """

    def __init__(self, app: ASGIApp, failed: FailureCallback = lambda *_: None, traced_by: Clock | None = None) -> None:
        self._app = app
        self._failed = failed
        self._traced_by = traced_by

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        # a route that finds another one in the body may put it here
        state["request_id"] = _request_id(scope)
        exchange: HttpExchange | None = state.get(EXCHANGE_KEY)
        if exchange is not None:
            exchange.request_id = state["request_id"]
            exchange.trace = None if self._traced_by is None else RoutingTrace(self._traced_by)
        started = False

        async def send_named(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                own = [(b"x-request-id", state["request_id"].encode())]
                naming = own if exchange is None else exchange.naming_headers()
                message["headers"] = [*message.get("headers", ()), *naming]
            await send(message)

        try:
            await self._app(scope, receive, send_named)
        except asyncio.CancelledError:
            if started or (exchange is not None and exchange.started):
                raise
            await send_error(send_named, error_for_path(scope["path"], stopping(), state["request_id"]))
        except Exception as error:  # noqa: BLE001 - other requests go on after any failure
            self._report(scope, exchange, error)
            if not started and (exchange is None or not exchange.started):
                await send_error(send_named, error_for_path(scope["path"], internal_error(), state["request_id"]))
            # else the server cuts the connection, so that the client sees that the answer is not whole

    def _report(self, scope: Scope, exchange: HttpExchange | None, error: Exception) -> None:
        """The process's log has the failure; of a request of the API the event log has it, too."""
        request_id = scope["state"]["request_id"]
        log.error("a request failed inside:\n%s", redacted_traceback(error), extra={"request_id": request_id})
        if exchange is not None and exchange.model is not None:
            self._failed(request_id, exchange.model, header_tenant(scope["headers"]), error)


async def send_error(send: Send, error: ApiError) -> None:
    """The error has been handed to the server as the whole answer."""
    body = error.body()
    named = {"content-type": "application/json", "content-length": str(len(body)), **error.headers}
    headers = [(name.encode(), value.encode()) for name, value in named.items()]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _request_id(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"x-request-id" and REQUEST_ID.fullmatch(value):
            return str(value.decode())
    return f"req-{secrets.token_hex(8)}"


AGE_S = 600
"""Time for which a browser may cache a preflight answer."""
READABLE = ("x-request-id", "retry-after", "x-contrail-worker", "x-contrail-queue-ms", "x-contrail-answer-ms")
"""Answer headers that a page of another site may read, beside the safelisted ones."""


class ApiCorsMiddleware:
    """Around the API; the debugging page stays closed to all other sites."""

    def __init__(self, app: ASGIApp, origins: tuple[str, ...]) -> None:
        self._app = app
        self._shared = CORSMiddleware(
            app,
            allow_origins=list(origins),
            allow_methods=["GET", "POST"],
            # a key is in a header and not in a cookie: a page can send no more than it was given
            allow_headers=["*"],
            # a listed page may ask from the public network, too
            allow_private_network=True,
            expose_headers=list(READABLE),
            max_age=AGE_S,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].startswith("/debug"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if "origin" in headers:
            await self._add_headers(scope["state"].get(EXCHANGE_KEY), headers)
        await self._shared(scope, receive, send)

    async def _add_headers(self, exchange: HttpExchange | None, headers: Headers) -> None:
        """An answer that goes past ASGI has the headers that the framework gives to others."""

        async def take(message: Message) -> None:
            if exchange is not None:
                exchange.shared_headers = message["headers"]

        await self._shared.send({"type": "http.response.start", "headers": []}, take, headers)
