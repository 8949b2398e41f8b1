"""Junction: the short way to the routes that every token passes."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping

from starlette.types import ASGIApp, Receive, Scope, Send


class Junction:
    """Requests for the two routes that generate go there straight; all others through the framework, whose layers and
    routing cost as much as a decision."""

    def __init__(self, hot: Mapping[str, ASGIApp], app: ASGIApp) -> None:
        self._hot = hot
        self._app = app

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        route = self._hot.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        return (route or self._app)(scope, receive, send)
