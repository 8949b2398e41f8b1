"""Junction: the short way to the routes that every token passes."""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Mapping

from starlette.types import ASGIApp, Receive, Scope, Send


class Junction:
    """Requests for the two routes that generate go there straight; all others through the framework, whose layers and
    routing cost as much as a decision. Each of the paths may have a slash behind it."""

    def __init__(self, hot: Mapping[str, ASGIApp], app: ASGIApp, paths: Collection[str] = ()) -> None:
        self._hot = hot
        self._app = app
        self._slashed = {f"{path}/": path for path in (*hot, *paths)}

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] == "http" and scope["path"] in self._slashed:
            scope = {**scope, "path": self._slashed[scope["path"]]}
        route = self._hot.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        return (route or self._app)(scope, receive, send)
