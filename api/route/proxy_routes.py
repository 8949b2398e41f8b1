"""Routing for proxies: the routes below `/v1/route`, behind a token of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from starlette.types import ASGIApp, Receive, Scope, Send

from actors.router.router import Router
from api.anthropic.messages_encoder import MESSAGES
from api.auth.token_check import TokenCheck
from api.openai.generation_route import CHAT, COMPLETION, ApiAdapter
from api.openai.unary_route import UnaryRoute
from api.route.reservation_reports import EndReport, FirstTokenReport, ReservationReports
from api.server.errors import ApiError
from api.server.middleware import send_error

ROUTE = "/v1/route"
FIRST_TOKEN, END = f"{ROUTE}/{{id}}/first-token", f"{ROUTE}/{{id}}/end"
TOKEN_HEADER = b"x-contrail-route-token"
URI_HEADER = b"x-original-uri"
"""The path that the client asked for, by which the API of its body is known."""
CHATS = "/v1/chat/completions"
"""The path of a body without that header."""
ADAPTERS: Mapping[str, ApiAdapter[Any]] = {CHATS: CHAT, "/v1/completions": COMPLETION, "/v1/messages": MESSAGES}


class ProxyAccess(NamedTuple):
    """The router that proxies may ask, and the token that they must send."""

    router: Router
    token: str


def proxy_routes(
    access: ProxyAccess, reserving: Callable[[ApiAdapter[Any]], ASGIApp], unary: Callable[..., UnaryRoute[Any]]
) -> dict[str, ASGIApp]:
    """The application for each path. `reserving` makes the one for bodies of one API, `unary` one for reports."""
    reports = ReservationReports(access.router.reservations)
    apps: dict[str, ASGIApp] = {
        ROUTE: ApiSelection({path: reserving(adapter) for path, adapter in ADAPTERS.items()}),
        FIRST_TOKEN: unary(FirstTokenReport, reports.first_token),
        END: unary(EndReport, reports.end),
    }
    return {path: TokenCheck(app, TOKEN_HEADER, "route", access.token) for path, app in apps.items()}


class ApiSelection:
    """Hands a request to the application for bodies of its API; an unknown API is answered with 400."""

    def __init__(self, by_path: Mapping[str, ASGIApp]) -> None:
        self._by_path = by_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = _header(scope, URI_HEADER).partition(b"?")[0].decode("latin-1").rstrip("/") or CHATS
        app = self._by_path.get(path)
        if app is None:
            fault = f"x-original-uri: bodies of {', '.join(self._by_path)} can be routed"
            await send_error(send, ApiError(400, fault, param="x-original-uri"))
            return
        await app(scope, receive, send)


def _header(scope: Scope, name: bytes) -> bytes:
    """The header's value; empty if there is none."""
    return next((bytes(value) for header, value in scope["headers"] if header == name), b"")
